"""``launch``: one worker for each combination, as many at a time as there are slots."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed
from tests.cluster import workloads
from tests.cluster.workloads import living, traces, wait_until
from tests.experiment.conftest import SLOTS

pytestmark = pytest.mark.fast


def add(a: int, b: int = 0) -> dict[str, Any]:
    return {"sum": a + b, "config": "TF_CONFIG" in os.environ}


def launch(*positional: Any, **named: Any) -> experiment.Result:
    return experiment.launch(*positional, progress=False, **named)


def states(store: Path) -> list[str]:
    return [json.loads(path.read_text())["state"] for path in sorted(store.glob("Experiments/*/status.json"))]


def test_without_a_table_the_function_runs_once(store: Path) -> None:
    logdir, metrics = launch(lambda: 3.5)
    assert metrics["metric"] == 3.5 and logdir.startswith(f"file://{store}/Experiments/")


def test_one_combination_gives_its_own_result(store: Path) -> None:
    logdir, metrics = launch(add, {"a": [1], "b": [5]})
    assert metrics["sum"] == 6 and metrics["config"] is False  # a worker alone needs no TF_CONFIG
    assert logdir.endswith("/events")


def test_lists_are_zipped_and_may_be_more_than_the_slots(store: Path) -> None:
    count = 2 * SLOTS + 1
    result = launch(add, args_dict={"a": list(range(count)), "b": [10 * k for k in range(count)]})
    logdir, metrics = result
    assert metrics is None and logdir == f"file://{store}/Experiments"
    assert [run.metrics["sum"] for run in result.runs] == [11 * k for k in range(count)]
    assert len({run.run_dir for run in result.runs}) == count
    assert states(store) == ["FINISHED"] * count


def test_old_spellings_are_accepted(store: Path) -> None:
    result = launch(map_fun=add, args_dict={"a": [2]}, name="old", versioned_resources=["hdfs:///Resources/x"])
    assert result.metrics["sum"] == 2
    assert launch(train_fn=add, args_dict={"a": [3]}).metrics["sum"] == 3
    record = json.loads((Path(result.run_dir.removeprefix("file://")) / "run.json").read_text())
    assert record["name"] == "old" and record["arguments"] == {"a": 2}


def test_a_combination_that_fails_ends_the_others(store: Path, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def work(number: int) -> None:
        if number == 0:
            workloads.wait_for_files(folder, "sleeps")
            raise ValueError("combination 0")
        workloads.leave_trace(folder)
        Path(folder, "sleeps").touch()
        time.sleep(600)

    with pytest.raises(WorkerFailed, match="ValueError: combination 0"):
        launch(work, {"number": [0, 1]})
    found = traces(tmp_path, 1)[0]
    wait_until(lambda: not living([found.worker, found.child]), "the other's end")
    assert states(store) == ["FAILED", "CANCELLED"]
