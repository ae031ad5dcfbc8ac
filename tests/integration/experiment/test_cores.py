"""Tests of exclusive cores of a run's workers: what they observe, and release at their end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from tests.helpers import clock
from tests.helpers.clock import END_S

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="it says what becomes of two cores"),
]
WAIT_S = 60
VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


def read_affinities(meet: bool = True) -> dict[str, Any]:
    """Return what all workers see: own affinity, a child's affinity, the affinity set by the user, thread variables."""
    import os
    import subprocess
    import sys

    import numpy as np

    import hopsml

    own = sorted(os.sched_getaffinity(0))
    child = subprocess.check_output([sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"])
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    mask = [sum(1 << number for number in cores) for cores in (own, map(int, child.split()), os.sched_getaffinity(0))]
    masks = hopsml.all_gather(np.array(mask)) if meet else [mask]
    return {"masks": np.array(masks).tolist(), "threads": [os.environ.get(name) for name in VARIABLES]}


def seen(workers: int, **options: Any) -> dict[str, Any]:
    run = experiment.submit(read_affinities, num_workers=workers, progress=False, **options)
    return dict(run.result(END_S).value)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "HOPSML_CORES"):
        monkeypatch.delenv(name, raising=False)


def seen_without_other_workers(**options: Any) -> dict[str, Any]:
    """Call ``seen(2)`` again while workers of other tests hold cores of this machine."""
    deadline = clock.awake() + WAIT_S
    while [3, 3, 3] in (found := seen(2, **options))["masks"] and clock.awake() < deadline:
        pass
    return found


def test_two_workers_are_pinned_to_one_core_each(store: Path) -> None:
    for _ in range(2):  # the first run gives them back
        found = seen_without_other_workers()
        assert sorted(found["masks"]) == [[1, 1, 3], [2, 2, 3]]
        assert found["threads"] == ["1"] * 3


def test_three_workers_on_two_cores_are_not_pinned(store: Path) -> None:
    assert seen(3) == {"masks": [[3, 3, 3]] * 3, "threads": ["1"] * 3}


@pytest.mark.parametrize("by", ["environment", "argument"])
def test_core_pinning_can_be_disabled(store: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "environment":
        monkeypatch.setenv("HOPSML_CORES", "0")
    found = seen(2, **({"environment": {"HOPSML_CORES": "0"}} if by == "argument" else {}))
    assert found == {"masks": [[3, 3, 3]] * 2, "threads": [None] * 3}


def test_single_worker_uses_all_cores(store: Path) -> None:
    assert seen(1, args={"meet": False}) == {"masks": [[3, 3, 3]], "threads": [None] * 3}
