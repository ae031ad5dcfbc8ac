"""What is shown of a search: numbers, the best trial, learning curves; nothing of a run reaches the page unescaped."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from hopsml.errors import RunError
from hopsml.experiment.searches.board import Board, Running
from hopsml.experiment.searches.progress import SearchLines, line
from hopsml.notebook.search_display import SearchDisplay
from hopsml.notebook.search_view import as_html, as_text, sparkline, view_of

pytestmark = pytest.mark.fast


def row(number: int, value: float, **config: Any) -> dict[str, Any]:
    return {"number": number, "value": value, "config": config, "state": "completed", "trial_id": str(number)}


@pytest.fixture
def board() -> Board:
    board = Board("app_1", "digits", "file:///p/Experiments/app_1", "max", "accuracy")
    board.counted({"running": 1, "completed": 2, "failed": 1}, planned=9, executors=4, busy=1)
    board.trial_began(Running(3, "abc", {"act": "<relu>"}, "host-1", board.began))
    for step in range(5):
        board.trial_reported(3, step, step / 10)
    board.settled(row(0, 0.5, act="a"), row(0, 0.5, act="a"))
    board.settled(row(1, 0.75, act="<b>"), row(1, 0.75, act="<b>"))
    return board


def test_what_is_shown_while_it_runs(board: Board) -> None:
    board.began -= 30
    text = as_text(view_of(board.snapshot()))
    assert text.startswith("digits (app_1): running, 30.") and "trials 3/9  failed 1  executors busy 1/4" in text
    assert "left about 1 min" in text  # three in 30 s, six to come
    assert "best: accuracy 0.75  act <b>  ▁█" in text and "act=<relu>" in text and "▁▂▄▆█" in text
    page = as_html(view_of(board.snapshot()))
    assert "&lt;relu&gt;" in page and "<relu>" not in page and "<b>" not in page


def test_what_is_shown_at_the_end(board: Board) -> None:
    board.close("FAILED", "failed", RunError("nothing <found>"))
    view = view_of(board.snapshot())
    assert view.state == "FAILED" and not view.running and "nothing <found>" in as_text(view)
    assert "nothing &lt;found&gt;" in as_html(view)


def test_lines_for_a_terminal(board: Board) -> None:
    stream = io.StringIO()
    board.observe(SearchLines(board, stream))
    board.note("look here")
    board.note("look here")
    board.close("FINISHED", "complete", None)
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
