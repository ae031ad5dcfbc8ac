"""Settings that determine the order of jobs: of the whole service, of a queue, of a job."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopsml.errors import ArgumentError
from hopsml.service.scheduler.resources import NOTHING, GangShape, Resources

HIGHEST_PRIORITY, LOWEST_PRIORITY, USUAL_PRIORITY = 100, 1, 50
DEFAULT_QUEUE = "default"
CORES_LIKE_A_GPU = 8  # number of cores that counts as one GPU, for jobs without GPUs


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules for the order of jobs within a queue, for preemption and for reservations.

    Within a queue and a priority, jobs with the least attained service go first ("attained service", Tiresias, NSDI
    2019, section 3). A job that has waited too long goes before the others of its queue and is not preempted. Jobs that
    fit may overtake one that does not fit; once room is reserved for that one, an overtaking job must end in time, or
    be preemptible for it by then.

    Attributes:
        levels_s: Attained service, in GPU-seconds, at which a job falls to the next level.
        preempts: True if a waiting job may take room from running jobs of a lower level or priority that can continue
            from a checkpoint.
        least_run_s: Time in seconds for which a started job is protected against preemption.
        longest_wait_s: Total waiting time, in seconds, after which a job has waited too long.
        hold_after_s: Waiting time, in seconds, after which room is reserved for a job.
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
        """Return the level for an attained service in GPU-seconds; 0 is the level with the least."""
        return sum(attained_s >= level for level in self.levels_s)

    def next_level_s(self, attained_s: float) -> float:
        """Return the attained service at which a job falls to the next level; infinite in the lowest level."""
        return next((level for level in self.levels_s if attained_s < level), math.inf)


@dataclass(frozen=True, slots=True)
class Queue:
    """Settings of a queue.

    Attributes:
        name: Name of the queue.
        weight: Weight of the queue when room is divided among queues.
        guaranteed: Resources that the queue reclaims from queues that have more than their guarantee.
        limit: Maximum resources of the queue; None if unlimited.
        driver_limit_mib: Maximum memory of all its drivers together, as YARN limits the application masters of a queue.
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
    """Request of a job to the scheduler.

    Attributes:
        job_id: ID of the job.
        gang: Shape of the gang.
        queue: Name of the queue.
        priority: Priority; a higher one is more urgent.
        user: Owner of the job.
        preemptible: True if the job can continue from a checkpoint after a preemption.
        expected_s: Expected running time in seconds, from the time limit or earlier runs.
        resizable: True if an elastic gang may gain or lose slots while it runs; otherwise it holds its initial slots.
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
        """True if the gang may become larger or smaller while it runs."""
        return self.resizable and self.gang.is_elastic

    @property
    def driver_mib(self) -> int:
        """Memory of all drivers of the gang, in MiB."""
        return sum(part.each.memory_mib * part.count for part in self.gang.parts if part.is_driver)
