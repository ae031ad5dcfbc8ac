"""Tests that Keras's ``fit`` survives the loss of three of four workers in one epoch, at random batches."""

from __future__ import annotations

import math
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.experiment.run import Run
from tests.chaos.runner import OVER, left_over
from tests.helpers.cluster import mending_workload
from tests.helpers.cluster.mending_workload import N_SAMPLES, STEPS, Step, steps_of
from tests.helpers.cluster.workloads import WAIT_S, wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.tensorflow,
    pytest.mark.skipif(OVER == "tensorflow", reason="all begin anew there"),
]
WORKERS = 4
EPOCH = -(-N_SAMPLES // mending_workload.BATCH)
SETTINGS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "16 bits, double-buffered": {"compression": "fp16", "double_buffering": True},
    "16 bits, double-buffered, accumulated": {"compression": "bf16", "double_buffering": True, "accumulate": 2},
    "powersgd": {"compression": "powersgd"},
    "adasum": {"reduction": "adasum"},
}


@pytest.mark.variant  # of one loss, in tests/integration/cluster/test_mending.py
@pytest.mark.parametrize("settings", SETTINGS)
def test_keras_fit_survives_three_losses_in_one_epoch(settings: str, store: Path, tmp_path: Path, played: int) -> None:
    random_source = random.Random(f"{settings} {played}")
    victims, batches = (
        random_source.sample(range(1, WORKERS), 3),
        sorted(random_source.sample(range(EPOCH + 1, 2 * EPOCH - 1), 3)),
    )
    print(f"ranks {victims} are killed behind the steps {batches}")
    run = experiment.submit(
        mending_workload.fit,
        args={"folder": str(tmp_path), "step_s": 0.2},
        min_workers=1,
        max_workers=WORKERS,
        implementation="hopsml",
        progress=False,
        **SETTINGS[settings],
    )
    pids = [_pid(tmp_path, rank) for rank in range(WORKERS)]
    chief = pids[0]
    for world, (rank, step) in enumerate(zip(victims, batches, strict=True)):
        left = WORKERS - world - 1
        _await(run, tmp_path, chief, lambda one, step=step: one.number >= step)  # type: ignore[misc]
        os.kill(pids[rank], signal.SIGKILL)
        _await(run, tmp_path, chief, lambda one, left=left: one.world <= left)  # type: ignore[misc]
        run.resize(left)  # otherwise all processes would restart with the lost worker's agent
    (tmp_path / "hurry").touch()
    value = run.result(WAIT_S).value
    made = steps_of(tmp_path, chief)
    assert [one.number for one in made] == list(range(1, STEPS + 1)), "a step was made twice, or left out"
    assert made[EPOCH - 1].world == WORKERS and made[3 * EPOCH].world == 1
    assert len({one.traces for one in made[EPOCH:]}) == 1, "what was traced did not go on"
    assert value["epochs"] == mending_workload.EPOCHS
    assert all(weights == value["weights"][0] for weights in value["weights"])
    assert math.isfinite(value["val_loss"]) and value["val_loss"] < 1.0  # 3 without any learning
    assert sum("was lost" in note for note in run.state.notes) == 3, run.state.notes
    experiment.shutdown()
    assert not left_over(pids)


def _pid(folder: Path, rank: int) -> int:
    path = folder / f"pid-{rank}-0"
    wait_until(path.exists, f"rank {rank}")
    return int(path.read_text())


def _await(run: Run, folder: Path, pid: int, what: Callable[[Step], bool]) -> None:
    """Wait until the process has made a step that fulfils the condition."""
    wait_until(lambda: any(what(one) for one in steps_of(folder, pid)) or run.done(), "a step", 2 * WAIT_S)
    assert not run.done(), run.state.notes
