"""Which agent keeps which partition of a DataFrame; pure: what has happened in, what is to be done out.

Spark takes one successful attempt of each partition into a job's result, whatever else has run: that result says which of
the attempts that lie at agents is the one that counts. What an agent kept that is gone is fed again, by the same partitions
of the same DataFrame, which must have the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec


class StageAddress(msgspec.Struct, frozen=True):
    """Where an agent's stage, the process that keeps rows, is reached."""

    url: str
    certificate: str  # PEM; the one that it shows
    token: str
    hostname: str
    folder: str  # whose files a worker on the same machine maps
    host: str = ""  # address, and port for whole Arrow files, of Spark's JVM
    door: int = 0

    def __repr__(self) -> str:
        return f"StageAddress({self.url!r})"  # the token is nobody's


class StagedShard(msgspec.Struct, frozen=True):
    """What is read as a whole: successive record batches of a partition. ``size``: bytes."""

    first: int
    count: int
    rows: int
    size: int


class StagedPartition(msgspec.Struct, frozen=True):
    """One attempt of Spark's at a partition, as it lies at a stage."""

    partition: int
    attempt: int
    stage: str  # its URL
    shards: tuple[StagedShard, ...]

    def file(self, name: str) -> str:
        """Where it lies in its stage's folder; ``name``: of the DataFrame."""
        return file_of(name, self.partition, self.attempt)


def file_of(name: str, partition: int | str, attempt: int | str) -> str:
    """An attempt at a partition in a stage's folder. A name is an identifier of Python's, which a file system takes."""
    return f"data-{name}/{partition}-{attempt}.arrow"


class FrameTable(msgspec.Struct, frozen=True):
    """Where the rows of a DataFrame are: all partitions, in order."""

    name: str
    version: int
    partitions: tuple[StagedPartition, ...]
    stages: dict[str, StageAddress]  # by URL


decode_address = msgspec.msgpack.Decoder(StageAddress).decode
decode_addresses = msgspec.msgpack.Decoder(tuple[StageAddress, ...]).decode
decode_shards = msgspec.msgpack.Decoder(tuple[StagedShard, ...]).decode
decode_table = msgspec.msgpack.Decoder(FrameTable).decode


@dataclass(frozen=True)
class Push:
    """Have Spark bring these partitions to the stages."""

    partitions: tuple[int, ...]
    stages: tuple[StageAddress, ...]


@dataclass(frozen=True)
class Publish:
    """Let these stages know the table, for their workers."""

    table: FrameTable
    stages: tuple[StageAddress, ...]


@dataclass(frozen=True)
class Fail:
    """End the run."""

    reason: str


Action = Push | Publish | Fail


@dataclass
class FrameLog:
    """One DataFrame on its way to the agents of a run."""

    name: str
    partitions: int
    stages: dict[str, StageAddress] = field(default_factory=dict)  # by agent
    placed: dict[int, StagedPartition] = field(default_factory=dict)
    is_pushing: bool = False
    version: int = 0  # of the newest table
    told: dict[int, StagedPartition] | None = None  # what it says

    def opened(self, agent: str, stage: StageAddress, wanted: int) -> list[Action]:
        """A stage has begun. ``wanted``: how many of them the group's members have, once all are there."""
        self.stages.pop(agent, None)
        self.stages[agent] = stage
        if self.version and not self._missing():
            return [self._publish((stage,))]
        return self.settle(wanted)

    def gone(self, agent: str, wanted: int) -> list[Action]:
        """A stage has ended, with what it kept."""
        self.stages.pop(agent, None)
        return self.settle(wanted)

    def pushed(self, placed: Iterable[StagedPartition], wanted: int) -> list[Action]:
        """A job of Spark's has ended well: these attempts count."""
        self.is_pushing = False
        for one in placed:
            before = self.placed.get(one.partition)
            if before is not None and [shard.rows for shard in before.shards] != [shard.rows for shard in one.shards]:
                return [Fail(_changed(self.name, before, one))]
            self.placed[one.partition] = one
        return self.settle(wanted)

    def failed(self, cause: str) -> list[Action]:
        """A job of Spark's has failed for good."""
        return [Fail(not_brought(self.name, cause))]

    def settle(self, wanted: int) -> list[Action]:
        """Begin when the stages are there; feed again what is lost, as soon as no job is under way."""
        if self.is_pushing or not self.stages or (not self.placed and len(self.stages) < wanted):
            return []
        stages = tuple(self.stages.values())
        if missing := self._missing():
            self.is_pushing = True
            return [Push(missing, stages)]
        if self.told == self.placed:
            return []
        self.version += 1
        self.told = dict(self.placed)
        return [self._publish(stages)]

    def _missing(self) -> tuple[int, ...]:
        """Partitions of which no stage that is there keeps the attempt that counts."""
        there = {stage.url for stage in self.stages.values()}
        return tuple(n for n in range(self.partitions) if n not in self.placed or self.placed[n].stage not in there)

    def _publish(self, to: tuple[StageAddress, ...]) -> Publish:
        table = FrameTable(
            self.name,
            self.version,
            tuple(self.placed[number] for number in range(self.partitions)),
            {stage.url: stage for stage in self.stages.values()},
        )
        return Publish(table, to)


def _changed(name: str, before: StagedPartition, now: StagedPartition) -> str:
    rows = [sum(shard.rows for shard in one.shards) for one in (before, now)]
    how = f"{rows[0]} rows, and now {rows[1]}" if rows[0] != rows[1] else f"the same {rows[0]} rows, in other batches"
    return (
        f"partition {now.partition} of data={name!r} was lost with its agent and computed once more: it had {how}. A "
        "DataFrame that gives other rows each time (rand(), limit() without an order) must be written out, or checkpointed, "
        "before"
    )


def not_brought(name: str, cause: str) -> str:
    """Why the run fails, in words."""
    return f"data={name!r} could not be brought to the workers: {cause}"


def described(table: FrameTable) -> str:
    """What lies where, in a few words for people."""
    shards = [shard for one in table.partitions for shard in one.shards]
    size = sum(shard.size for shard in shards)
    return (
        f"data={table.name!r}: {sum(shard.rows for shard in shards):,} rows, {size / 1e6:,.1f} MB, in "
        f"{len(table.partitions)} partition(s) at {len(table.stages)} agent(s)"
    )
