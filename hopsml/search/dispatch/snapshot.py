"""A search at one moment, for whoever shows it: a value that does not change any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hopsml.search.dispatch import time_left
from hopsml.search.dispatch.time_left import Outlook
from hopsml.states import State


@dataclass
class RunningTrial:
    """A trial that is being carried out."""

    number: int
    trial_id: str
    config: dict[str, Any]
    place: str  # the lane, or how many workers
    began: float  # seconds since 1970
    step: int | None = None
    value: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """A search at one moment. ``best`` is its row of the table, None without any; times are seconds since 1970."""

    run_id: str
    name: str
    run_dir: str
    began: float
    now: float
    counts: dict[str, int]
    planned: int | None  # how many trials there are to be
    best: dict[str, Any] | None
    direction: str
    metric: str
    running: tuple[RunningTrial, ...]
    executors: int  # slots that the search has
    busy: int
    deadline_at: float | None
    took: tuple[float, ...]  # seconds that the newest trials took which are over
    waiting: str  # what the coordinator says of executors that are missing
    notes: tuple[str, ...]
    improvements: tuple[tuple[int, float], ...]  # trial, best value so far
    ended: float | None
    state: State
    error: BaseException | None

    @property
    def done(self) -> int:
        """How many trials have ended, one way or another."""
        return sum(self.counts.get(name, 0) for name in ("completed", "stopped", "failed"))

    def outlook(self) -> Outlook | None:
        """What is to be expected of the trials that are planned, whatever the deadline; None: nobody knows yet."""
        if self.planned is None:
            return None
        ages = [max(0.0, self.now - trial.began) for trial in self.running]
        waiting = max(0, self.planned - self.done - len(ages))
        return time_left.outlook(self.took, ages, waiting, len(ages) or self.executors, self.done)

    def seconds_left(self) -> float | None:
        """Until the search ends, as is to be expected and by its deadline; None: nobody knows."""
        outlook = self.outlook()
        times = [] if self.deadline_at is None else [max(0.0, self.deadline_at - self.now)]
        times += [] if outlook is None else [outlook.seconds]
        return min(times) if times else None
