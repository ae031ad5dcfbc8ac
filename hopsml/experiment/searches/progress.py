"""What a person reads while a search goes on: the live display in a notebook, plain lines anywhere else."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from hopsml.experiment.searches.board import Board, Snapshot
from hopsml.experiment.terminal import write_line
from hopsml.notebook import frontend

log = logging.getLogger(__name__)

EVERY_S = 2.0
Teller = Callable[[Board], None]


def teller() -> Teller:
    """Who will tell a person of a search. Raises ArgumentError for a HOPSML_PROGRESS that is not known."""
    return _display if frontend.is_live() else _lines


def _display(board: Board) -> None:
    from hopsml.notebook.search_display import SearchDisplay

    try:
        board.observe(SearchDisplay(board.snapshot).show())
    except Exception:  # a display must not harm a search
        log.warning("search %s cannot be displayed, so its progress is printed", board.run_id, exc_info=True)
        _lines(board)


def _lines(board: Board) -> None:
    board.observe(SearchLines(board))


class SearchLines:
    """An observer that prints how far the search is: at every better value, and else at most one line in two seconds."""

    def __init__(self, board: Board, stream: TextIO | None = None) -> None:
        self._board, self._stream = board, stream or sys.stderr
        self._at = 0.0
        self._best: float | None = None
        self._last = ""
        self._lock = threading.Lock()

    def __call__(self, what: str, facts: dict[str, Any]) -> None:
        with self._lock:
            if what in ("note", "phase", "skipped"):
                self._say(facts["text"])
            elif what == "settled":
                best = self._board.best["value"] if self._board.best else None
                better, self._best = best != self._best, best
                now = time.monotonic()
                if now - self._at >= EVERY_S or (better and now - self._at >= EVERY_S / 4):
                    self._at = now
                    self._say(line(self._board.snapshot()))
            elif what == "closed":
                self._say(f"{line(self._board.snapshot())}  {facts['state']}")

    def _say(self, text: str) -> None:
        if text and text != self._last:
            self._last = text
            write_line(self._stream, f"hopsml {self._board.run_id}: {text}")


def line(view: Snapshot) -> str:
    """How far the search is, in one line."""
    planned = f"/{view.planned}" if view.planned is not None else ""
    counts = [
        f"{view.counts.get(name, 0)} {name}" for name in ("running", "stopped", "failed") if view.counts.get(name)
    ]
    parts = [f"trials {view.done}{planned}" + (f" ({', '.join(counts)})" if counts else "")]
    if view.best is not None:
        parts.append(f"best {view.metric or 'metric'} {view.best['value']:.6g}  {_short(view.best['config'])}")
    if view.ended is None:
        parts.append(f"executors busy {view.busy}/{view.executors}")
        left, outlook = view.seconds_left(), view.outlook()
        if left is not None:
            parts.append(f"{'at most' if outlook is None or outlook.seconds > left else 'about'} {_time(left)} left")
    else:
        parts.append(f"took {_time(view.now - view.began)}")
    return "  ".join(parts)


def _short(config: dict[str, Any]) -> str:
    text = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in config.items()
    )
    return text if len(text) <= 100 else text[:99] + "…"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
