"""What decides who is first: of the whole service, of a queue, of a job."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopsml.errors import ArgumentError
from hopsml.service.scheduler.resources import NOTHING, GangShape, Resources

HIGHEST_PRIORITY, LOWEST_PRIORITY, USUAL_PRIORITY = 100, 1, 50
DEFAULT_QUEUE = "default"
CORES_LIKE_A_GPU = 8  # of a job without GPUs: so many cores count as one


@dataclass(frozen=True, slots=True)
class Policy:
    """Times in seconds.

    Within a queue and a priority those who have had least go first ("attained service", Tiresias, NSDI 2019, section
    3): a job falls to the next level when its GPUs have worked for it as long as ``levels_s`` says, in GPU-seconds. Who
    waits takes room from who runs at a lower level, or with a lower priority, if that one can go on from a checkpoint
    (``preempts``); not before it has run ``least_run_s``. A job that has waited ``longest_wait_s`` in all goes before
    others of its queue and does not wait again. Who does not fit is passed by others; after ``hold_after_s`` what it
    needs is kept for it, and who passes it has to end in time, or to be one that may be preempted for it by then.
    """

    levels_s: tuple[float, ...] = (3600.0, 36000.0)
    preempts: bool = True
    least_run_s: float = 300.0
    longest_wait_s: float = 36000.0
    hold_after_s: float = 600.0

    def __post_init__(self) -> None:
        if list(self.levels_s) != sorted(set(self.levels_s)) or any(level <= 0 for level in self.levels_s):
            raise ArgumentError(f"levels_s={self.levels_s}: levels are positive and each is above the one before")
        for name in ("least_run_s", "longest_wait_s", "hold_after_s"):
            if not getattr(self, name) >= 0:
                raise ArgumentError(f"{name}={getattr(self, name)} is below 0; it is a time in seconds")

    def level(self, attained_s: float) -> int:
        """0 for who has had least."""
        return sum(attained_s >= level for level in self.levels_s)

    def next_level_s(self, attained_s: float) -> float:
        """The attained service at which a job falls next; infinite in the lowest level."""
        return next((level for level in self.levels_s if attained_s < level), math.inf)


@dataclass(frozen=True, slots=True)
class Queue:
    """``weight``: of its share in what all queues want. ``guaranteed``: so much it gets back from queues that have more
    than theirs. ``limit``: it never has more. ``driver_limit_mib``: memory of all its drivers together, as YARN limits
    what application masters may take of a queue.
    """

    name: str = DEFAULT_QUEUE
    weight: float = 1.0
    guaranteed: Resources = NOTHING
    limit: Resources | None = None
    driver_limit_mib: int | None = None

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ArgumentError(f"queue {self.name!r}: weight={self.weight}; a weight is above 0")
        if self.limit is not None and not self.guaranteed.within(self.limit):
            raise ArgumentError(
                f"queue {self.name!r}: its guaranteed {self.guaranteed} is more than its limit, {self.limit}"
            )


@dataclass(frozen=True, slots=True)
class GangRequest:
    """What a job asks for. ``expected_s``: how long it will run, of its time limit or of what it took before.

    ``resizable``: whether an elastic gang may get more or fewer slots while it runs; else it keeps what it begins with.
    """

    job_id: str
    gang: GangShape
    queue: str = DEFAULT_QUEUE
    priority: int = USUAL_PRIORITY
    user: str = ""
    preemptible: bool = True
    expected_s: float = math.inf
    resizable: bool = True

    def __post_init__(self) -> None:
        if not LOWEST_PRIORITY <= self.priority <= HIGHEST_PRIORITY:
            raise ArgumentError(
                f"job {self.job_id!r}: priority={self.priority} is not between {LOWEST_PRIORITY} and {HIGHEST_PRIORITY};"
                " a higher one is more urgent"
            )
        if not self.expected_s > 0:
            raise ArgumentError(f"job {self.job_id!r}: expected_s={self.expected_s} is not above 0")

    @property
    def changes(self) -> bool:
        """Whether it may become larger or smaller while it runs."""
        return self.resizable and self.gang.is_elastic

    @property
    def driver_mib(self) -> int:
        """Memory of its drivers."""
        return sum(part.each.memory_mib * part.count for part in self.gang.parts if part.is_driver)
