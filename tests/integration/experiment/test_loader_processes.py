"""Tests of PyTorch loader processes in workers of a group: each reads its worker's share, and ends with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed
from tests.helpers.cluster.workloads import WAIT_S, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.variant]  # of integration/training/test_rows_for_torch.py, in a run
ROWS = 103


@pytest.fixture
def path(tmp_path: Path) -> str:
    pq.write_table(pa.table({"id": np.arange(ROWS)}), tmp_path / "rows.parquet", row_group_size=17)
    return str(tmp_path / "rows.parquet")


def ended(folder: Path) -> bool:
    return not any(psutil.pid_exists(int(one.name.split("-")[1])) for one in folder.glob("process-*"))


def test_forked_loader_processes_read_the_share_of_their_worker(path: str, store: Path, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train() -> dict[str, Any]:
        import numpy as np
        import torch

        import hopsml

        def note(batch: dict[str, Any]) -> dict[str, Any]:  # which could not be sent to a process
            Path(folder, f"process-{os.getpid()}").touch()
            return batch

        def ids(batches: Any) -> list[list[int]]:
            return [batch["id"].tolist() for batch in batches]

        hopsml.barrier()  # the group's threads are there
        rows = hopsml.data.parquet(path).batch(16).shuffle(seed=1, window=20)
        loader = torch.utils.data.DataLoader(
            rows.torch(), batch_size=None, num_workers=2, persistent_workers=True, collate_fn=note
        )
        found = [*ids(loader), *ids(loader)]
        assert found == ids(rows.repeat(2))
        total = hopsml.all_reduce(np.bincount(np.concatenate(found).astype(int), minlength=ROWS), "sum")
        return {"least": int(total.min()), "most": int(total.max())}

    run = experiment.torch(train, num_workers=2, progress=False)
    assert (run.metrics["least"], run.metrics["most"]) == (2, 2)
    assert len(list(tmp_path.glob("process-*"))) == 4
    wait_until(lambda: ended(tmp_path), "the processes' ends")


def test_loader_processes_end_with_a_killed_worker(path: str, store: Path, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train() -> None:
        import tempfile

        import torch

        import hopsml

        tempfile.tempdir = folder  # Python's multiprocessing leaves one there where it is killed

        def note(batch: dict[str, Any]) -> dict[str, Any]:
            Path(folder, f"process-{os.getpid()}").touch()
            return batch

        rows = hopsml.data.parquet(path).batch(4)
        for _ in torch.utils.data.DataLoader(rows.torch(), batch_size=None, num_workers=2, collate_fn=note):
            if len(list(Path(folder).glob("process-*"))) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerFailed):
        experiment.torch(train, num_workers=1, progress=False, start_timeout=WAIT_S)
    assert len(list(tmp_path.glob("process-*"))) == 2
    wait_until(lambda: ended(tmp_path), "the processes' ends")
