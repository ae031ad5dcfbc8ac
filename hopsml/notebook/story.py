"""What has happened to a run so far, for people: changes in, nothing out; no thread, no clock, no IPython."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.gang import Phase
from hopsml.cluster.run_state import Change

LOG_LINES = 8  # of the chief's output, while it runs
RATE_WINDOW_S = 10.0  # steps a second are those of so long
NOTES = 6
# TensorFlow's own log of information and warnings, in both of its forms; the whole log is in the run directory.
_FRAMEWORK = re.compile(
    r"[IW]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |WARNING: All log messages before absl::"
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass
class Stage:
    """A phase of the run and when it began, seconds since 1970."""

    phase: Phase
    began: float


@dataclass
class Story:
    """``began``: when the run was launched, seconds since 1970."""

    began: float
    stages: list[Stage] = field(default_factory=list)
    waiting: str = ""  # what the coordinator says of the agents that are missing
    step: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=NOTES))
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    is_over: bool = False  # the group is gone; the last files may still be written
    ended: float | None = None  # the run directory is complete
    error: BaseException | None = None
    outputs: dict[str, Any] = field(default_factory=dict)  # what the function returned
    _unfinished: str = ""
    _steps: deque[tuple[float, int]] = field(default_factory=deque)

    def handle(self, change: Change, phase: Phase, now: float) -> None:
        """Take in a change; ``phase`` is the run's at that moment, ``now`` seconds since 1970."""
        self.enter(phase, now)
        match change.kind:
            case "phase":
                self.waiting = change.text.partition(": ")[2] if phase is Phase.WAITING else ""
            case "note" if change.text not in self.notes:
                self.notes.append(change.text)
            case "log" if change.rank == 0:
                self._log(change.text)
            case "report" if change.rank == 0:
                self._report(change)
            case "end":
                self.is_over = True
            case "closed":
                self.is_over, self.ended = True, now
                self.error, self.outputs = change.error, change.metrics
                self._log("\n" if self._unfinished else "")

    def enter(self, phase: Phase, now: float) -> None:
        """Note a phase that the run has entered; a final one is no stage of its own."""
        if not phase.is_final and (not self.stages or self.stages[-1].phase is not phase):
            self.stages.append(Stage(phase, now if self.stages else self.began))

    def steps_per_second(self) -> float:
        """Over the last ``RATE_WINDOW_S``; 0 before there are two reports."""
        if len(self._steps) < 2:
            return 0.0
        (first, low), (last, high) = self._steps[0], self._steps[-1]
        return (high - low) / (last - first) if last > first else 0.0

    def _report(self, change: Change) -> None:
        self.metrics.update(change.metrics)
        if change.step is None:
            return
        if self.step is not None and change.step < self.step:  # another ``fit`` counts from its own beginning
            self._steps.clear()
        self.step = change.step
        self._steps.append((change.time, change.step))
        while len(self._steps) > 2 and change.time - self._steps[1][0] > RATE_WINDOW_S:
            self._steps.popleft()

    def _log(self, text: str) -> None:
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        self._unfinished = self._unfinished[-10_000:]
        self.log.extend(worth_showing(lines))


def worth_showing(lines: Iterable[str]) -> list[str]:
    """Plain lines, without empty ones and without what TensorFlow says of itself; its errors stay."""
    return [line for line in map(plain_line, lines) if line.strip() and not _FRAMEWORK.match(line)]


def plain_line(line: str) -> str:
    """A line as a terminal would show it in the end: without colours, and what follows the last carriage return."""
    kept = [part for part in line.rstrip("\r").split("\r") if part]
    return _CONTROL.sub("", kept[-1] if kept else "")
