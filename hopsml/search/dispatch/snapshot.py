"""Immutable snapshot of a search for display, and an estimate of its remaining time; no side effects."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hopsml.core.states import Lifecycle

SIMULATED = 1_000  # waiting trials that are simulated; further ones are spread evenly over the places


@dataclass
class RunningTrial:
    """State of a trial that is being run."""

    number: int
    trial_id: str
    config: dict[str, Any]
    place: str  # the lane, or the number of workers
    began: float  # seconds since 1970
    step: int | None = None
    value: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class SearchSnapshot:
    """State of a search at one moment.

    ``best`` is its row of the result table, None without any; times are seconds since 1970.
    """

    run_id: str
    name: str
    run_dir: str
    began: float
    now: float
    counts: dict[str, int]
    planned: int | None  # total number of trials
    best: dict[str, Any] | None
    direction: str
    metric: str
    running: tuple[RunningTrial, ...]
    executors: int  # number of slots of the search
    busy: int
    deadline_at: float | None
    took: tuple[float, ...]  # durations of the newest ended trials, in seconds
    waiting: str  # the coordinator's message about missing executors
    notes: tuple[str, ...]
    improvements: tuple[tuple[int, float], ...]  # trial, best value so far
    ended: float | None
    state: Lifecycle
    error: BaseException | None

    @property
    def done(self) -> int:
        """Number of trials that have ended: completed, stopped or failed."""
        return sum(self.counts.get(name, 0) for name in ("completed", "stopped", "failed"))

    def outlook(self) -> Outlook | None:
        """Return the estimate for all planned trials, regardless of the deadline; None if it is unknown."""
        if self.planned is None:
            return None
        ages = [max(0.0, self.now - trial.began) for trial in self.running]
        waiting = max(0, self.planned - self.done - len(ages))
        return outlook(self.took, ages, waiting, len(ages) or self.executors, self.done)

    def seconds_left(self) -> float | None:
        """Return the seconds until the search ends, by estimate or deadline, whichever is earlier; None if unknown."""
        outlook = self.outlook()
        times = [] if self.deadline_at is None else [max(0.0, self.deadline_at - self.now)]
        times += [] if outlook is None else [outlook.seconds]
        return min(times) if times else None


@dataclass(frozen=True)
class Outlook:
    """Estimate of a search: seconds until the last trial has ended, and the share of all work done (0 to 1)."""

    seconds: float
    share: float


class Lifetimes:
    """Distribution of trial durations, estimated from ended and running trials.

    Trials that still run count too: they have lasted at least as long as they have run. Without them the short ones,
    which end first, and those that a stopper ended would bias the estimate (Kaplan and Meier 1958, "Nonparametric
    estimation from incomplete observations"). Beyond the longest known trial they are assumed to end at the average
    rate so far.

    Args:
        ended: durations of ended trials, in seconds.
        running: seconds that the running trials have run so far.
    """

    def __init__(self, ended: Sequence[float], running: Sequence[float]) -> None:
        moments = sorted([(seconds, 0) for seconds in ended] + [(seconds, 1) for seconds in running])
        self._times, self._shares = [0.0], [1.0]  # share of trials that last longer than each time
        for left, (seconds, runs) in zip(range(len(moments), 0, -1), moments, strict=True):
            if not runs:
                self._times.append(seconds)
                self._shares.append(self._shares[-1] * (1 - 1 / left))
        self._longest = moments[-1][0] if moments else 0.0
        share = self._shares[-1]
        self._tail = self._longest / -math.log(share) if 0.0 < share < 1.0 else 0.0  # mean time beyond the longest

    def rest(self, age: float) -> float:
        """Return the expected further seconds of a trial that has run for ``age`` seconds (mean)."""
        at = bisect.bisect_right(self._times, age) - 1
        if not self._shares[at]:
            return 0.0
        ends = [*self._times[at + 1 :], max(self._longest, age)]
        begins = [age, *self._times[at + 1 :]]
        area = sum(
            share * max(0.0, end - begin) for share, begin, end in zip(self._shares[at:], begins, ends, strict=True)
        )
        return (area + self._shares[-1] * self._tail) / self._shares[at]


def outlook(ended: Sequence[float], running: Sequence[float], waiting: int, places: int, done: int) -> Outlook | None:
    """Return the estimate for a search; None before a trial has ended.

    Args:
        ended: seconds that trials took, as for ``Lifetimes``; may be the newest of the ``done`` ones alone.
        running: seconds that the running trials have run so far.
        waiting: number of trials that have not begun.
        places: number of trials that can run at the same time.
        done: number of trials that have ended.
    """
    if not ended or places < 1:
        return None
    lifetimes = Lifetimes(ended, running)
    rests = [lifetimes.rest(age) for age in running]
    usual = lifetimes.rest(0.0)
    free = sorted(rests + [0.0] * (places - len(rests)))
    heapq.heapify(free)
    ends = max(free, default=0.0)
    for _ in range(min(waiting, SIMULATED)):
        end = heapq.heappop(free) + usual
        heapq.heappush(free, end)
        ends = max(ends, end)
    ends += max(0, waiting - SIMULATED) * usual / places
    begun = sum(age / (age + rest) if age + rest > 0 else 0.0 for age, rest in zip(running, rests, strict=True))
    return Outlook(ends, (done + begun) / max(1, done + len(running) + waiting))
