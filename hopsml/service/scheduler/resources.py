"""Resources of jobs and nodes, shapes of gangs, placements, and the settings that determine the order of jobs.

Resources are GPUs, cores and mebibytes of memory. Settings are of the whole service, of a queue, or of a job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hopsml.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts of GPUs, cores and memory (in MiB), as whole numbers."""

    gpus: int = 0
    cores: int = 0
    memory_mib: int = 0

    def plus(self, other: Resources) -> Resources:
        """Return the sum of two amounts."""
        return Resources(self.gpus + other.gpus, self.cores + other.cores, self.memory_mib + other.memory_mib)

    def minus(self, other: Resources) -> Resources:
        """Return the difference of two amounts, which may be negative."""
        return self.plus(other.times(-1))

    def times(self, count: int) -> Resources:
        """Return this amount multiplied by a count."""
        return Resources(self.gpus * count, self.cores * count, self.memory_mib * count)

    def within(self, other: Resources) -> bool:
        """Return True if ``other`` has at least as much of each resource."""
        return self.gpus <= other.gpus and self.cores <= other.cores and self.memory_mib <= other.memory_mib

    def slots_of(self, each: Resources) -> int:
        """Return how many slots of size ``each``, which is not zero, fit into this amount; 0 if it is negative."""
        pairs = ((self.gpus, each.gpus), (self.cores, each.cores), (self.memory_mib, each.memory_mib))
        return max(0, min(mine // one for mine, one in pairs if one))

    def share_of(self, total: Resources) -> float:
        """Return the largest of its shares in ``total``, from 0 to 1.

        This is the dominant share of Ghodsi et al., 2011, section 4.
        """
        pairs = ((self.gpus, total.gpus), (self.cores, total.cores), (self.memory_mib, total.memory_mib))
        return max((mine / all_ for mine, all_ in pairs if all_ > 0), default=0.0)


NOTHING = Resources()
UNLIMITED = 1 << 40  # value of a resource that a limit does not name


def total(several: Iterable[Resources]) -> Resources:
    """Return the sum of several amounts."""
    result = Resources()
    for one in several:
        result = result.plus(one)
    return result


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Part of a gang: slots of one kind.

    The driver of a Spark application (YARN's application master) is a separate part with ``is_driver``.

    Attributes:
        name: Name of the part.
        count: Maximum number of slots.
        each: Resources of one slot.
        least: Minimum number of slots; 0 for ``count``.
        label: Label of the permitted nodes, as YARN's partitions; "" for nodes without a label.
        is_driver: True for the driver of a task.
    """

    name: str
    count: int
    each: Resources
    least: int = 0
    label: str = ""
    is_driver: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ArgumentError(f"part {self.name!r}: count={self.count}; a gang has at least one of each of its parts")
        if not 0 <= self.least <= self.count:
            raise ArgumentError(f"part {self.name!r}: least={self.least} is not between 1 and its count, {self.count}")
        if min(self.each.gpus, self.each.cores, self.each.memory_mib) < 0 or self.each == Resources():
            raise ArgumentError(f"part {self.name!r} needs {self.each}; a slot needs something, and nothing below 0")

    @property
    def at_least(self) -> int:
        """Number of slots without which the gang does not start."""
        return self.least or self.count


# For each part, in the gang's order: node -> number of its slots on the node.
Placement = tuple[dict[str, int], ...]


@dataclass(frozen=True, slots=True)
class GangShape:
    """Parts of a job that start together or not at all.

    Attributes:
        parts: Parts of the gang.
        least: Resources of its minimum numbers of slots.
        most: Resources of its maximum numbers of slots.
    """

    parts: tuple[SlotGroup, ...]
    least: Resources = field(init=False, compare=False)
    most: Resources = field(init=False, compare=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ArgumentError("a gang without parts: it has at least one, with its resources")
        object.__setattr__(self, "_hash", hash(self.parts))
        object.__setattr__(self, "least", total(part.each.times(part.at_least) for part in self.parts))
        object.__setattr__(self, "most", total(part.each.times(part.count) for part in self.parts))

    def __hash__(self) -> int:  # cached, because every scheduling pass looks gangs up in dictionaries
        return self._hash

    @property
    def is_elastic(self) -> bool:
        """True if the gang may run with fewer slots than its maximum."""
        return any(part.at_least < part.count for part in self.parts)

    def shrunk_to_fit(self, room: Resources) -> GangShape:
        """Return the gang with fewer slots, so that all of it fits into ``room``, but at least with its minimum."""
        left, parts = room.minus(self.least), []
        for part in self.parts:
            more = min(part.count - part.at_least, left.slots_of(part.each))
            left = left.minus(part.each.times(more))
            parts.append(replace(part, count=part.at_least + more, least=part.at_least))
        return GangShape(tuple(parts))

    def of(self, placement: Placement) -> Resources:
        """Return the resources that the gang occupies in a placement."""
        return total(part.each.times(sum(nodes.values())) for part, nodes in zip(self.parts, placement, strict=True))


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
