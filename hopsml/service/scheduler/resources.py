"""Resources of jobs and nodes, shapes of gangs and placements: GPUs, cores and mebibytes of memory."""

from __future__ import annotations

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

    def fitting(self, room: Resources) -> GangShape:
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
