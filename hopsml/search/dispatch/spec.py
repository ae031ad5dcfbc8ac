"""Specification of a search, as far as its dispatch needs it."""

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
