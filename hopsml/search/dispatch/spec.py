"""Specification of a search, as far as its dispatch needs it, and its limits: deadline and budget of slot-seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hopsml.errors import ArgumentError
from hopsml.search.contract import Config


@dataclass(frozen=True)
class SearchSpec:
    """Specification of a search; times in seconds.

    Attributes:
        num_trials: number of trials; None leaves it to the searcher (grid, Hyperband). If both set it, the smaller one
            holds.
        direction: "max" or "min".
        metric: key of the searched metric in what a trial returns; "" where it returns a number.
        size_of: makes every trial a distributed training: returns the number of workers and the minimum number for a
            configuration. None: trials run on lanes.
        isolated: run every trial in a separate process.
        retries: number of further attempts, elsewhere, of a trial that failed.
        deadline_s: deadline, counted from the begin of the session.
        budget_executor_s: slot-seconds that all sessions together may use.
        patience_s: time that a trial gets to stop on request.
        max_lanes: greatest number of slots; None: unlimited.
        promoted_workers: pairs of (step, size): a distributed training that continues past the step may have that many
            workers.
        prefetch: send a trial before the lane is free; None decides by measurement (``lanes.Prefetch``).

    Raises:
        ArgumentError: an invalid value.
    """

    num_trials: int | None
    direction: str = "max"
    metric: str = ""
    size_of: Callable[[Config], tuple[int, int]] | None = None
    isolated: bool = False
    retries: int = 1
    deadline_s: float | None = None
    budget_executor_s: float | None = None
    patience_s: float = 30.0
    max_lanes: int | None = None
    promoted_workers: tuple[tuple[int, int], ...] = ()
    prefetch: bool | None = None

    def __post_init__(self) -> None:
        if self.direction not in ("max", "min"):
            raise ArgumentError(f"direction={self.direction!r}: it is 'max' or 'min'")
        for name, least in (("num_trials", 1), ("max_lanes", 1), ("retries", 0)):
            count = getattr(self, name)
            if count is not None and count < least:
                raise ArgumentError(f"{name}={count}: it must be {least} or more")
        for name in ("deadline_s", "budget_executor_s", "patience_s"):
            seconds = getattr(self, name)
            if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
                raise ArgumentError(f"{name}={seconds}: it must be a number of seconds above 0")
        steps = [step for step, _ in self.promoted_workers]
        if steps != sorted(set(steps)) or any(size < 1 for _, size in self.promoted_workers):
            raise ArgumentError(
                f"promoted_workers={self.promoted_workers}: it needs pairs (step, workers) with rising steps, workers from 1"
            )
        if self.promoted_workers and self.size_of is None:
            raise ArgumentError(
                "promoted_workers is for trials that are distributed trainings: give workers_per_trial, too"
            )

    def promoted_size(self, step: int) -> int:
        """Return the number of workers that a trial may have at ``step``; 0: no more than it began with."""
        return max((size for reached, size in self.promoted_workers if step >= reached), default=0)


_SHARE = 0.1  # greatest share of a limit that is reserved for trials to stop by themselves


@dataclass(frozen=True)
class Closing:
    """Reason and time limit of the end of a search.

    ``hard_at``: monotonic time in seconds at which the search ends even if a trial has not responded.
    """

    reason: str
    text: str
    hard_at: float

    def patience(self, now: float) -> float:
        """Return the seconds that a trial gets to stop.

        Fewer than remain, since the message of its end must arrive in time.
        """
        return max(0.05, 0.8 * (self.hard_at - now))


class LimitAccount:
    """Account of the slot-seconds that a search uses, with the check of its deadline and budget."""

    def __init__(self, spec: SearchSpec) -> None:
        self._spec = spec
        self._began = 0.0
        self._counted = 0.0  # ``spent_s`` is charged up to this time
        self._held = 0
        self.spent_s = 0.0  # slot-seconds used in all sessions
        self.deadline: float | None = None

    def start_clock(self, now: float) -> None:
        """Start the clock of a session; ``deadline_s`` counts from ``now``."""
        self._began = self._counted = now
        self._held = 0
        self.move_deadline(self._spec.deadline_s)

    def move_deadline(self, seconds: float | None) -> None:
        """Set the deadline to ``seconds`` after the begin of the session; None removes it."""
        self.deadline = None if seconds is None else self._began + seconds

    def holds(self, slots: int, now: float) -> None:
        """Set the number of slots held from ``now`` on, and charge those held until then."""
        self.spent_s += self._held * (now - self._counted)
        self._held, self._counted = slots, now

    def _reserve_of_deadline(self) -> float:
        assert self.deadline is not None
        return min(self._spec.patience_s, _SHARE * (self.deadline - self._began))

    def _reserve_of_budget(self) -> float:
        assert self._spec.budget_executor_s is not None
        return min(self._spec.patience_s, _SHARE * self._spec.budget_executor_s / max(1, self._held))

    def stop_at(self) -> tuple[float, str]:
        """Return the time at which trials must be requested to end, and the limit that requires it.

        Returns:
            Monotonic time in seconds, infinity if there is no limit; "deadline", "budget" or "".
        """
        at, reason = float("inf"), ""
        if self.deadline is not None:
            at, reason = self.deadline - self._reserve_of_deadline(), "deadline"
        budget = self._spec.budget_executor_s
        if budget is not None and (self._held or self.spent_s >= budget):
            left_s = max(0.0, budget - self.spent_s) / max(1, self._held)
            spent_at = self._counted + left_s - self._reserve_of_budget()
            if spent_at < at:
                at, reason = spent_at, "budget"
        return at, reason

    def closing(self, now: float) -> Closing | None:
        """Return how the search must end if its deadline or budget has been reached by ``now``, else None."""
        at, reason = self.stop_at()
        if now < at:
            return None
        if reason == "deadline":
            assert self.deadline is not None
            text = f"the deadline of {self.deadline - self._began:g} s"
            return Closing(reason, text, max(now, self.deadline))
        text = f"the budget of {self._spec.budget_executor_s:g} slot-seconds"
        return Closing(reason, text, now + self._reserve_of_budget())
