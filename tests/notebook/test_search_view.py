"""What is shown of a search: numbers, the best trial, learning curves; nothing of a run reaches the page unescaped."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import pytest

from hopsml.errors import RunError
from hopsml.experiment.searches.board import Board, Running
from hopsml.experiment.searches.progress import SearchLines, line
from hopsml.notebook.search_display import SearchDisplay
from hopsml.notebook.search_html import render
from hopsml.notebook.search_view import as_text, view_of
from hopsml.notebook.text import sparkline

pytestmark = pytest.mark.fast


def row(number: int, value: float, **config: Any) -> dict[str, Any]:
    return {
        "number": number,
        "value": value,
        "config": config,
        "state": "completed",
        "trial_id": str(number),
        "seconds": 10.0,
    }


@pytest.fixture
def board() -> Board:
    board = Board("app_1", "digits", "file:///p/Experiments/app_1", "max", "accuracy")
    board.counted({"running": 1, "completed": 2, "failed": 1}, planned=9, executors=4, busy=1)
    board.trial_began(Running(3, "abc", {"act": "<relu>"}, "host-1", time.time() - 2))
    for step in range(5):
        board.trial_reported(3, step, step / 10)
    board.settled(row(0, 0.5, act="a"), row(0, 0.5, act="a"))
    board.settled(row(1, 0.75, act="<b>"), row(1, 0.75, act="<b>"))
    return board


def test_what_is_shown_while_it_runs(board: Board) -> None:
    board.began -= 30
    text = as_text(view_of(board.snapshot()))
    assert text.startswith("digits (app_1): RUNNING, 30.") and "running 1  failed 1  executors busy 1 of 4" in text
    assert "] trials 3 of 9, 36 %, about 60 s left" in text  # 10 s each; one has 8 s left, and there is no other place
    assert "best: accuracy 0.75  act <b>" in text and "act=<relu>" in text and "▁▂▄▆█ 0 … 0.4" in text
    assert "best accuracy so far (1 improvements) 0.75  ▁█ 0.5 … 0.75" in text
    page = render(view_of(board.snapshot()))
    assert "&lt;relu&gt;" in page and "<relu>" not in page and "<b>" not in page


def test_the_time_left_is_the_deadlines_where_that_comes_first_and_says_so(board: Board) -> None:
    board.deadline_at = time.time() + 20
    assert "about" not in as_text(view_of(board.snapshot())) and "at most 20 s left" in as_text(
        view_of(board.snapshot())
    )
    assert line(board.snapshot()).endswith("at most 20 s left")
    board.deadline_at = time.time() + 2_000
    assert "about 60 s left" in as_text(view_of(board.snapshot())) and "at most" not in line(board.snapshot())


def test_without_a_number_of_trials_the_time_is_what_is_done(board: Board) -> None:
    board.counted({"running": 1, "completed": 2}, planned=None, executors=4, busy=1)
    assert view_of(board.snapshot()).progress is None  # nobody knows
    board.began, board.deadline_at = time.time() - 30, time.time() + 90
    progress = view_of(board.snapshot()).progress
    assert progress is not None and progress.share == pytest.approx(0.25, abs=0.01)
    assert progress.facts == ("trials 2", "at most 90 s left") or progress.facts == ("trials 2", "at most 2 min left")


def test_a_search_waits_until_it_has_an_executor() -> None:
    board = Board("app_1", "digits", "file:///p/Experiments/app_1", "max", "accuracy")
    assert view_of(board.snapshot()).state == "WAITING"
    board.counted({}, planned=9, executors=1, busy=0)
    assert view_of(board.snapshot()).state == "RUNNING"


def test_what_is_shown_at_the_end(board: Board) -> None:
    board.close("FAILED", "failed", RunError("nothing <found>"))
    view = view_of(board.snapshot())
    assert view.state == "FAILED" and not view.running and "nothing <found>" in as_text(view)
    assert "nothing &lt;found&gt;" in render(view)


def test_lines_for_a_terminal(board: Board) -> None:
    stream = io.StringIO()
    board.observe(SearchLines(board, stream))
    board.note("look here")
    board.note("look here")
    board.close("FINISHED", "complete", None)
    assert board.settle()
    first, last = stream.getvalue().splitlines()
    assert first == "hopsml app_1: look here" and "trials 3/9" in last and last.endswith("FINISHED")
    assert "best accuracy 0.75  act=<b>" in line(board.snapshot())


def test_an_observer_that_fails_is_dropped(board: Board) -> None:
    called = []

    def broken(what: str, facts: dict[str, Any]) -> None:
        called.append(what)
        raise ValueError

    board.observe(broken)
    board.note("one")
    board.note("two")
    assert board.settle()
    assert called == ["note"]


def test_the_display_shows_the_end_before_the_search_goes_on(board: Board) -> None:
    shown: list[tuple[str, bool]] = []
    seen = threading.Event()

    def publish(bundle: dict[str, str], update: bool) -> None:
        shown.append((bundle["text/plain"], update))
        seen.set()

    board.observe(SearchDisplay(board.snapshot, publish).show())
    board.close("FINISHED", "complete", None)
    assert not shown[0][1] and shown[-1][1] and ": FINISHED, " in shown[-1][0]


def test_sparklines() -> None:
    assert (
        sparkline([1.0]) == "" and sparkline([1.0, 1.0]) == "▁▁" and len(sparkline(list(map(float, range(500))))) == 24
    )
    assert sparkline([3.0, 1.0, 2.0]) == "█▁▄"
