"""Lanes end to end on this machine: one trial after another, in used and in fresh processes; harm of every kind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import hopsml
from hopsml.errors import TrialStopped
from hopsml.search.events import Reported
from tests.cluster.workloads import WAIT_S, wait_until
from tests.experiment.conftest import store
from tests.experiment.lanes_kit import bench

pytestmark = pytest.mark.fast
__all__ = ["store"]


def test_one_process_carries_out_trial_after_trial_and_a_fresh_one_where_it_is_asked_for(store: Path) -> None:
    def train(x: int) -> dict[str, Any]:
        print(f"x is {x}")
        return {"score": 2 * x, "pid": os.getpid()}

    with bench(train) as found:
        lane = found.joined()
        trials = [found.give(lane, {"x": number}, metric="score", isolated=number in (2, 3)) for number in range(6)]
        ends = [found.ended(trial) for trial in trials]
        assert [end.how for end in ends] == ["finished"] * 6, ends
        assert [end.value for end in ends] == [0, 2, 4, 6, 8, 10]
        pids = [end.outputs["pid"] for end in ends]
        assert pids[0] == pids[1] and pids[4] == pids[5] and len(set(pids)) == 4
        folder = found.folder / "trials" / "t3"
        assert (folder / "output.log").read_text() == "x is 3\n"
        assert json.loads((folder / ".hparams.json").read_text()) == {"x": 3}
        assert json.loads((folder / ".outputs.json").read_text())["score"] == 6
        assert (folder / ".metric").read_text() == "6.0"
        record = json.loads((folder / "trial.json").read_text())
        assert record["params"] == {"x": 3} and record["status"] == "FINALIZED" and record["final_metric"] == 6
        found.lanes.close({"score": 10})
        assert found.over().error is None
        result = found.lanes.run.result(WAIT_S)
        assert result.metrics["score"] == 10
