"""Tests of runs in a real MLflow server, and during its outage."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.core.processes import processes_with_variable
from hopsml.storage import checkpoints, urls
from hopsml.tracking.mlflow import link, order, publish
from hopsml.tracking.mlflow.entries import KEY_TAG
from hopsml.tracking.mlflow.store import Store
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.leaks import not_of_this_test
from tests.helpers.tracking.mlflow_server import MlflowServer

pytestmark = pytest.mark.mlflow

WAIT_S = 60.0


@pytest.fixture
def tracked(server: MlflowServer, store: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The project, with the tracking URI set and an experiment of the test's own."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # of the test's own client
    monkeypatch.setenv("HOPSML_SYSTEM_METRICS_S", "0.05")
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.setenv(name, "")  # so that the variable is restored even if MLflow changes it
        monkeypatch.delenv(name)
    return store


def train(lr: float = 0.5, steps: int = 3, folder: str = "") -> dict[str, float]:
    """Report each step; with a ``folder``, create ``begun`` there and wait for ``go``."""
    import os

    import hopsml

    for step in range(1, steps + 1):
        hopsml.report(step=step, loss=1 / step if step < steps else math.nan, phase="warm-up")
        if step == 1 and folder:
            Path(folder, "begun").touch()
            wait_until(Path(folder, "go").exists, "the test's word")
    time.sleep(0.2)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return {"accuracy": 1 - lr, "resident_mb": resident}


def submit(function: Any = train, **options: Any) -> experiment.Run:
    return experiment.submit(function, **{"progress": False, "num_workers": 2, **options})


def name_of(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def runs_of(server: MlflowServer, name: str) -> list[Any]:
    """Return the experiment's runs without deleted ones, oldest first."""
    client = server.client()
    found = client.get_experiment_by_name(name)
    return list(client.search_runs([found.experiment_id], order_by=["attributes.start_time"])) if found else []


def history(server: MlflowServer, run_id: str, key: str = "loss") -> list[tuple[int, float]]:
    """Steps and values, NaN as -1."""
    found = server.client().get_metric_history(run_id, key)
    return sorted((row.step, -1.0 if math.isnan(row.value) else row.value) for row in found)


def order_of(run: experiment.Run) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(Path(run.run_dir.removeprefix("file://"), "mlflow.json").read_text())
    return recorded


def is_sent(*runs: experiment.Run) -> bool:
    try:
        return all(order_of(run)["state"] == "sent" for run in runs)
    except FileNotFoundError:  # the sender's process is just starting
        return False


def sync(tracked: Path) -> subprocess.CompletedProcess[str]:
    """``hopsml runs sync``, as a person types it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", "from hopsml.cli import main; main()", "runs", "sync", "--json"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)


LOSS = [(1, 1.0), (2, 0.5), (3, -1.0)]  # what train() reports


def await_note(run: experiment.Run, *words: str) -> None:
    """Wait for a note of this run that holds all these words: notes of other causes, such as a slow disk, may precede it."""
    wait_until(lambda: any(all(word in note for word in words) for note in run.state.notes), f"a note with {words}")


def test_run_is_an_mlflow_child_run_and_refusals_are_noted(
    server: MlflowServer, tracked: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    def exports() -> None:
        import hopsml.cluster.worker.context as worker

        context = worker.current()
        assert context is not None
        (context.export_dir / "model.txt").write_text("weights")

    before = dict(os.environ)
    monkeypatch.setattr("hopsml.tracking.mlflow.link.LINGER_S", 60.0)
    mlflow.set_experiment(name_of(request))
    with mlflow.start_run() as users:
        run = submit(args={"lr": 0.25}, name="digits", description="a test")
        result = run.result(END_S)
        exported = submit(exports, register_as="digits", num_workers=1)
        exported.result(END_S)
        active = mlflow.active_run()
        assert active is not None and active.info.run_id == users.info.run_id, "the user's run is untouched"
        mlflow.log_metric("own", 1.0)
    mlflow.set_tracking_uri(server.uri)
    wait_until(lambda: is_sent(run, exported), "the end in MLflow")
    server.client().delete_experiment(server.client().get_run(users.info.run_id).info.experiment_id)
    refused = submit()
    refused.result(END_S)
    await_note(refused, "deleted")
    experiment.shutdown()

    client = server.client()
    found, other = (client.get_run(order_of(one)["run_id"]) for one in (run, exported))
    assert found.info.status == "FINISHED" and found.data.tags["mlflow.parentRunId"] == users.info.run_id
    assert found.data.params == {"lr": "0.25"}
    tags = found.data.tags
    assert tags["hopsml.run_dir"] == run.run_dir and tags["hopsml.state"] == "FINISHED"
    assert (
        tags["hopsml.code_sha256"]
        == json.loads((tracked / "Experiments" / run.run_id / "run.json").read_text())["code_sha256"]
    )
    assert (
        tags["hopsml.checkpoints"] == f"{run.run_dir}/checkpoints" and tags["mlflow.runName"] == f"digits {run.run_id}"
    )
    assert found.data.metrics["accuracy"] == 0.75
    assert history(server, found.info.run_id) == LOSS
    for rank in (0, 1):
        used = [value for _, value in history(server, found.info.run_id, f"system/rank_{rank}/memory_usage_megabytes")]
        # The kernel may have taken unused pages from it between the two looks; a host has a hundred times as much.
        assert 1 / 4 < max(used) / result.metrics["resident_mb"] < 4, "of this worker, not of the host"
        assert history(server, found.info.run_id, f"system/rank_{rank}/cpu_utilization_percentage")
    artifact = server.folder / "artifacts" / found.info.experiment_id / found.info.run_id / "artifacts" / "hopsml.json"
    assert json.loads(artifact.read_text())["export"] == f"{run.run_dir}/export"
    await_note(exported, "no model 'digits' was registered")  # since MLflow takes no local source
    assert other.info.status == "FINISHED"
    assert order_of(refused)["state"] == "refused"
    assert {name: os.environ.get(name) for name in before} == before


def accuracy_of(folder: Path) -> dict[str, float]:
    return {"accuracy": float((folder / "value").read_text())}


@pytest.mark.variant
def test_evaluation_metrics_are_logged_to_the_evaluated_run(
    server: MlflowServer, tracked: Path, tmp_path: Path
) -> None:
    training = submit(num_workers=1)
    training.result(END_S)
    for step, value in ((10, 0.5), (20, 0.25)):
        (folder := tmp_path / str(step)).mkdir()
        (folder / "value").write_text(str(value))
        checkpoints.commit(folder, urls.join(training.run_dir, "checkpoints"), step)
    wait_until(lambda: is_sent(training), "the training's end in MLflow")
    evaluator = experiment.submit_evaluation(accuracy_of, training, metric="accuracy", progress=False)
    evaluator.result(END_S)
    wait_until(lambda: is_sent(evaluator), "the evaluator's end in MLflow")
    judged, own = (str(order_of(one)["run_id"]) for one in (training, evaluator))
    assert (20, 0.25) in history(server, own, "accuracy")
    assert history(server, judged, "evaluation/accuracy") == [(10, 0.5), (20, 0.25)]
    assert history(server, judged, "evaluation/best_step") == [(10, 10.0), (20, 10.0)]
    assert history(server, judged) == LOSS and server.client().get_run(judged).info.status == "FINISHED"


@pytest.mark.variant
def test_launch_is_a_parent_run_with_children_and_registers_models_once(
    server: MlflowServer, tracked: Path, request: pytest.FixtureRequest
) -> None:
    experiment.launch(train, {"lr": [0.1, 0.2, 0.3]}, name="rates", progress=False)

    def all_have_ended() -> bool:
        return [run.info.status for run in runs_of(server, name_of(request))] == ["FINISHED"] * 4

    # The end of the session waits seconds only, and leaves what a slow server has not taken to the next one.
    wait_until(all_have_ended, "the end of the launch and its trials in MLflow", END_S)
    experiment.shutdown()
    parent, *children = sorted(runs_of(server, name_of(request)), key=lambda run: "mlflow.parentRunId" in run.data.tags)
    assert parent.data.tags["mlflow.runName"] == "rates" and parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.data.params["lr"] for run in children) == ["0.1", "0.2", "0.3"]
    source = "hdfs://nn:8020/Projects/p/Experiments/app_1/export"
    for _ in range(2):
        version = Store(server.uri).register_version(
            "rates", source, children[0].info.run_id, {"hopsml.run_id": "app_1"}
        )
    (registered,) = server.client().search_model_versions("name = 'rates'")
    assert (version, registered.source, registered.run_id) == ("1", source, children[0].info.run_id)


@pytest.mark.variant
def test_outages_of_the_server_lose_no_metrics(
    server: MlflowServer, tracked: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    run = submit(args={"folder": str(tmp_path)})
    wait_until(
        lambda: any(history(server, one.info.run_id) for one in runs_of(server, name_of(request))), "the first row"
    )
    server.stop()
    started = clock.awake()
    (tmp_path / "go").touch()
    run.result(END_S)
    await_note(run, "does not answer")
    experiment.shutdown()
    assert clock.awake() - started < 8, "the end of the program waits seconds at most"
    assert order_of(run)["state"] == "pending"

    started = clock.awake()
    second = submit()
    second.result(END_S)
    took = clock.awake() - started
    experiment.shutdown()
    assert took < 5 and order_of(second)["state"] == "pending"
    print(f"run {took:.2f} s")

    with not_of_this_test():
        server.start()
    third = submit()
    third.result(END_S)
    wait_until(lambda: is_sent(run, second, third), "all of them in MLflow")
    experiment.shutdown()
    found = runs_of(server, name_of(request))
    assert [one.data.tags["hopsml.run_id"] for one in found] == [run.run_id, second.run_id, third.run_id]
    for one in found:
        assert one.info.status == "FINISHED" and history(server, one.info.run_id) == LOSS
    assert not list((tracked / ".mlflow-pending").iterdir())


@pytest.mark.variant  # of tracking/test_mlflow_entries, and of a driver that is killed
def test_frozen_server_delays_nothing_and_receives_the_run_once(
    server: MlflowServer, tracked: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "CALL_TIMEOUT_S", 2.0)
    server.freeze()
    try:
        started = clock.awake()
        run = submit()
        run.result(END_S)
        assert clock.awake() - started < 5
        experiment.shutdown()
        assert clock.awake() - started < 15, "the end of the program waits seconds at most"
        assert order_of(run)["state"] == "pending" and not order_of(run)["run_id"]
    finally:
        server.thaw()
    done = sync(tracked)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"run": run.run_id, "state": "sent", "notes": []}]
    (found,) = runs_of(server, name_of(request))
    assert history(server, found.info.run_id) == LOSS and found.data.metrics["accuracy"] == 0.5
    check_second_transfer_changes_nothing(server, run, found)


def check_second_transfer_changes_nothing(server: MlflowServer, run: experiment.Run, found: Any) -> None:
    """Check a second transfer, as after a lost answer, for a run whose id the driver never received."""
    key = found.data.tags[KEY_TAG]
    server.client().create_run(found.info.experiment_id, start_time=found.info.start_time + 1, tags={KEY_TAG: key})
    wanted = order.read(run.directory)
    assert wanted is not None
    unknown = dataclasses.replace(wanted, run_id="", state="pending")
    done, _ = publish.complete_run(Store(server.uri), unknown, run.directory, history=True)
    assert done.run_id == found.info.run_id
    (left,) = server.client().search_runs([found.info.experiment_id])
    assert left.info.run_id == found.info.run_id and left.data.metrics["accuracy"] == 0.5
    memory = "system/rank_1/memory_usage_megabytes"
    samples = Path(run.run_dir.removeprefix("file://"), "logs", "g0-rank1.system.jsonl").read_text().splitlines()
    assert len(history(server, found.info.run_id, memory)) == len(samples) > 0
    assert history(server, found.info.run_id) == LOSS


@pytest.mark.variant  # of a driver that is killed
def test_killed_sender_is_noted_and_the_next_run_sends_both(
    server: MlflowServer, tracked: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    usual = link.start_process
    monkeypatch.setattr(link, "start_process", lambda: started.append(usual()) or started[-1])
    run = submit(args={"folder": str(tmp_path)})
    wait_until((tracked / "Experiments" / run.run_id / "mlflow.json").exists, "the sender's first deed")
    started[0].kill()
    await_note(run, "has died", "hopsml runs sync")
    (tmp_path / "go").touch()
    run.result(END_S)
    second = submit()
    second.result(END_S)
    wait_until(lambda: is_sent(run, second), "both in MLflow")
    assert len(started) == 2
    for found in runs_of(server, name_of(request)):
        assert found.info.status == "FINISHED" and history(server, found.info.run_id) == LOSS


def test_run_of_a_killed_driver_is_sent_as_failed(
    server: MlflowServer, tracked: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    script = (
        "from tests.integration.tracking.test_mlflow import submit; "
        f"submit(args={{'folder': {str(tmp_path)!r}}}).result()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    environment["TMPDIR"] = str(tmp_path)  # its agents are killed with it, and leave their folders
    driver = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        wait_until(lambda: any(history(server, one.info.run_id) for one in runs_of(server, name_of(request))), "a row")
    finally:
        driver.kill()
        driver.wait()
    done = sync(tracked)
    assert done.returncode == 0, done.stderr
    (found,) = runs_of(server, name_of(request))
    assert found.info.status == "FAILED" and found.data.tags["hopsml.state"] == "LOST"
    assert history(server, found.info.run_id) == LOSS[:1]


@pytest.mark.variant  # of tools, not of hopsml
def test_server_helper_ends_with_a_killed_session(tmp_path: Path) -> None:
    code = f"""
import os, signal, subprocess
from pathlib import Path
from tests.helpers.tracking.mlflow_server import MlflowServer
start = subprocess.Popen.__init__
def start_and_die(self, line, **named):
    start(self, line, **named)
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen.__init__ = start_and_die
MlflowServer(Path({str(tmp_path)!r})).start()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=WAIT_S, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not processes_with_variable("TMPDIR", str(tmp_path)), "the server's end")


def log_by_hand() -> None:
    """Log by MLflow's own functions on every worker, as published training functions do."""
    import mlflow

    mlflow.log_param("optimizer", "adam")
    mlflow.log_metric("by_hand", 0.25, step=1)
    mlflow.end_run()
    with mlflow.start_run() as active:
        mlflow.log_metric("in_a_block", 0.5)
        mlflow.set_tag("logged_in", active.info.run_id)


@pytest.mark.variant
def test_metrics_logged_by_a_worker_are_in_the_run(
    server: MlflowServer, tracked: Path, request: pytest.FixtureRequest
) -> None:
    run = submit(log_by_hand)
    run.result(END_S)
    (found,) = wait_until(lambda: [one for one in runs_of(server, name_of(request)) if one.info.end_time], "the run")
    assert found.data.metrics["by_hand"] == 0.25 and found.data.metrics["in_a_block"] == 0.5
    assert found.data.params["optimizer"] == "adam"
    assert found.data.tags["logged_in"] == found.info.run_id and found.data.tags["hopsml.run_id"] == run.run_id


@pytest.mark.variant
def test_run_chosen_by_the_user_is_logged_to(
    server: MlflowServer, tracked: Path, request: pytest.FixtureRequest
) -> None:
    import mlflow

    client = mlflow.MlflowClient(server.uri)
    mine = client.create_run(client.create_experiment(name_of(request))).info.run_id
    submit(log_by_hand, num_workers=1, environment={"MLFLOW_RUN_ID": mine}).result(END_S)
    assert client.get_run(mine).data.metrics["by_hand"] == 0.25
