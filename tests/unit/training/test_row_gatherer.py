"""Tests of chunks of rows: content and order of their batches, and reuse of memory."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hopsml.errors import StorageError
from hopsml.training.data import row_gatherer
from hopsml.training.data.batch_reader import BatchReader
from hopsml.training.data.row_gatherer import ArrayPool, RowGatherer, WindowRows
from hopsml.training.data.shard_order import KnownShards
from hopsml.training.data.shard_sampler import ShardSampler
from tests.helpers.clock import END_S
from tools import build_native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

pytestmark = pytest.mark.fast
ROWS = (700, 1, 0, 2300, 1500)


class Numbered:
    """Shards whose rows are numbered through."""

    shard_sizes, row_bytes = ROWS, 4008.0

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        ids = np.arange(sum(ROWS[:shard]), sum(ROWS[: shard + 1]))
        return {"id": ids, "wide": np.repeat(ids.astype(np.float32)[:, None], 1000, axis=1)}


def sampler(window: int) -> ShardSampler:
    return ShardSampler(KnownShards(ROWS), 512, 5, epochs=2, first_epoch=0, window=window, drop_last=False)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(row_gatherer.os, "sched_getaffinity", lambda _: set(range(request.param)))
    yield request.param
    assert not [one.name for one in threading.enumerate() if one.name.startswith("hopsml-gather")]


@pytest.fixture(params=["native", "numpy"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the native library or its replacement in NumPy."""
    if request.param == "native":
        build_native.build_rows()
    else:
        monkeypatch.setattr(row_gatherer, "PATH", row_gatherer.PATH.with_name("none.so"))
    row_gatherer.load_library.cache_clear()
    assert (row_gatherer.load_library() is None) == (request.param == "numpy")


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    yield
    row_gatherer.load_library.cache_clear()


@pytest.mark.parametrize("window", [0, 300, 1000, 10_000])
@pytest.mark.usefixtures("library")
def test_gathered_rows_are_in_sampler_order(threads: int, window: int) -> None:
    source, order, seen = Numbered(), sampler(window), list[int]()
    rows = RowGatherer(source)
    while not order.is_exhausted:
        batches = [order.next_pieces()]
        while len(batches) < 3 and not order.is_exhausted:
            batches.append(order.next_pieces())
        chunk = rows.gather_batches(batches)
        assert (chunk.columns["wide"] == chunk.columns["id"][:, None]).all()
        seen += chunk.columns["id"].tolist()
        if threads == 2 and len(seen) <= 1536:
            assert [one for one in threading.enumerate() if one.name.startswith("hopsml-gather")]
    rows.close()
    assert sorted(seen) == sorted([*range(sum(ROWS))] * 2)
    one_by_one = BatchReader(source, lambda: sampler(window))
    assert [int(row) for _ in range(18) for row in one_by_one.next_batch()["id"]] == seen
    one_by_one.close()
    for thread in threading.enumerate():
        if thread.name == "hopsml-read-ahead":
            thread.join(END_S)


@pytest.mark.usefixtures("library")
def test_gather_supports_every_row_size_and_type() -> None:
    rng, rows = np.random.default_rng(1), 3000
    kinds = {
        "bool": rng.random(rows) > 0.5,
        "half": rng.random(rows).astype(np.float16),
        "time": np.arange(rows).view("datetime64[s]"),
        "complex": rng.random((rows, 1)) * 1j,
        "three": rng.integers(0, 255, (rows, 3), np.uint8),
        "none": np.zeros((rows, 0)),
        "page": rng.integers(0, 255, (rows, 5001), np.uint8),
        "text": np.array([f"row {n}" for n in range(rows)], object),
    }
    bounds = [0, 1, 10, 10, 1500, rows]
    parts = [{name: column[a:b] for name, column in kinds.items()} for a, b in itertools.pairwise(bounds)]
    order = rng.permutation(rows)
    shards = np.searchsorted(bounds, order, side="right").astype(np.uint32) - 1
    found = WindowRows(shards, order - np.array(bounds)[shards], parts)
    for begin, end in ((0, rows), (17, 17), (rows - 1, rows), (1001, 2222)):
        out = {name: np.empty((end - begin, *column.shape[1:]), column.dtype) for name, column in kinds.items()}
        found.gather(begin, end, out)
        for name, column in kinds.items():
            assert np.array_equal(out[name], column[order[begin:end]]), name
    text = np.empty(rows, object)
    WindowRows(shards, order - np.array(bounds)[shards], [{"text": part["text"]} for part in parts]).gather(
        0, rows, {"text": text}
    )
    assert np.array_equal(text, kinds["text"][order])


def test_shard_with_missing_rows_is_named() -> None:
    class Cut(Numbered):
        def read(self, shard: int) -> dict[str, NDArray[Any]]:
            return {name: column[:2299] if shard == 3 else column for name, column in super().read(shard).items()}

    order, rows = sampler(10_000), RowGatherer(Cut())
    with pytest.raises(StorageError, match="part 3 of the data has 2299 rows, but had at least 2300"):
        rows.gather_batches([order.next_pieces()])
    rows.close()


def test_array_memory_is_reused_only_when_unreferenced() -> None:
    pool, like = ArrayPool(), np.zeros((1, 3), np.float32)
    first = pool.empty(1000, like)
    reference, place = first[5:6], first.ctypes.data
    assert first.shape == (1000, 3) and place % 64 == 0
    del first
    assert pool.empty(1000, like).ctypes.data != place  # a view is left
    del reference
    assert pool.empty(900, like).ctypes.data == place
