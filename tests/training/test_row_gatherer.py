"""Chunks hold the rows that their batches ask for, in that order; memory is used again once it is free."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hopsml.training.data import row_gatherer
from hopsml.training.data.array_pool import ArrayPool
from hopsml.training.data.batch_reader import BatchReader
from hopsml.training.data.row_gatherer import RowGatherer
from hopsml.training.data.shard_order import KnownShards
from hopsml.training.data.shard_sampler import ShardSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

pytestmark = pytest.mark.fast
ROWS = (700, 1, 0, 2300, 1500)


class Numbered:
    """Shards whose rows are numbered through."""

    shards, row_bytes = ROWS, 4008.0

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        ids = np.arange(sum(ROWS[:shard]), sum(ROWS[: shard + 1]))
        return {"id": ids, "wide": np.repeat(ids.astype(np.float32)[:, None], 1000, axis=1)}


def sampler(window: int) -> ShardSampler:
    return ShardSampler(KnownShards(ROWS), 512, 5, epochs=2, first_epoch=0, window=window, drop_last=False)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(row_gatherer, "_FEW", 100)
    monkeypatch.setattr(row_gatherer.os, "sched_getaffinity", lambda _: set(range(request.param)))
    yield request.param
    assert not [one.name for one in threading.enumerate() if one.name.startswith("hopsml-gather")]


@pytest.mark.parametrize("window", [0, 300, 1000, 10_000])
def test_rows_lie_in_their_order(threads: int, window: int) -> None:
    source, order, seen = Numbered(), sampler(window), list[int]()
    rows = RowGatherer(source)
    while not order.is_exhausted:
        batches = [order.next_pieces()]
        while len(batches) < 3 and not order.is_exhausted:
            batches.append(order.next_pieces())
        chunk = rows.chunk(batches)
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
            thread.join(10)


def test_memory_is_used_again_only_when_nobody_refers_to_it() -> None:
    pool, like = ArrayPool(), np.zeros((1, 3), np.float32)
    first = pool.empty(1000, like)
    kept, place = first[5:6], first.ctypes.data
    assert first.shape == (1000, 3) and place % 64 == 0
    del first
    assert pool.empty(1000, like).ctypes.data != place  # a view is left
    del kept
    assert pool.empty(900, like).ctypes.data == place
