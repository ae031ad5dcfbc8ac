"""What a person reads while a run goes on: the live display in a notebook, plain lines anywhere else."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from hopsml.cluster.run_state import Change, Observer, RunState
from hopsml.notebook import frontend

log = logging.getLogger(__name__)

REPORT_EVERY_S = 2.0
NO_NAME = "no-name"  # the default of ``name=``, which is the predecessor's


def teller() -> Callable[[RunState, str, str], Observer]:
    """Who will tell a person of a run, given its state, the name that the caller gave it, and its directory.

    Raises ArgumentError for a HOPSML_PROGRESS that is not known.
    """
    return _display if frontend.is_live() else _lines


def _display(state: RunState, name: str, run_dir: str) -> Observer:
    from hopsml.notebook.display import RunDisplay

    try:
        return RunDisplay(state, state.run_id if name == NO_NAME else name, run_dir).show()
    except Exception:  # a display must not harm a training
        log.warning("run %s cannot be displayed, so its progress is printed", state.run_id, exc_info=True)
        return _lines(state, name, run_dir)


def _lines(state: RunState, name: str, run_dir: str) -> Observer:
    return LineProgress(state.run_id)


class LineProgress:
    """An observer that prints phases, the chief's reports (at most one in two seconds) and the chief's own output."""

    def __init__(self, run_id: str, stream: TextIO | None = None) -> None:
        self.run_id = run_id
        self.stream = stream or sys.stderr
        self._last = ("", "")
        self._reported = 0.0
        self._step: tuple[int, float] | None = None
        self._rate = 0.0
        self._partial = ""

    def __call__(self, change: Change) -> None:
        if change.kind == "phase":
            self._say("phase", change.text)
        elif change.kind == "note":
            self._say("note", change.text)
        elif change.kind == "log":
            self._log(change)
        elif change.kind == "report" and change.rank == 0:
            self._report(change)
        elif change.kind == "end" and self._partial:
            self._write(f"[rank 0] {self._partial}")

    def _say(self, kind: str, text: str) -> None:
        if (kind, text) != self._last:
            self._last = (kind, text)
            self._write(f"hopsml {self.run_id}: {text}")

    def _log(self, change: Change) -> None:
        *lines, self._partial = (self._partial + change.text).replace("\r", "\n").split("\n")
        for line in lines:
            if line.strip():
                self._write(f"[rank {change.rank}] {line}")

    def _report(self, change: Change) -> None:
        if change.step is not None:
            if self._step is not None and change.step > self._step[0] and change.time > self._step[1]:
                self._rate = (change.step - self._step[0]) / (change.time - self._step[1])
            self._step = (change.step, change.time)
        now = time.monotonic()
        if now - self._reported < REPORT_EVERY_S:
            return
        self._reported = now
        parts = [f"step {change.step}"] if change.step is not None else []
        parts += [f"{self._rate:.1f} steps/s"] if self._rate else []
        parts += [f"{name} {_short(value)}" for name, value in change.metrics.items()]
        self._write(f"hopsml {self.run_id}: {'  '.join(parts)}")

    def _write(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
