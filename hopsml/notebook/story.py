"""What has happened to a run so far, for people: changes in, nothing out; no thread, no clock, no IPython."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.notebook.history import MetricHistory
from hopsml.tracking.listing import plain

LOG_LINES = 8  # of the chief's output, while it runs
RATE_WINDOW_S = 10.0  # steps a second are those of so long
LEFT_WINDOW_S = 120.0  # how long the training will take is reckoned from so long: validation and checkpoints are in it
HISTORIES = 24  # metrics whose values are kept
NOTES = 6
# TensorFlow's own log of information and warnings, in both of its forms; the whole log is in the run directory.
_FRAMEWORK = re.compile(
    r"[IW]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |WARNING: All log messages before absl::"
)
_ANEW = (Phase.FORMING, Phase.REFORMING)  # after these steps may be made once more


@dataclass
class Stage:
    """A phase of the run and when it began, seconds since 1970."""

    phase: Phase
    began: float


@dataclass
class TrainingProgress:
    """How far the training is, as its worker says: ``done`` of ``total`` units ("step", "epoch")."""

    done: int
    total: int
    unit: str
    told: deque[tuple[float, int]] = field(default_factory=deque)  # when it was how far

    def tell(self, time: float, done: int, total: int) -> None:
        """The newest; one that is behind the last begins anew."""
        if done < self.done:
            self.told.clear()
        self.done, self.total = done, total
        self.told.append((time, done))
        while len(self.told) > 2 and time - self.told[1][0] > LEFT_WINDOW_S:
            self.told.popleft()

    def seconds_left(self, now: float) -> float | None:
        """At the speed of the last two minutes; None before there is one, or where it has been still for long."""
        if len(self.told) < 2:
            return None
        (first, low), (last, high) = self.told[0], self.told[-1]
        if high <= low or last <= first:
            return None
        seconds_each = (last - first) / (high - low)
        still = max(0.0, now - last)
        longest = max(b[0] - a[0] for a, b in zip(self.told, list(self.told)[1:], strict=False))
        if still > 3 * max(longest, seconds_each, 1.0):
            return None
        return max(0.0, (self.total - self.done) * seconds_each - still)


@dataclass
class Usage:
    """What a worker uses of its machine; percent of one core and megabytes, see ``cluster/usage.py``."""

    newest: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    cpu_sum: float = 0.0
    memory_peak: float = 0.0

    def add(self, sample: Mapping[str, float]) -> None:
        """Take in the next sample of the worker, by name of the value."""
        self.newest = dict(sample)
        self.memory_peak = max(self.memory_peak, sample.get("memory_usage_megabytes", 0.0))
        if (cpu := sample.get("cpu_utilization_percentage")) is not None:
            self.samples, self.cpu_sum = self.samples + 1, self.cpu_sum + cpu


@dataclass
class Story:
    """``began``: when the run was launched, seconds since 1970."""

    began: float
    stages: list[Stage] = field(default_factory=list)
    waiting: str = ""  # what the coordinator says of the agents that are missing
    step: int | None = None
    progress: TrainingProgress | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    histories: dict[str, MetricHistory] = field(default_factory=dict)  # of the metrics that are numbers, by step
    usage: dict[int, Usage] = field(default_factory=dict)  # by rank
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=NOTES))
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    is_over: bool = False  # the group is gone; the last files may still be written
    ended: float | None = None  # the run directory is complete
    error: BaseException | None = None
    outputs: dict[str, Any] = field(default_factory=dict)  # what the function returned
    _unfinished: str = ""
    _steps: deque[tuple[float, int]] = field(default_factory=deque)
    _again: bool = False  # another generation has begun: it may go back some steps
    _before: int = 0  # steps of earlier calls of ``fit``, each of which counts from its own beginning

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
            case "progress" if change.rank == 0 and change.step is not None:
                self._progress(change, now)
            case "system":
                self.usage.setdefault(change.rank, Usage()).add(change.metrics)
            case "end":
                self.is_over = True
            case "closed":
                self.is_over, self.ended = True, now
                self.error, self.outputs = change.error, change.metrics
                self._log("\n" if self._unfinished else "")

    def enter(self, phase: Phase, now: float) -> None:
        """Note a phase that the run has entered; a final one is no stage of its own."""
        if phase.is_final or (self.stages and self.stages[-1].phase is phase):
            return
        self.stages.append(Stage(phase, now if self.stages else self.began))
        if phase in _ANEW:
            self.usage.clear()  # other workers may have these ranks now
            self._again = True
            if self.progress is not None:
                self.progress.told.clear()  # the time in which nobody trains is no measure

    def steps_per_second(self) -> float:
        """Over the last ``RATE_WINDOW_S``; 0 before there are two reports."""
        if len(self._steps) < 2:
            return 0.0
        (first, low), (last, high) = self._steps[0], self._steps[-1]
        return (high - low) / (last - first) if last > first else 0.0

    def _progress(self, change: Change, now: float) -> None:
        assert change.step is not None
        if self.progress is None or self.progress.unit != change.text:
            self.progress = TrainingProgress(change.step, change.total, change.text)
        self.progress.tell(now, change.step, change.total)

    def _report(self, change: Change) -> None:
        self.metrics.update(change.metrics)
        if change.step is not None:
            self._stepped(change.step, change.time)
        self._remember(change.metrics)

    def _stepped(self, step: int, time: float) -> None:
        if self.step is not None and step < self.step:
            self._steps.clear()
            if not self._again:
                self._before += self.step
        self.step, self._again = step, False
        self._steps.append((time, step))
        while len(self._steps) > 2 and time - self._steps[1][0] > RATE_WINDOW_S:
            self._steps.popleft()

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if name in self.histories or len(self.histories) < HISTORIES:
                history = self.histories.setdefault(name, MetricHistory())
                last = history.points[-1][0] if history.points else -1.0
                history.add(last + 1 if self.step is None else self._before + self.step, float(value))

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
    return plain(kept[-1] if kept else "")
