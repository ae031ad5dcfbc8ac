"""What a job needs and what a node has: counts of graphics processors, cores and mebibytes of memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hopsml.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Resources:
    """Whole GPUs, cores, and memory in MiB."""

    gpus: int = 0
    cores: int = 0
    memory_mib: int = 0

    def plus(self, other: Resources) -> Resources:
        """The sum."""
        return Resources(self.gpus + other.gpus, self.cores + other.cores, self.memory_mib + other.memory_mib)

    def minus(self, other: Resources) -> Resources:
        """The difference, which may be negative."""
        return self.plus(other.times(-1))

    def times(self, count: int) -> Resources:
        """So often that."""
        return Resources(self.gpus * count, self.cores * count, self.memory_mib * count)

    def within(self, other: Resources) -> bool:
        """Whether ``other`` has at least as much of each."""
        return self.gpus <= other.gpus and self.cores <= other.cores and self.memory_mib <= other.memory_mib

    def slots_of(self, each: Resources) -> int:
        """How often ``each``, which is something, is in it; 0 where it is below 0."""
        pairs = ((self.gpus, each.gpus), (self.cores, each.cores), (self.memory_mib, each.memory_mib))
        return max(0, min(mine // one for mine, one in pairs if one))

    def share_of(self, total: Resources) -> float:
        """The largest of its shares in ``total``, 0 to 1: the dominant share of Ghodsi et al., 2011, section 4."""
        pairs = ((self.gpus, total.gpus), (self.cores, total.cores), (self.memory_mib, total.memory_mib))
        return max((mine / all_ for mine, all_ in pairs if all_ > 0), default=0.0)


NOTHING = Resources()
UNLIMITED = 1 << 40  # of what a limit does not name


def total(several: Iterable[Resources]) -> Resources:
    """Their sum."""
    result = Resources()
    for one in several:
        result = result.plus(one)
    return result


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Slots of one kind in a gang: ``count`` of them, or as few as ``least``, if the job is content with fewer.

    ``label``: of the nodes on which they may be, as YARN's partitions; "" for nodes that bear none. The driver of a
    Spark application (the application master of YARN) is a part of its own: ``is_driver``.
    """

    name: str
    count: int
    each: Resources
    least: int = 0  # 0: no fewer than count
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
        """Without so many the gang does not start."""
        return self.least or self.count


# Of each part, in the gang's order: node -> how many of its slots are there.
Placement = tuple[dict[str, int], ...]


@dataclass(frozen=True, slots=True)
class GangShape:
    """What starts together or not at all."""

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

    def __hash__(self) -> int:  # of keys of dictionaries that every pass looks into
        return self._hash

    @property
    def is_elastic(self) -> bool:
        """Whether it may run with fewer than it asks for."""
        return any(part.at_least < part.count for part in self.parts)

    def fitting(self, room: Resources) -> GangShape:
        """The same with so few slots that all of it fits into ``room``, but no fewer than it cannot do without."""
        left, parts = room.minus(self.least), []
        for part in self.parts:
            more = min(part.count - part.at_least, left.slots_of(part.each))
            left = left.minus(part.each.times(more))
            parts.append(replace(part, count=part.at_least + more, least=part.at_least))
        return GangShape(tuple(parts))

    def of(self, placement: Placement) -> Resources:
        """What it takes where it is placed."""
        return total(part.each.times(sum(nodes.values())) for part, nodes in zip(self.parts, placement, strict=True))
