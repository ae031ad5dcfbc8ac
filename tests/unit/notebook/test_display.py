"""Tests of the display: what it sends when and from which thread, and robustness against failing front ends."""

from __future__ import annotations

import gc
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.cluster.gang.events import Phase
from hopsml.core import tracebacks
from hopsml.errors import WorkerFailed
from hopsml.experiment import progress
from hopsml.notebook import display
from hopsml.notebook.display import Bundle, RunDisplay
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast

DIRECTORY = "file:///runs/app_1"


class FrontEnd:
    """Front end that records what it receives, with the time."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, Bundle, bool]] = []
        self.arrived = threading.Condition()

    def __call__(self, bundle: Bundle, update: bool) -> None:
        with self.arrived:
            self.sent.append((time.monotonic(), bundle, update))
            self.arrived.notify_all()

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda shown: any(text in one for one in shown))

    def wait_until(self, condition: Callable[[list[str]], bool]) -> None:
        """Wait until a condition holds for the texts shown so far."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: condition([bundle["text/plain"] for _, bundle, _ in self.sent]), 30)


@pytest.fixture
def state() -> RunState:
    return RunState("app_1", 2)


@pytest.fixture
def front_end(state: RunState) -> Iterator[FrontEnd]:
    yield FrontEnd()
    state.publish(Change("closed"))


def test_display_is_created_once_and_then_updated(state: RunState, front_end: FrontEnd) -> None:
    state.observe(RunDisplay(state, "digits", DIRECTORY, front_end).show())
    assert len(front_end.sent) == 1 and not front_end.sent[0][2]
    state.publish(Change("phase", text="waiting for executors: 1 of 2 agents are connected"))
    front_end.wait_for("waiting for executors: 1 of 2 agents are connected")
    assert all(update for _, _, update in front_end.sent[1:])
    assert all(set(bundle) == {"text/plain", "text/html"} for _, bundle, _ in front_end.sent)


def test_many_reports_cause_four_updates_a_second_and_the_last_state_is_shown(
    state: RunState, front_end: FrontEnd
) -> None:
    state.observe(RunDisplay(state, "digits", DIRECTORY, front_end).show())
    state.phase = Phase.RUNNING
    started_s = time.monotonic()
    for step in range(20_000):
        state.publish(Change("report", 0, step=step, time=time.time()))
    state.publish(Change("log", 0, "the last word"))  # without a line's end
    state.publish(Change("closed", metrics={"accuracy": 0.75}))
    took_s = time.monotonic() - started_s
    assert len(front_end.sent) <= 3 + took_s / display.INTERVAL_S
    last = front_end.sent[-1][1]["text/plain"]  # shown when ``publish`` returned
    for part in ("FINISHED", "step 19 999", "result: accuracy 0.75", "the last word"):
        assert part in last


def test_elapsed_time_is_updated_without_changes(
    state: RunState, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "CLOCK_S", 0.02)
    monkeypatch.setattr(display, "INTERVAL_S", 0.01)
    state.observe(RunDisplay(state, "digits", DIRECTORY, front_end).show())
    times = re.compile(r"WAITING, ([0-9.]+) s")
    front_end.wait_until(lambda shown: len({found[1] for text in shown if (found := times.search(text))}) >= 3)


def test_closed_run_is_displayed_with_its_result(state: RunState, front_end: FrontEnd) -> None:
    state.publish(Change("closed", metrics={"accuracy": 0.75}))
    state.observe(RunDisplay(state, "digits", DIRECTORY, front_end).show())
    assert "accuracy 0.75" in front_end.sent[-1][1]["text/plain"]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.is_final])
def test_run_that_ends_while_its_display_is_created_is_shown(
    state: RunState, front_end: FrontEnd, phase: Phase
) -> None:
    state.phase = phase  # final, and not closed yet: its last files are written
    state.observe(RunDisplay(state, "digits", DIRECTORY, front_end).show())
    state.publish(Change("closed", metrics={"accuracy": 0.5}))
    assert "accuracy 0.5" in front_end.sent[-1][1]["text/plain"]


def test_failing_front_end_ends_the_display_but_not_the_run(state: RunState) -> None:
    calls: list[bool] = []

    def broken(bundle: Bundle, update: bool) -> None:
        calls.append(update)
        if update:
            raise OSError("the socket is gone")

    state.observe(RunDisplay(state, "digits", DIRECTORY, broken).show())
    state.publish(Change("phase", text="running"))
    state.publish(Change("closed"))
    assert calls == [False, True]


def test_hanging_front_end_delays_the_end_of_the_run_only_briefly(
    state: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "LAST_S", 0.05)
    hangs, go_on, left = threading.Event(), threading.Event(), threading.Event()

    def hanging(bundle: Bundle, update: bool) -> None:
        if update:
            hangs.set()
            go_on.wait(END_S)
            left.set()

    state.observe(RunDisplay(state, "digits", DIRECTORY, hanging).show())
    for step in range(100):
        state.publish(Change("report", 0, step=step, time=time.time()))
    assert hangs.wait(END_S)
    state.publish(Change("closed"))
    assert not left.is_set(), "the run's end has waited for the front end"
    go_on.set()


def test_malformed_change_ends_the_display_and_its_thread(state: RunState, front_end: FrontEnd) -> None:
    state.observe(RunDisplay(state, "digits", DIRECTORY, front_end).show())
    state.publish(Change("report", 0, step="seven", metrics={}, time=0.0))  # type: ignore[arg-type]
    state.publish(Change("report", 0, step=8, time=0.0))


def test_progress_falls_back_to_lines_without_a_display(monkeypatch: pytest.MonkeyPatch, state: RunState) -> None:
    """IPython refuses a display, since this process has no shell."""

    class Refusing(RunDisplay):
        def show(self) -> RunDisplay:
            raise RuntimeError("no front end")

    monkeypatch.setattr(display, "RunDisplay", Refusing)
    monkeypatch.setattr(display, "is_live", lambda: True)
    assert isinstance(progress.run_observer_maker()(state, "digits", DIRECTORY), progress.RunLines)


# -- an error that is shown next to the display


def failed() -> WorkerFailed:
    return WorkerFailed("m", rank=1, host="node-1", cause="ValueError: bad", log_tail="the end of its log\n")


def test_error_shown_below_its_cell_is_removed_from_the_display_of_that_cell(
    state: RunState, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "current_cell_number", lambda: 3)
    state.observe(RunDisplay(state, "digits", DIRECTORY, front_end).show())
    error = failed()
    state.publish(Change("closed", error=error))
    assert "ValueError: bad" in front_end.sent[-1][1]["text/plain"]
    before = len(front_end.sent)
    monkeypatch.setattr(display, "current_cell_number", lambda: 4)  # ``run.result()`` in another cell
    for render in tracebacks.on_render:
        render(error)
    assert len(front_end.sent) == before
    monkeypatch.setattr(display, "current_cell_number", lambda: 3)
    for render in tracebacks.on_render:
        render(ValueError("another one"))
        render(error)
    _, bundle, update = front_end.sent[-1]
    assert update and "FAILED" in bundle["text/plain"] and not any("bad" in text for text in bundle.values())


def test_display_does_not_hold_references_to_the_run_or_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    state, error = RunState("app_1", 1), failed()
    state.observe(RunDisplay(state, "digits", DIRECTORY, FrontEnd()).show())
    state.publish(Change("closed", error=error))
    reference = weakref.ref(error)
    del state, error
    gc.collect()
    assert reference() is None


def test_error_of_another_kind_is_displayed(state: RunState, front_end: FrontEnd) -> None:
    state.observe(RunDisplay(state, "digits", DIRECTORY, front_end).show())
    state.publish(Change("closed", error=MemoryError("no room")))
    assert "FAILED" in front_end.sent[-1][1]["text/plain"] and "no room" in front_end.sent[-1][1]["text/plain"]
