"""Tests of a live run's lines in a terminal: state, progress and remaining time."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.experiment import progress
from hopsml.experiment.progress import RunLines

pytestmark = pytest.mark.fast


class Clock:
    """Clock that advances only when the test sets it."""

    now = 1_000.0

    def read(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(time=clock.read, monotonic=clock.read))
    return clock


def test_phases_are_printed_as_in_the_run_record(clock: Clock) -> None:
    stream = io.StringIO()
    lines = RunLines("app_1", stream)
    for phase in (Phase.WAITING, Phase.FORMING, Phase.RUNNING, Phase.STOPPING, Phase.FINISHED):
        lines(Change("phase", text=phase.value))
    phases = [line.removeprefix("hopsml app_1: ") for line in stream.getvalue().splitlines()]
    assert phases == ["waiting for executors", "starting workers", "RUNNING", "CLOSING", "FINISHED"]


def test_progress_lines_show_steps_rate_and_remaining_time(clock: Clock) -> None:
    stream = io.StringIO()
    lines = RunLines("app_1", stream)
    for step in range(0, 60, 10):
        clock.now += 5
        lines(Change("progress", 0, "step", step=step, total=100, time=clock.now))
        lines(Change("report", 0, step=step, metrics={"loss": 0.5}, time=clock.now))
    first, *_, last = stream.getvalue().splitlines()
    assert first == "hopsml app_1: step 0 of 100  loss 0.5"
    assert last == "hopsml app_1: step 50 of 100  2.0 steps/s  loss 0.5  about 25 s left"


def test_rate_includes_the_pause_between_epochs(clock: Clock) -> None:
    stream = io.StringIO()
    lines = RunLines("app_1", stream)
    for step, after in ((1, 0.0), (16, 3.0), (17, 4.0)):  # 17: the first batch after a validation
        clock.now += after
        lines(Change("report", 0, step=step, metrics={}, time=clock.now))
    assert stream.getvalue().splitlines()[-1] == "hopsml app_1: step 17  2.3 steps/s"


def test_printed_step_is_that_of_the_reported_values(clock: Clock) -> None:
    stream = io.StringIO()
    lines = RunLines("app_1", stream)
    lines(Change("progress", 0, "step", step=30, total=100, time=clock.now))  # printed twice a second at most
    for step in (36, 500, 3):  # 500, 3: the function counts another unit
        clock.now += 5
        lines(Change("report", 0, step=step, metrics={"loss": 0.5}, time=clock.now))
    steps = [line.split("  ")[0] for line in stream.getvalue().splitlines()]
    assert steps == ["hopsml app_1: step 36 of 100", "hopsml app_1: step 30 of 100", "hopsml app_1: step 30 of 100"]


def test_progress_without_a_total_has_no_remaining_time(clock: Clock) -> None:
    stream = io.StringIO()
    lines = RunLines("app_1", stream)
    for step in (10, 20):
        clock.now += 5
        lines(Change("report", 0, step=step, metrics={}, time=clock.now))
    assert stream.getvalue().splitlines()[-1] == "hopsml app_1: step 20  2.0 steps/s"


def test_message_of_tensorflow_on_a_host_without_gpu_is_not_printed() -> None:
    stream = io.StringIO()
    lines = RunLines("app_1", stream)
    cuda = "E0000 00:00:1.0 1 cuda_dnn.cc:1] failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: "
    lines(Change("log", 0, f"before\n{cuda}UNKNOWN ERROR (303)\nafter\n{cuda}out of memory\n"))
    assert stream.getvalue().splitlines() == ["[rank 0] before", "[rank 0] after", f"[rank 0] {cuda}out of memory"]
