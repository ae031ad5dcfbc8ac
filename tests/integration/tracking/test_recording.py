"""Tests of records of local runs: complete when status.json exists, cheap to start, never the cause of a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml import experiment, tracking
from hopsml.core import callbacks
from hopsml.errors import WorkerFailed
from hopsml.experiment import run_role
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import inputs, provenance
from hopsml.tracking.record import RunRecordWriter
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.local

WAIT_S = 60.0


def train(lr: float = 0.1, api_key: str = "") -> dict[str, Any]:
    tracking.data(__file__)
    return {"lr": lr, "seed": tracking.seed(), "numbers": [tracking.seed() + 1]}


def submit(**options: Any) -> experiment.Run:
    return experiment.submit(train, progress=False, num_workers=2, **options)


def folder_of(run: experiment.Run) -> Path:
    return Path(run.run_dir.removeprefix("file://"))


def test_record_is_complete_when_the_run_has_ended(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("abc")
    monkeypatch.setattr(inputs, "_of_driver", {})
    tracking.data(tmp_path / "input")
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    monkeypatch.setenv("HOPSML_STORE_PASSWORD", "geheim")
    run = submit(args={"lr": 0.5, "api_key": "geheim"}, environment={"MY_TOKEN": "geheim", "MODE": "fast"})
    result = run.result(END_S)
    folder = folder_of(run)
    record, around, worker = (json.loads((folder / f"{n}.json").read_text()) for n in ("run", "environment", "worker"))
    assert record["seed"] == result.metrics["seed"] and result.metrics["numbers"] == [record["seed"] + 1]
    assert record["driver_process"]["pid"] == os.getpid()
    assert record["payload_bytes"] == (folder / "code" / "function.pickle").stat().st_size
    assert record["spec"]["environment"]["MODE"] == "fast"
    assert around["packages"]["pytest"] == pytest.__version__
    assert around["environment"]["TF_DETERMINISTIC_OPS"] == "1"
    assert around["inputs"][0]["bytes"] == 3 and around["problems"] == []
    assert worker["hardware"]["cores"] and worker["python"]["version"] == record["python"]
    noted = (folder / "inputs.jsonl").read_text().splitlines()
    assert [json.loads(line)["url"] for line in noted] == [__file__], "noted by the chief alone"
    written = "".join(path.read_text() for path in folder.rglob("*.json*"))
    assert "geheim" not in written and record["arguments"]["lr"] == 0.5


def test_given_seed_is_used_by_every_worker(store: Path) -> None:
    assert submit(environment={"HOPSML_SEED": "17"}).result(END_S).metrics["seed"] == 17


def test_record_of_a_failed_run_is_complete(store: Path) -> None:
    def fails() -> None:
        raise ValueError("no")

    run = experiment.submit(fails, progress=False, num_workers=1)
    with pytest.raises(WorkerFailed):
        run.result(END_S)
    assert (folder_of(run) / "environment.json").exists() and (folder_of(run) / "status.json").exists()


def test_launch_and_training_do_not_wait_for_the_record(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the run's end waits: here git blocks until the test continues it, and all else completes before.

    Work of the caller is measured in processor time, on which other load of this machine has no influence.
    """
    begun, pipe, trained = tmp_path / "begun", tmp_path / "told", tmp_path / "trained"
    os.mkfifo(pipe)
    (tmp_path / "git").write_text(f"#!/bin/bash\necho $$ > {begun}.part; mv {begun}.part {begun}; read < {pipe}\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(provenance, "GIT_TIMEOUT_S", 2 * WAIT_S)
    monkeypatch.setattr(provenance, "_git_known", {})
    submit().result(END_S)  # starts the agents
    monkeypatch.setattr(provenance, "script_path", lambda: Path(__file__))  # pytest itself is an installed program
    started = time.thread_time()
    run = experiment.submit(Path.touch, args={"self": trained}, progress=False, num_workers=2)
    worked = time.thread_time() - started
    wait_until(begun.exists, "git")
    wait_until(trained.exists, "the training")
    assert psutil.Process(int(begun.read_text())).cmdline()[1] == str(tmp_path / "git"), "it has not ended yet"
    assert not run.done() and not (folder_of(run) / "environment.json").exists()
    pipe.write_text("go on\n")
    run.result(END_S)
    assert (folder_of(run) / "code" / "script.py").exists() and (folder_of(run) / "environment.json").exists()
    assert worked < 0.1, "seconds of the caller's own work, which is 5 ms"


def test_unwritable_record_is_reported_and_does_not_fail_the_run(
    store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_run_dir = run_role.create_run_dir

    def create_and_bar(*arguments: Any, **named: Any) -> RunDir:
        directory = create_run_dir(*arguments, **named)
        Path(directory.code.removeprefix("file://")).write_text("a file where the folder should be")
        return directory

    monkeypatch.setattr(run_role, "create_run_dir", create_and_bar)
    run = submit()
    assert run.result(END_S).metrics["lr"] == 0.1
    problems = json.loads((folder_of(run) / "environment.json").read_text())["problems"]
    assert any("the function" in problem for problem in problems)
    assert callbacks.RECORDS.wait_until_delivered(WAIT_S)
    assert "is incomplete" in caplog.text


def test_failing_collector_does_not_affect_the_others(tmp_path: Path) -> None:
    directory = RunDir(f"file://{tmp_path}/app_1")
    more = {"broken": lambda: 1 / 0, "works": lambda: {"a": 1}}
    recording = RunRecordWriter(directory, b"payload", more=more).start()
    recording.join()
    record = directory.read_json(directory.environment_json)
    assert (record["broken"], record["works"]) == (None, {"a": 1})
    assert "ZeroDivisionError" in record["problems"][0]


def test_joining_a_recording_has_a_time_limit(tmp_path: Path) -> None:
    gate = threading.Event()
    recording = RunRecordWriter(RunDir(f"file://{tmp_path}/app_1"), b"", more={"slow": gate.wait}).start()
    recording.join(0.2)
    assert recording.problems == ["not complete after 0.2 s"]
    gate.set()
    recording.join()


def test_script_and_git_state_are_recorded_in_the_run_directory(tmp_path: Path) -> None:
    """A script in a git repository is run as a subprocess, as a user would."""
    project = tmp_path / "project"
    repository = tmp_path / "repository"
    repository.mkdir()
    script = (
        "import hopsml\ndef train():\n    return 3\n"
        "if __name__ == '__main__':\n    print(hopsml.experiment.launch(train, progress=False).run_dir)\n"
    )
    (repository / "job.py").write_text("# old\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(repository), *identity, *command], check=True)
    (repository / "job.py").write_text(script)
    environment = {
        **os.environ,
        "HOPSML_PROJECT_URL": f"file://{project}",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "HOPSML_PROFILE": "local",
    }
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=repository, env=environment, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip().removeprefix("file://"))
    assert (folder / "code" / "script.py").read_text() == script
    assert "-# old\n+import hopsml" in (folder / "code" / "git.diff").read_text()
    record = json.loads((folder / "environment.json").read_text())
    assert record["code"]["git"]["dirty"] and record["code"]["script"]["path"] == str(repository / "job.py")
