"""Tests of the view of a search: numbers, best trial, learning curves, and escaped texts."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import pytest

from hopsml.errors import RunError
from hopsml.experiment.progress import SearchLines, search_line
from hopsml.experiment.searches.state import SearchState
from hopsml.notebook import html
from hopsml.notebook.display import SearchDisplay
from hopsml.notebook.html import sparkline
from hopsml.notebook.run_view import view_of_search
from hopsml.search.dispatch.journal import RunningTrial

pytestmark = pytest.mark.fast


def row(number: int, value: float, **config: Any) -> dict[str, Any]:
    return {
        "number": number,
        "value": value,
        "config": config,
        "state": "completed",
        "step": None,
        "trial_id": str(number),
        "seconds": 10.0,
    }


@pytest.fixture
def state() -> SearchState:
    state = SearchState("app_1", "digits", "file:///p/Experiments/app_1", "max", "accuracy")
    state.counted({"running": 1, "completed": 2, "failed": 1}, planned=9, executors=4, busy=1)
    state.add_running_trial(RunningTrial(3, "abc", {"act": "<relu>"}, "host-1", time.time() - 2))
    for step in range(5):
        state.record_report(3, step, step / 10)
    state.settled(row(0, 0.5, act="a"), row(0, 0.5, act="a"))
    state.settled(row(1, 0.75, act="<b>"), row(1, 0.75, act="<b>"))
    return state


def test_view_of_a_running_search_shows_counts_best_trial_and_curves(state: SearchState) -> None:
    state.began -= 30
    shown = html.render_text(view_of_search(state.snapshot()))
    assert shown.startswith("digits (app_1): RUNNING, 30.") and "running 1  failed 1  slots busy 1 of 4" in shown
    assert "] trials 3 of 9, 36 %, about 60 s left" in shown  # 10 s each; one has 8 s left, and there is no other place
    assert "best: accuracy 0.75  act <b>" in shown and "act=<relu>" in shown and "▁▂▄▆█ 0 … 0.4" in shown
    assert "best accuracy so far (1 improvement) 0.75  ▁█ 0.5 … 0.75" in shown
    page = html.render(view_of_search(state.snapshot()))
    assert "&lt;relu&gt;" in page and "<relu>" not in page and "<b>" not in page


def test_remaining_time_is_that_of_the_deadline_if_it_is_earlier(state: SearchState) -> None:
    state.deadline_at = time.time() + 20
    assert "about" not in html.render_text(
        view_of_search(state.snapshot())
    ) and "at most 20 s left" in html.render_text(view_of_search(state.snapshot()))
    assert search_line(state.snapshot()).endswith("at most 20 s left")
    state.deadline_at = time.time() + 2_000
    assert "about 60 s left" in html.render_text(view_of_search(state.snapshot())) and "at most" not in search_line(
        state.snapshot()
    )


def test_progress_without_a_number_of_trials_is_the_elapsed_share_of_the_deadline(state: SearchState) -> None:
    state.counted({"running": 1, "completed": 2}, planned=None, executors=4, busy=1)
    assert view_of_search(state.snapshot()).progress is None  # unknown
    state.began, state.deadline_at = time.time() - 30, time.time() + 90
    progress = view_of_search(state.snapshot()).progress
    assert progress is not None and progress.share == pytest.approx(0.25, abs=0.01)
    assert progress.facts == ("trials 2", "at most 90 s left") or progress.facts == ("trials 2", "at most 2 min left")


def test_search_without_an_executor_is_waiting() -> None:
    state = SearchState("app_1", "digits", "file:///p/Experiments/app_1", "max", "accuracy")
    assert view_of_search(state.snapshot()).state == "WAITING"
    state.counted({}, planned=9, executors=1, busy=0)
    assert view_of_search(state.snapshot()).state == "RUNNING"


def test_view_of_a_failed_search_shows_its_escaped_error(state: SearchState) -> None:
    state.close("FAILED", "failed", RunError("nothing <found>"))
    view = view_of_search(state.snapshot())
    assert view.state == "FAILED" and not view.table.rows and "nothing <found>" in html.render_text(view)
    assert "nothing &lt;found&gt;" in html.render(view)


def test_terminal_lines_show_state_notes_and_the_best_trial(state: SearchState) -> None:
    stream = io.StringIO()
    state.observe(SearchLines(state, stream))
    state.phase("running")
    state.note("look here")
    state.note("look here")
    state.close("FINISHED", "complete", None)
    assert state.settle()
    spelled, first, last = stream.getvalue().splitlines()
    assert (spelled, first) == ("hopsml app_1: RUNNING", "hopsml app_1: look here")
    assert "trials 3 of 9" in last and last.endswith("FINISHED")
    assert "best accuracy 0.75  act=<b>" in search_line(state.snapshot())


def test_failing_observer_is_removed(state: SearchState) -> None:
    called = []

    def broken(what: str, facts: dict[str, Any]) -> None:
        called.append(what)
        raise ValueError

    state.observe(broken)
    state.note("one")
    state.note("two")
    assert state.settle()
    assert called == ["note"]


def test_display_shows_the_end_before_the_search_returns(state: SearchState) -> None:
    shown: list[tuple[str, bool]] = []
    seen = threading.Event()

    def publish(bundle: dict[str, str], update: bool) -> None:
        shown.append((bundle["text/plain"], update))
        seen.set()

    state.observe(SearchDisplay(state.snapshot, publish).show())
    state.close("FINISHED", "complete", None)
    assert not shown[0][1] and shown[-1][1] and ": FINISHED, " in shown[-1][0]


def test_sparkline_is_scaled_and_limited_in_length() -> None:
    assert (
        sparkline([1.0]) == "" and sparkline([1.0, 1.0]) == "▁▁" and len(sparkline(list(map(float, range(500))))) == 24
    )
    assert sparkline([3.0, 1.0, 2.0]) == "█▁▄"


def test_curve_of_a_stopped_trial_ends_at_its_last_step(state: SearchState) -> None:
    state.record_trial_left(3)
    state.settled({**row(3, 0.2), "state": "stopped", "step": 2}, row(1, 0.75))
    assert [step for step, _ in state.curves[3]] == [0, 1, 2]


def test_report_received_before_the_start_of_its_trial_is_retained() -> None:
    """Reports and the start of a group arrive on different channels."""
    state = SearchState("app_1", "digits", "file:///p/Experiments/app_1", "max", "accuracy")
    state.record_report(5, 0, 0.25)
    state.add_running_trial(RunningTrial(5, "abc", {}, "host-1", time.time()))
    state.record_report(5, 1, 0.5)
    assert state.running[5].curve == [(0, 0.25), (1, 0.5)]
    state.record_trial_left(5)
    assert state.curves == {5: [(0, 0.25), (1, 0.5)]}
