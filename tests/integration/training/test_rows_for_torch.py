"""Tests of ``rows.torch()`` in PyTorch's loader: each row once a pass, a new order, with processes or not."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopsml
from hopsml.errors import ArgumentError, StorageError
from tests.helpers.clock import END_S
from tests.helpers.training import record_files
from tests.helpers.training.jobs import loader_processes
from tests.helpers.training.jobs.loader_processes import ids, loader

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes")]


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """100 rows in four parts, as seven batches."""
    pq.write_table(pa.table({"id": np.arange(100), "text": ["a"] * 100}), tmp_path / "rows.parquet", row_group_size=30)
    return hopsml.data.parquet(str(tmp_path / "rows.parquet")).batch(16).shuffle(seed=1, window=40)


def test_each_pass_of_a_loader_is_a_new_epoch_with_another_order(rows: Any) -> None:
    batches = loader(rows)
    passes = [ids(batches) for _ in range(3)]
    assert len(batches) == len(rows) == 7
    assert all(sorted(one) == list(range(100)) for one in passes)
    assert [*passes[0], *passes[1], *passes[2]] == ids(rows.repeat(3))


def test_repeating_data_set_continues_with_later_epochs(rows: Any) -> None:
    batches = loader(rows.repeat(2))
    assert [*ids(batches), *ids(batches)] == ids(rows.repeat(4))


# ---------------------------------------------------------------------------------------------- with processes


def parquet(folder: Path) -> Any:
    for number in range(3):
        file = folder / f"rows-{number}.parquet"
        pq.write_table(pa.table({"id": np.arange(number * 30, number * 30 + 30)}), file, row_group_size=20)
    return hopsml.data.parquet(str(folder))


def tfrecords(folder: Path) -> Any:
    for number in range(3):
        records = ({"id": n, "x": [float(n)] * 3} for n in range(number * 30, number * 30 + 30))
        record_files.write(folder / f"rows-{number}.tfrecord", records)
    return hopsml.data.tfrecords(str(folder))


def files(folder: Path) -> Any:
    for number in range(90):
        (folder / f"{number:02d}.txt").write_text(str(number))
    return hopsml.data.files(str(folder))


def content(batches: Any) -> list[list[int]]:
    """Each batch's rows by number, as whole files have them in their content."""
    return [[int(one) for one in batch.get("id", batch.get("content", ()))] for batch in batches]


KINDS = [
    pytest.param(kind, count, marks=[] if kind is parquet or count == 2 else pytest.mark.variant)
    for kind in (parquet, tfrecords, files)
    for count in (1, 2, 3)
]


@pytest.mark.parametrize(("kind", "processes"), KINDS)
def test_any_number_of_loader_processes_gives_the_same_batches_in_order(
    tmp_path: Path, kind: Callable[[Path], Any], processes: int
) -> None:
    rows = kind(tmp_path).batch(8).shuffle(seed=1, window=40)  # twelve batches: 3 have four each, the last one is short
    wanted = content(rows.repeat(3))
    batches = loader(rows, num_workers=processes)
    assert [*content(batches), *content(batches), *content(batches)] == wanted


@pytest.mark.parametrize("size", [80, 45, *(pytest.param(size, marks=pytest.mark.variant) for size in (90, 30))])
def test_batches_fewer_than_or_indivisible_by_loader_processes_are_complete(tmp_path: Path, size: int) -> None:
    rows = parquet(tmp_path).batch(size)
    assert content(loader(rows, num_workers=3)) == content(rows)


def test_persistent_loader_processes_continue_with_the_next_epoch(rows: Any) -> None:
    batches = loader(rows, num_workers=2, persistent_workers=True, collate_fn=loader_processes.with_pid)
    passes = [list(batches) for _ in range(3)]
    assert len({batch["pid"] for one in passes for batch in one}) == 2
    assert [one for each in passes for one in ids(each)] == ids(rows.repeat(3))
    del batches
    gc.collect()


def test_passes_with_and_without_loader_processes_are_consecutive(rows: Any) -> None:
    import torch

    data = rows.torch()

    def loaded(processes: int) -> list[int]:
        return ids(torch.utils.data.DataLoader(data, batch_size=None, num_workers=processes))

    found = [*loaded(2), *loaded(0), *loaded(1), *loaded(0)]
    assert found == ids(rows.repeat(4))


def test_user_seed_and_abandoned_pass_do_not_affect_the_order(rows: Any) -> None:
    import torch

    batches, found = loader(rows, num_workers=2), list[int]()
    for _ in range(3):
        torch.manual_seed(5)
        found += ids(batches)
    for _ in batches:
        break
    gc.collect()
    assert [*found, *ids(batches)] == [*ids(rows.repeat(3)), *ids(rows.repeat(5))[400:]]


def test_loader_processes_alternate_batches(rows: Any) -> None:
    batches = list(loader(rows, num_workers=2, collate_fn=loader_processes.with_pid))
    pids = [batch["pid"] for batch in batches]
    assert len(set(pids)) == 2 and os.getpid() not in pids
    assert pids == [pids[number % 2] for number in range(7)]


def test_loader_process_reads_the_share_of_its_workers_rank(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for place in ((0, 2), (1, 2)):
        monkeypatch.setattr("hopsml.training.collective.rank_and_size", lambda place=place: place)
        alone, shared = loader(rows), loader(rows, num_workers=2)
        found.append([*ids(alone), *ids(alone)])
        assert [*ids(shared), *ids(shared)] == found[-1]
    assert sorted(found[0] + found[1]) == sorted([*range(100)] * 2)


def count_and_error(batches: Any) -> tuple[int, BaseException]:
    """Return the number of batches before an error, and the error."""
    iterator, count = iter(batches), 0
    try:
        for _ in iterator:
            count += 1
    except hopsml.errors.HopsmlError as error:
        return count, error
    finally:
        iterator._shutdown_workers()  # where the error's frames keep it, Python's collector closes its queues before
    raise AssertionError("there was no error")


def test_error_in_a_loader_process_names_column_and_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"price": [1, None, 3]}), tmp_path / "nulls.parquet")
    _, error = count_and_error(loader(hopsml.data.parquet(str(tmp_path)).batch(2), num_workers=2))
    assert isinstance(error, ArgumentError)
    assert re.search(r"(?s)in DataLoader worker process 0.*column 'price' of .*nulls\.parquet.* has 1 null", str(error))


def test_deleted_file_is_named_after_the_batches_before_it(tmp_path: Path) -> None:
    rows = parquet(tmp_path).batch(10)
    (tmp_path / "rows-1.parquet").unlink()
    count, error = count_and_error(loader(rows, num_workers=2, persistent_workers=True))
    assert count == 3 and isinstance(error, StorageError) and "rows-1.parquet" in str(error)


def test_missing_batch_size_is_reported_by_the_loader(tmp_path: Path) -> None:
    _, error = count_and_error(loader(parquet(tmp_path), num_workers=1))
    assert "set it by .batch(global_batch_size)" in str(error)


@pytest.mark.variant
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_and_forkserver_loader_processes_give_the_same_batches(rows: Any, tmp_path: Path, method: str) -> None:
    path = str(tmp_path / "rows.parquet")
    run = subprocess.run(
        [sys.executable, "-m", "tests.helpers.training.jobs.loader_processes", path, method],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=END_S,
    )
    found = json.loads(run.stdout)
    assert found["passes"] == ids(rows.repeat(2)) and found["staying"] == ids(rows.repeat(2))
