"""Tests of recorded work of the driver, and of what a scheduler learns about a run that has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.cli import runs
from hopsml.core import profiles
from hopsml.errors import ArgumentError
from hopsml.storage import run_dir
from hopsml.tracking import provenance
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    return tmp_path


def read(run_dir: str, name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads(Path(run_dir.removeprefix("file://"), name).read_text())
    return content


def test_recorded_driver_work_is_a_run(project, capsys):
    with experiment.recorded("etl", args={"parts": 2, "password": "hunter2"}) as run:
        Path(run.path("data").removeprefix("file://")).mkdir()
        run.metrics["rows"] = 3
        assert not Path(run.path("status.json").removeprefix("file://")).exists()
    assert read(run.run_dir, "status.json")["state"] == "FINISHED"
    assert read(run.run_dir, ".outputs.json") == {"rows": 3}
    record = read(run.run_dir, "run.json")
    assert (record["name"], record["verb"], record["workers"]) == ("etl", "recorded", 0)
    assert "hunter2" not in json.dumps(record)
    assert read(run.run_dir, "environment.json")["packages"]
    assert json.loads(run.json()) == {"rows": 3, "run_id": run.run_id, "run_dir": run.run_dir}
    runs.ls(last=5, project=f"file://{project}")
    assert run.run_id in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "state"),
    [(ValueError("no rows"), "FAILED"), (KeyboardInterrupt(), "CANCELLED"), (SystemExit(1), "FAILED")],
)
def test_recorded_run_has_the_error_of_its_work(project, error, state):
    with pytest.raises(type(error)), experiment.recorded("etl") as run:
        raise error
    status = read(run.run_dir, "status.json")
    assert status["state"] == state and type(error).__name__ in str(status["error"])


def test_job_record_contains_the_last_started_run(project, monkeypatch):
    record = f"file://{project}/told/record.json"
    assert run_dir.read_job_record(record) is None
    monkeypatch.setenv(run_dir.JOB_RECORD, record)
    for _ in range(2):
        with experiment.recorded("etl") as run:
            job = run_dir.read_job_record(record)
    assert job is not None and (job["run_dir"], job["run_id"]) == (run.run_dir, run.run_id)
    assert run_dir.JOB_RECORD not in provenance.environment(), "another one each time: two runs do not differ by it"


def test_run_with_workers_is_written_to_the_job_record(project, monkeypatch):
    record = f"file://{project}/record.json"
    monkeypatch.setenv(run_dir.JOB_RECORD, record)
    result = experiment.launch(os.getpid, progress=False, profile="local")
    experiment.shutdown()
    job = run_dir.read_job_record(record)
    assert job is not None and job["run_dir"] == result.run_dir
    assert job["application"] == read(result.run_dir, "run.json")["application"]


def test_local_slots_variable_sets_the_number_of_local_workers(monkeypatch):
    monkeypatch.setenv("HOPSML_LOCAL_SLOTS", "3")
    assert profiles.load("local").local_slots == 3
    assert profiles.load("yarn").local_slots is None
    monkeypatch.setenv("HOPSML_LOCAL_SLOTS", "many")
    with pytest.raises(ArgumentError, match="a whole number, 1 or more"):
        profiles.load("local")


def test_begin_and_end_record_what_the_driver_does_between_them(project: Path) -> None:
    with pytest.raises(RuntimeError, match=r"call experiment\.begin"):
        experiment.end()
    run_dir = experiment.begin("pi", description="by hand")
    with pytest.raises(RuntimeError, match="already running"):
        experiment.begin()
    experiment.end(3.14)
    assert read(run_dir, "status.json")["state"] == "FINISHED"
    assert read(run_dir, ".outputs.json") == {"metric": 3.14} and read(run_dir, "run.json")["name"] == "pi"
    with pytest.raises(ArgumentError, match=r"begin\(local_logdir=True\)"):
        experiment.begin(local_logdir=True)
    assert experiment.begin("again") != run_dir
    experiment.end()


def test_begin_without_end_is_cancelled_at_exit(project: Path) -> None:
    code = "from hopsml import experiment; print(experiment.begin('left open'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=END_S)
    status = read(done.stdout.strip(), "status.json")
    assert status["state"] == "CANCELLED" and "without experiment.end()" in str(status["error"])


def test_removed_verb_names_point_to_their_replacement() -> None:
    for name in ("allreduce", "train_and_evaluate"):
        with pytest.raises(
            AttributeError, match=f"experiment.{name} does not exist; use hopsml.experiment.collective_all_reduce"
        ):
            getattr(experiment, name)
    with pytest.raises(TypeError, match=r"the training function must be a function, not a path.*hvd.init"):
        experiment.horovod("/Projects/p/Jupyter/hvd.ipynb")
    with pytest.raises(TypeError, match="the training function must be a function, not a path"):
        experiment.horovod(notebook="hvd.ipynb")
    with pytest.raises(TypeError, match="the training function is 3"):
        experiment.horovod(3)
