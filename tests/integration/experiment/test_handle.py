"""Tests of handle and result beyond the contract of backends: progress, callbacks, consistent verbs, odd values."""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import experiment
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.gang.events import Phase
from hopsml.core.variables import Settings
from hopsml.errors import ArgumentError, ResultsNotStored, RunCancelled, RunError, WorkerFailed
from hopsml.experiment import reporting
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit
from tests.helpers.cluster.workloads import WAIT_S, Trap, wait_until
from tests.helpers.local_application import take_left_files

pytestmark = pytest.mark.local


def test_collective_all_reduce_is_submit_and_result(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train(lr: float) -> dict[str, float]:
        import hopsml

        hopsml.report(step=7, loss=0.25)
        print("from the chief")
        return {"lr": lr}

    logdir, metrics = experiment.collective_all_reduce(train, args={"lr": 0.5}, name="digits", num_workers=2)
    assert metrics["lr"] == 0.5 and logdir.endswith("/events")
    shown = capfd.readouterr().err
    for line in ("starting workers", "RUNNING", "step 7  loss 0.25", "[rank 0] from the chief"):
        assert line in shown


def test_interrupt_before_the_handle_is_returned_cancels_the_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell's stop button at the worst moment: the run is launched, its handle not yet returned."""
    started: list[RunState] = []

    def interrupted(run: Run, *arguments: Any, **options: Any) -> None:
        started.append(run.state)
        raise KeyboardInterrupt

    monkeypatch.setattr(reporting, "track_in_mlflow", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        experiment.collective_all_reduce(lambda: time.sleep(600), num_workers=1)
    assert hasattr(caught.value, "_render_traceback_")  # a notebook shows no frame of ours
    assert started[0].wait(WAIT_S) and isinstance(started[0].error, RunCancelled)


def test_future_cannot_be_cancelled_without_the_run(store: Path) -> None:
    run = experiment.submit(lambda: time.sleep(600), num_workers=1)
    assert not run.future.cancel() and not run.done()
    assert run.cancel()
    with pytest.raises(RunCancelled):
        run.result(END_S)


def test_interrupt_received_by_another_thread_ends_the_wait(store: Path) -> None:
    run = experiment.submit(lambda: time.sleep(600), num_workers=1)
    wait_until(lambda: run.state.phase is Phase.RUNNING, "the training")
    receiver = threading.Thread(
        target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT) or time.sleep(0.1)
    )
    threading.Timer(0.2, receiver.start).start()  # while the main thread waits
    with pytest.raises(KeyboardInterrupt, match="was cancelled"):
        run.result(END_S)
    receiver.join()


def test_interrupt_by_the_job_service_is_not_attributed_to_the_user(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Settings.job_tag.name, "tag")
    run = experiment.submit(lambda: time.sleep(600), num_workers=1)
    wait_until(lambda: run.state.phase is Phase.RUNNING, "the training")
    threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.result(END_S)
    assert "ended by the job service" in str(run.state.error)


def test_done_callback_receives_the_result(store: Path) -> None:
    received: list[Any] = []
    run = submit(lambda: 1)
    run.add_done_callback(lambda future: received.append(future.result().value))
    run.result(END_S)
    wait_until(lambda: received == [1], "the callback")
    assert run.done()


def test_reported_values_that_messages_cannot_contain_are_converted(store: Path) -> None:
    def train() -> None:
        import hopsml

        hopsml.report(
            step=1, big=2**80, text="caf\u00e9 \udcff", long="x" * 1_000_000, nan=math.nan, none=None, odd=[1]
        )

    run = submit(train)
    run.result(END_S)
    seen = run.status()["members"][0]["metrics"]
    assert seen["big"] == float(2**80) and seen["text"] == "caf\u00e9 ?" and len(seen["long"]) == 10_000
    assert math.isnan(seen["nan"]) and seen["none"] is None and seen["odd"] == "[1]"


def test_exception_text_invalid_in_utf8_is_reported(store: Path) -> None:
    def train() -> None:
        raise FileNotFoundError("no file named \udcff")

    with pytest.raises(WorkerFailed, match=r"FileNotFoundError: no file named \?") as caught:
        submit(train).result(END_S)
    assert "raise FileNotFoundError" in caught.value.remote_traceback


def test_result_that_the_driver_cannot_unpickle_fails_the_run(store: Path) -> None:
    run = submit(lambda: Trap("only a worker can unpickle this", rank=9))
    with pytest.raises(RunError, match=r"cannot be read here \(AssertionError.*return numbers"):
        run.result(END_S)
    status = run.directory.read_status()
    assert status is not None and status["state"] == "FAILED"


def test_local_logdir_is_copied_to_the_run_directory(store: Path) -> None:
    def work() -> dict[str, Any]:
        folder = hopsml.tensorboard.logdir()
        Path(folder, "model").mkdir()
        Path(folder, "model", "f").write_text("x")
        return {"local": hopsml.tensorboard.local_logdir_bool, "folder": folder}

    result = experiment.collective_all_reduce(work, num_workers=1, local_logdir=True, progress=False)
    assert result.value["local"] is True and "://" not in result.value["folder"]
    assert (Path(result.logdir.removeprefix("file://")) / "model" / "f").read_text() == "x"
    plain = experiment.collective_all_reduce(work, num_workers=1, progress=False)
    assert plain.value["local"] is False


@pytest.mark.parametrize(
    ("verb", "size"),
    [
        ("launch", {}),
        ("distributed", {"num_workers": 2}),
        ("distributed", {"min_workers": 1, "max_workers": 2}),
        pytest.param("torch", {"num_workers": 1}, marks=pytest.mark.variant),
        pytest.param("collective_all_reduce", {"num_workers": 1}, marks=pytest.mark.variant),
    ],
)
def test_misspelt_metric_key_is_refused_at_the_first_report(store: Path, verb: str, size: dict[str, int]) -> None:
    def train() -> dict[str, float]:
        import hopsml

        for step in range(1000):
            hopsml.report(step=step, loss=0.5)
            time.sleep(0.1)
        return {"loss": 0.5}

    message = r"ArgumentError: the metric 'los' is not among the reported values \('loss'\); did you mean 'loss'\?"
    with pytest.raises(WorkerFailed, match=message) as caught:
        getattr(experiment, verb)(train, metric_key="los", **size)
    assert "Correct metric_key" in str(caught.value)


def test_result_without_the_metric_key_is_stored_with_a_note(store: Path) -> None:
    run = submit(lambda: {"loss": 0.1}, metric_key="losss")
    result = run.result(END_S)
    assert result.metrics == {"loss": 0.1} and result.state == "FINISHED"
    note = "metric_key='losss' is not among the returned values"
    assert note in result.notes[0] and "did you mean loss?" in result.notes[0] and note in result.summary()
    assert run.directory.read_json(run.directory.outputs_json)["loss"] == 0.1
    assert any(note in one for one in run.state.notes)


def test_result_survives_the_loss_of_the_project_store(store: Path) -> None:
    def train() -> int:
        import shutil

        shutil.rmtree(store)
        store.write_text("a file where the project was")
        return 7

    run = submit(train, workers=1)
    with pytest.raises(ResultsNotStored, match=re.escape(str(store))) as raised:
        run.result(END_S)
    assert raised.value.result.value == 7 and run.status()["state"] == "FAILED"
    assert str(store) in raised.value.result.unrecorded["status.json"]
    assert len(take_left_files()) == 1


def converse() -> None:
    """Send back what is received, until the run is cancelled."""
    hopsml.send("ready")
    while True:
        hopsml.send(("echo", hopsml.receive(timeout=END_S)))


@pytest.mark.parametrize(
    ("verb", "workers", "options"),
    [
        ("distributed", 2, {"num_workers": 2}),
        pytest.param("torch", 2, {"num_workers": 2}, marks=pytest.mark.torch),
        pytest.param("parameter_server", 1, {"num_workers": 1, "num_ps": 1}, marks=pytest.mark.tensorflow),
        pytest.param("mirrored", 1, {}, marks=[pytest.mark.tensorflow, pytest.mark.variant]),
        pytest.param("jax", 2, {"num_workers": 2}, marks=pytest.mark.variant),
        pytest.param("collective_all_reduce", 2, {"num_workers": 2}, marks=pytest.mark.variant),
    ],
)
def test_each_verb_returns_a_handle_that_sends_receives_and_cancels(
    store: Path, verb: str, workers: int, options: dict[str, Any]
) -> None:
    run = getattr(experiment, verb).submit(converse, progress=False, **options)
    received: list[tuple[int, Any]] = []
    run.on_message(lambda rank, value: received.append((rank, value)))
    wait_until(lambda: len(received) == workers, "every function")
    run.send(7)
    wait_until(lambda: len(received) == 2 * workers, "every answer")
    assert sorted(received[:workers]) == [(rank, "ready") for rank in range(workers)]
    assert sorted(received[workers:]) == [(rank, ("echo", 7)) for rank in range(workers)]
    wait_until(lambda: run.status()["state"] == "RUNNING", "every worker")  # a chief does not wait for its servers
    if verb == "parameter_server":
        assert len(run.status()["members"]) == 3
        with pytest.raises(ArgumentError, match=r"rank 2 of run .* is a server of TensorFlow"):
            run.send(7, rank=2)
    with pytest.raises(ArgumentError, match="has a fixed size"):
        run.resize(1)
    assert run.cancel("enough")
    with pytest.raises(RunCancelled):
        run.result(END_S)
    assert run.status()["state"] == "CANCELLED"
