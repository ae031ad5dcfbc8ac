"""Timeline of a run for its display, and the bounded history of a metric; without threads, clocks or IPython."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.core.harmless_output import is_harmless
from hopsml.tracking.listing import strip_control_sequences

Point = tuple[float, float]
KEPT = 512  # most points; when there are more, they are thinned to half


class MetricHistory:
    """Values of one metric, thinned when they become many.

    ``low`` and ``high`` are the extremes of all finite values that were added, ``last`` is the newest value.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.low, self.high, self.last = math.inf, -math.inf, math.nan

    @property
    def is_curve(self) -> bool:
        """True if there is something to draw: at least two different values."""
        return self.low < self.high

    def add(self, at: float, value: float) -> None:
        """Append a value at step ``at``; it replaces the values at this and later steps, which are repeated."""
        while self.points and self.points[-1][0] >= at:
            self.points.pop()
        self.points.append((at, value))
        self.last = value
        if math.isfinite(value):
            self.low, self.high = min(self.low, value), max(self.high, value)
        if len(self.points) > KEPT:
            self.points = thinned(self.points, KEPT // 2)


def thinned(points: Sequence[Point], count: int) -> list[Point]:
    """Return at most ``count`` of more points: the first, the last, and the extremes of each section between."""
    inner = points[1:-1]
    stretches = max(1, (count - 2) // 2)
    kept = [points[0]]
    for number in range(stretches):
        stretch = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        if stretch:
            extremes = {min(stretch, key=_height), max(stretch, key=_height)}
            kept += sorted(extremes)
    return [*kept, points[-1]]


def _height(point: Point) -> float:
    """Return the value to compare; NaN is the lowest, so that thinning never removes a gap in the curve."""
    return -math.inf if math.isnan(point[1]) else point[1]


LOG_LINES = 8  # most lines of the output of rank 0
RATE_WINDOW_S = 10.0  # window over which steps per second are computed
# Window over which the remaining time is estimated, which should include validation and checkpoints.
LEFT_WINDOW_S = 120.0
HISTORIES = 24  # most metrics whose history is recorded
NOTES = 6
# TensorFlow's log messages of level info and warning, in both formats; the whole log is in the run directory.
_FRAMEWORK = re.compile(
    r"[IW]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |WARNING: All log messages before absl::"
)
_ANEW = (Phase.FORMING, Phase.REFORMING)  # after these phases steps may be repeated


@dataclass
class Stage:
    """Phase of the run and its start, in seconds since 1970."""

    phase: Phase
    began: float


@dataclass
class TrainingProgress:
    """Progress of the training, as its worker reports it: ``done`` of ``total`` units ("step", "epoch")."""

    done: int
    total: int
    unit: str
    told: deque[tuple[float, int]] = field(default_factory=deque)  # pairs (time, done) within the window

    def record(self, time: float, done: int, total: int) -> None:
        """Record a report of the worker's progress; one with fewer units than the last restarts the time estimate."""
        if done < self.done:
            self.told.clear()
        self.done, self.total = done, total
        self.told.append((time, done))
        while len(self.told) > 2 and time - self.told[1][0] > LEFT_WINDOW_S:
            self.told.popleft()

    def seconds_left(self, now: float) -> float | None:
        """Estimate the remaining seconds from the rate of the last two minutes.

        Returns None before there is a rate, or if no report has come for much longer than usual.
        """
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
class StepRate:
    """Rate of the steps that a worker reports."""

    told: deque[tuple[float, int]] = field(default_factory=deque)  # pairs (time, step) within the window

    def record(self, time: float, step: int) -> None:
        """Record the step of a report; one below the last restarts the measurement."""
        if self.told and step < self.told[-1][1]:
            self.told.clear()
        self.told.append((time, step))
        while len(self.told) > 2 and time - self.told[1][0] > RATE_WINDOW_S:
            self.told.popleft()

    def per_second(self) -> float:
        """Return the steps per second in the last ``RATE_WINDOW_S`` seconds; 0 before there are two reports."""
        if len(self.told) < 2:
            return 0.0
        (first, low), (last, high) = self.told[0], self.told[-1]
        return (high - low) / (last - first) if last > first else 0.0


@dataclass
class Usage:
    """Resource usage of a worker, in percent of one core and in megabytes; see ``cluster/agent/usage.py``."""

    newest: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    cpu_sum: float = 0.0
    memory_peak: float = 0.0

    def add(self, sample: Mapping[str, float]) -> None:
        """Record the worker's next sample, by name of the value."""
        self.newest = dict(sample)
        self.memory_peak = max(self.memory_peak, sample.get("memory_usage_megabytes", 0.0))
        if (cpu := sample.get("cpu_utilization_percentage")) is not None:
            self.samples, self.cpu_sum = self.samples + 1, self.cpu_sum + cpu


@dataclass
class RunTimeline:
    """Timeline of a run; ``began`` is its launch, in seconds since 1970."""

    began: float
    stages: list[Stage] = field(default_factory=list)
    waiting: str = ""  # what the coordinator reports about missing agents
    step: int | None = None
    progress: TrainingProgress | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    histories: dict[str, MetricHistory] = field(default_factory=dict)  # of numeric metrics, by name
    usage: dict[int, Usage] = field(default_factory=dict)  # by rank
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=NOTES))
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    is_over: bool = False  # the group has ended; the last files may still be written
    ended: float | None = None  # time at which the run directory was complete
    error: BaseException | None = None
    outputs: dict[str, Any] = field(default_factory=dict)  # return value of the function
    _unfinished: str = ""
    _rate: StepRate = field(default_factory=StepRate)
    _again: bool = False  # True after a restart, which may repeat steps
    _before: int = 0  # steps of earlier calls of ``fit``, each of which counts from 0

    def handle(self, change: Change, phase: Phase, now: float) -> None:
        """Update the timeline with a change of the run.

        Args:
            change: the change.
            phase: phase of the run at that moment.
            now: seconds since 1970.
        """
        self.enter_phase(phase, now)
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

    def enter_phase(self, phase: Phase, now: float) -> None:
        """Record a phase that the run has entered; a final one is no stage."""
        if phase.is_final or (self.stages and self.stages[-1].phase is phase):
            return
        self.stages.append(Stage(phase, now if self.stages else self.began))
        if phase in _ANEW:
            self.usage.clear()  # these ranks may now belong to other workers
            self._again = True
            if self.progress is not None:
                self.progress.told.clear()  # time without training must not count

    def steps_per_second(self) -> float:
        """Return the rate over the last ``RATE_WINDOW_S`` seconds; 0 before there are two reports."""
        return self._rate.per_second()

    def _progress(self, change: Change, now: float) -> None:
        """Record a progress report; another unit starts a new progress."""
        assert change.step is not None
        if self.progress is None or self.progress.unit != change.text:
            self.progress = TrainingProgress(change.step, change.total, change.text)
        self.progress.record(now, change.step, change.total)

    def _report(self, change: Change) -> None:
        """Record reported metrics and their step."""
        self.metrics.update(change.metrics)
        if change.step is not None:
            self._stepped(change.step, change.time)
        self._remember(change.metrics)

    def _stepped(self, step: int, time: float) -> None:
        """Record the step of a report; a lower one is a repetition after a restart, or else a new call of ``fit``."""
        if self.step is not None and step < self.step and not self._again:
            self._before += self.step
        self.step, self._again = step, False
        self._rate.record(time, step)

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        """Add numeric metrics to their histories."""
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if name in self.histories or len(self.histories) < HISTORIES:
                history = self.histories.setdefault(name, MetricHistory())
                last = history.points[-1][0] if history.points else -1.0
                history.add(last + 1 if self.step is None else self._before + self.step, float(value))

    def _log(self, text: str) -> None:
        """Record complete lines of output, and buffer an incomplete one."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        self._unfinished = self._unfinished[-10_000:]
        self.log.extend(displayable_lines(lines))


def displayable_lines(lines: Iterable[str]) -> list[str]:
    """Return lines as plain text, without empty ones and TensorFlow's informational messages; its errors remain.

    What TensorFlow logs as an error on every host without a GPU counts as information.
    """
    return [
        line
        for line in map(plain_line, lines)
        if line.strip() and not _FRAMEWORK.match(line) and not is_harmless(line.encode(errors="replace"))
    ]


def plain_line(line: str) -> str:
    """Return a line as a terminal finally shows it, without colours.

    Of a line with carriage returns only the last non-empty part is visible.
    """
    kept = [part for part in line.rstrip("\r").split("\r") if part]
    return strip_control_sequences(kept[-1] if kept else "")
