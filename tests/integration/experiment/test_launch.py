"""Tests of ``launch``: one worker for each combination, as many at a time as slots exist."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment, hdfs
from hopsml.errors import ArgumentError, PathNotFound, ResultsNotStored, RunCancelled, StorageUnavailable, WorkerFailed
from hopsml.experiment import repeat
from hopsml.storage import mailbox
from hopsml.storage.run_dir import RunDir
from tests.helpers.cluster import workloads
from tests.helpers.cluster.workloads import living, traces, wait_until
from tests.helpers.local_application import SLOTS, take_left_files

pytestmark = pytest.mark.local


def add(a: int, b: int = 0) -> dict[str, Any]:
    return {"sum": a + b, "config": "TF_CONFIG" in os.environ}


def launch(*positional: Any, **named: Any) -> experiment.Result:
    return experiment.launch(*positional, progress=False, **named)


def states(store: Path) -> list[str]:
    return [json.loads(path.read_text())["state"] for path in sorted(store.glob("Experiments/*/*/status.json"))]


def test_launch_without_a_table_runs_the_function_once(store: Path) -> None:
    logdir, metrics = launch(lambda: 3.5)
    assert metrics["metric"] == 3.5 and logdir.startswith(f"file://{store}/Experiments/")


def test_launch_of_one_combination_returns_its_result(store: Path) -> None:
    logdir, metrics = launch(add, {"a": [1], "b": [5]})
    assert metrics["sum"] == 6 and metrics["config"] is False  # a worker alone needs no TF_CONFIG
    assert logdir.endswith("/events")


def test_launch_zips_lists_longer_than_the_slot_count(store: Path) -> None:
    count = 2 * SLOTS + 1
    result = launch(add, args_dict={"a": list(range(count)), "b": [10 * k for k in range(count)]})
    logdir, metrics = result
    assert metrics is None and logdir == result.run_dir == f"file://{store}/Experiments/{result.run_id}"
    assert [run.metrics["sum"] for run in result.runs] == [11 * k for k in range(count)]
    assert [run.run_dir for run in result.runs] == [f"{logdir}/a={k}&b={10 * k}" for k in range(count)]
    assert states(store) == ["FINISHED"] * count


def test_launch_records_several_combinations_as_one_experiment(store: Path) -> None:
    def work(a: int, b: str) -> dict[str, Any]:
        print("working", a)
        return {"sum": a, "id": os.environ["ML_ID"]}

    result = launch(work, {"a": [1, 1, 2], "b": ["x", "x", "y/z"]}, "several", False, "text", "sum")
    (root,) = store.glob("Experiments/*")
    assert result.run_dir == f"file://{root}"
    folders = ["a=1&b=x", "a=1&b=x.2", "a=2&b=y%2Fz"]
    assert sorted(path.name for path in root.iterdir() if "=" in path.name) == folders
    summary = json.loads((root / ".summary.json").read_text())["combinations"]
    assert [one["parameters"] for one in summary] == [{"a": 1, "b": "x"}, {"a": 1, "b": "x"}, {"a": 2, "b": "y/z"}]
    assert [one["outputs"]["sum"] for one in summary] == [1, 1, 2]
    record, status = (json.loads((root / name).read_text()) for name in ("run.json", "status.json"))
    assert record["name"] == "several" and record["description"] == "text" and record["combinations"] == folders
    assert record["arguments"] == {"a": [1, 1, 2], "b": ["x", "x", "y/z"]}
    assert status["state"] == "FINISHED" and len(status["workers"]) == 3
    assert (root / "environment.json").exists()
    for name, run in zip(folders, result.runs, strict=True):
        assert json.loads((root / name / ".hparams.json").read_text()) == {"a": run.metrics["sum"], "b": run_b(name)}
        assert json.loads((root / name / ".outputs.json").read_text())["id"] == root.name  # as published code reads it
        assert (root / name / "code" / "function.pickle").exists()
        assert "working" in (root / name / "logs" / "g0-rank0.log").read_text()
    with pytest.raises(ArgumentError, match="several combinations; give the folder of one of them"):
        repeat.build(result)
    assert [run["sum"] for run in json.loads(result.json())["runs"]] == [1, 1, 2]
    assert result.summary().count("state  ") == 3 and result.summary().endswith(result.run_dir)
    again = repeat.rerun(result.runs[2], progress=False)
    assert again.result.metrics["sum"] == 2


def run_b(name: str) -> str:
    return "y/z" if "y" in name else "x"


def test_store_outage_at_the_end_does_not_lose_the_results_of_a_launch(
    store: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def away(self: RunDir, record: Any) -> bool:
        if "=" not in self.url:  # of the whole
            raise StorageUnavailable("hdfs://there", "it is away")
        return whole_end(self, record)

    whole_end = RunDir.write_status_once
    monkeypatch.setattr(RunDir, "write_status_once", away)
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "0.1")
    with pytest.raises(ResultsNotStored, match="the final state is missing: ") as raised:
        launch(add, {"a": [1, 2]})
    result = raised.value.result
    assert [run.metrics["sum"] for run in result.runs] == [1, 2]
    assert list(result.unrecorded) == ["status.json"] and "could not be written" in result.summary()
    assert len(take_left_files()) == 1


def test_launch_accepts_old_argument_names(store: Path) -> None:
    result = launch(map_fun=add, args_dict={"a": [2]}, name="old", versioned_resources=[])
    assert result.metrics["sum"] == 2
    assert launch(train_fn=add, args_dict={"a": [3]}).metrics["sum"] == 3
    record = json.loads((Path(result.run_dir.removeprefix("file://")) / "run.json").read_text())
    assert record["name"] == "old" and record["arguments"] == {"a": 2}


def test_failed_combination_ends_the_others(store: Path, tmp_path: Path) -> None:
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
    (status,) = (json.loads(path.read_text()) for path in store.glob("Experiments/*/status.json"))
    assert status["state"] == "FAILED" and status["raised"] and "ValueError: combination 0" in status["error"]


@pytest.mark.parametrize("combinations", [pytest.param([1], marks=pytest.mark.variant), [1, 2]])
def test_versioned_resources_are_copied_into_the_run_directory(store: Path, combinations: list[int]) -> None:
    hdfs.dump("x,y\n", "Resources/data.csv")
    hdfs.dump("1", "Resources/folder/part")
    given = ["Resources/data.csv", f"{hdfs.project_path()}Resources/folder"]
    result = experiment.launch(add, {"a": combinations}, "old", False, given, "text")
    hdfs.dump("changed", "Resources/data.csv")
    run = Path(result.run_dir.removeprefix("file://"))
    copies = {
        path.relative_to(run).as_posix(): path.read_text() for path in run.rglob("resources/**/*") if path.is_file()
    }
    assert copies == {"resources/data.csv": "x,y\n", "resources/folder/part": "1"}
    record = json.loads((run / "run.json").read_text())
    assert record["resources"] == {name: f"{hdfs.project_path()}Resources/{name}" for name in ("data.csv", "folder")}
    assert record["description"] == "text"


def test_missing_resources_are_refused_before_the_start(store: Path) -> None:
    hdfs.dump("x", "Resources/data.csv")
    hdfs.dump("x", "Other/data.csv")
    for given, error in ((["Resources/none"], PathNotFound), (["Resources/data.csv", "Other/data.csv"], ArgumentError)):
        for call in (
            lambda given=given: experiment.launch(add, {"a": [1]}, versioned_resources=given),
            lambda given=given: experiment.launch(add, {"a": [1, 2]}, versioned_resources=given),
            lambda given=given: experiment.grid_search(add, {"a": [1, 2]}, versioned_resources=given),
            lambda given=given: experiment.begin("n", versioned_resources=given),
        ):
            with pytest.raises(error, match="versioned_resources"):
                call()
    assert not list(store.glob("Experiments/*"))


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.variant), 2])
def test_metric_key_absent_from_the_result_is_noted(
    store: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    result = launch(add, {"a": list(range(count))}, "name", False, None, "accuracy")
    assert result.state == "FINISHED"
    assert "metric_key='accuracy' is not among the returned values" in result.summary() + capsys.readouterr().out
    stored = [json.loads(path.read_text()) for path in store.glob("Experiments/**/.outputs.json")]
    assert sorted(one["sum"] for one in stored if "sum" in one) == list(range(count))


def test_cancel_request_ends_all_combinations(store: Path, tmp_path: Path) -> None:
    """``hopsml runs cancel`` of the whole, whose driver waits for its parts; those that wait for a slot do not begin."""
    folder = str(tmp_path)

    def work(number: int) -> None:
        Path(folder, str(number)).touch()
        time.sleep(600)

    def ask() -> None:
        wait_until(lambda: Path(folder, "0").exists(), "the first combination")
        (record,) = [path.parent for path in store.glob("Experiments/*/run.json")]
        mailbox.write_cancel_request(RunDir(f"file://{record}"), "not wanted")

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(RunCancelled, match="not wanted"):
        launch(work, {"number": list(range(SLOTS + 2))})
    asking.join()
    (status,) = (json.loads(path.read_text()) for path in store.glob("Experiments/*/status.json"))
    assert status["state"] == "CANCELLED"
    assert not Path(folder, str(SLOTS + 1)).exists()
