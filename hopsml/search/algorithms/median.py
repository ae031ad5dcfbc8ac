"""Median stopping: Golovin et al. 2017, "Google Vizier", KDD, section 3.2.1, with Maggy's two parameters.

A running trial is stopped if its best report is worse than the median, over the ended trials, of the mean of their
reports up to the same step.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.contract import Config, End, Outcome, Stopper, Verdict


class _Curve:
    """Reports of one trial."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.scores = array("d")
        self.sums = array("d")  # of the scores up to each report
        self.best = float("-inf")
        self.stopped = False
        self.intervals = 0  # number of completed intervals

    def add(self, step: int, score: float) -> None:
        """Append a report, of a higher step."""
        self.steps.append(step)
        self.scores.append(score)
        self.sums.append(score + (self.sums[-1] if self.sums else 0.0))
        self.best = max(self.best, score)

    def mean_until(self, step: int) -> float | None:
        """Return the mean of the reports up to this step.

        None if the trial's first report is later, or its last one earlier.
        """
        count = bisect_right(self.steps, step)
        return self.sums[count - 1] / count if count and self.steps[-1] >= step else None

    def state(self) -> list[Any]:
        return [list(self.steps), list(self.scores), self.stopped, self.intervals]

    @classmethod
    def restored(cls, state: list[Any]) -> _Curve:
        curve = cls()
        for step, score in zip(state[0], state[1], strict=True):
            curve.add(step, score)
        curve.stopped, curve.intervals = state[2:]
        return curve


class _Median:
    """Running median of numbers that are added one by one."""

    def __init__(self) -> None:
        self._low: list[float] = []  # a heap of the negated lower half
        self._high: list[float] = []  # a heap of the upper half; as many, or one fewer
        self.seen = 0  # number of ended trials that were added

    def add(self, value: float) -> None:
        if self._low and value > -self._low[0]:
            heapq.heappush(self._high, value)
        else:
            heapq.heappush(self._low, -value)
        if len(self._low) > len(self._high) + 1:
            heapq.heappush(self._high, -heapq.heappop(self._low))
        elif len(self._high) > len(self._low):
            heapq.heappush(self._low, -heapq.heappop(self._high))

    def value(self) -> float | None:
        if not self._low:
            return None
        if len(self._low) > len(self._high):
            return -self._low[0]
        return -self._low[0] / 2 + self._high[0] / 2  # the sum of two finite numbers need not be finite


class MedianStop(Stopper):
    """Median stopper: stops a trial whose best score is worse than the median of ended trials' mean scores.

    Args:
        min_trials: number of trials that must have ended, other than by failing, before any is stopped (Maggy's
            es_min).
        interval: number of steps between comparisons (Maggy's es_interval), counted from ``min_step``; each is made at
            the first report at or past it.
        min_step: warm-up: no trial is stopped before this step, and the first comparison is made there. With 0 the
            first one is at ``interval``, and at step 0 of a trial that reports there.

    Raises:
        ArgumentError: an invalid value.
    """

    def __init__(self, min_trials: int = 10, interval: int = 1, min_step: int = 0) -> None:
        for name, value, least in (("min_trials", min_trials, 1), ("interval", interval, 1), ("min_step", min_step, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ArgumentError(f"{name}={value!r}: it must be an integer, {least} or more")
        self.min_trials, self.interval, self.min_step = min_trials, interval, min_step
        self._clear()

    def advice(self, trials: int) -> str:
        """Return a hint if the search has so few trials that none can be stopped."""
        if trials > self.min_trials:
            return ""
        return (
            f"the stopper median stops no trial before {self.min_trials} have ended, so none of {trials}: "
            f'stopper_args={{"min_trials": {max(1, trials // 3)}}} lets it compare earlier '
            f"(es_min={max(1, trials // 3)} in a configuration of Maggy)"
        )

    def _clear(self) -> None:
        self._running: dict[int, _Curve] = {}
        self._ended: list[_Curve] = []
        self._medians: dict[int, _Median] = {}  # by step, updated on use

    def begin(self, number: int, config: Config) -> None:
        """Start the record of a new trial's reports."""
        self._running[number] = _Curve()

    def report(self, number: int, step: int, score: float) -> Verdict:
        """Record the report, and compare the trial if an interval has ended."""
        curve = self._running[number]
        warm = bool(curve.steps) and curve.steps[-1] >= self.min_step  # the warm-up had ended before this report
        curve.add(step, score)
        passed = max(0, (step - self.min_step) // self.interval)
        due = passed > curve.intervals or step == self.min_step or (self.min_step > 0 and not warm)
        curve.intervals = passed
        if due and not curve.stopped and step >= self.min_step:
            curve.stopped = self._is_worse(curve, step)
        return Verdict.STOP if curve.stopped else Verdict.CONTINUE

    def _is_worse(self, curve: _Curve, step: int) -> bool:
        if len(self._ended) < self.min_trials:
            return False
        median = self._median_at(step)
        return median is not None and curve.best < median

    def _median_at(self, step: int) -> float | None:
        known = self._medians.setdefault(step, _Median())
        for curve in self._ended[known.seen :]:
            mean = curve.mean_until(step)
            if mean is not None:
                known.add(mean)
        known.seen = len(self._ended)
        return known.value()

    def end(self, number: int, outcome: Outcome) -> None:
        """Add the trial's reports to those for comparison, unless it failed."""
        curve = self._running.pop(number)
        if outcome.end is not End.FAILED:
            self._ended.append(curve)

    def state(self) -> dict[str, Any]:
        """Return the reports of all trials as JSON values, for ``restore``."""
        return {
            "running": [[number, curve.state()] for number, curve in self._running.items()],
            "ended": [curve.state() for curve in self._ended],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        self._clear()
        self._running = {number: _Curve.restored(curve) for number, curve in state["running"]}
        self._ended = [_Curve.restored(curve) for curve in state["ended"]]
