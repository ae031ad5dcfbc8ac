"""Which agent keeps which partition of a DataFrame; pure: what has happened in, what is to be done out.

Spark takes one successful attempt of each partition into a job's result, whatever else has run: that result says which of
the attempts that lie at agents is the one that counts. What an agent kept that is gone is fed again, by the same partitions
of the same DataFrame, which must have the same rows.

Workers begin before all is there: what has come since they were told last is a wave, which they are told of soon after the
first partition, and then ever less often.
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
    client_key: str = ""  # PEM; with the certificate it is what clients of the Flight server must show

    def __repr__(self) -> str:
        return f"StageAddress({self.url!r})"  # its token and key are secret


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
    """Where the rows of a DataFrame are: the partitions that are known, in order.

    ``waves``: the numbers of those that became known together; a newer table has the same waves, and maybe more.
    ``is_whole``: whether these are all. ``is_settled``: and no other attempt at any of them is on its way, or will count.
    """

    name: str
    version: int
    partitions: tuple[StagedPartition, ...]
    stages: dict[str, StageAddress]  # by URL
    waves: tuple[tuple[int, ...], ...]
    is_whole: bool
    is_settled: bool


FIRST_PAUSE_S = 0.25  # between the first two waves
PAUSE_SHARE = 0.25  # of the time since the beginning, between others: their number grows with its logarithm

decode_address = msgspec.msgpack.Decoder(StageAddress).decode
decode_addresses = msgspec.msgpack.Decoder(tuple[StageAddress, ...]).decode
decode_partition = msgspec.msgpack.Decoder(StagedPartition).decode
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
    """One DataFrame on its way to the agents of a run.

    ``wanted``: how many stages the group's members have, once all are there. ``now``: seconds, of any clock that only grows.
    """

    name: str
    partitions: int
    stages: dict[str, StageAddress] = field(default_factory=dict)  # by agent
    placed: dict[int, StagedPartition] = field(default_factory=dict)
    waves: list[tuple[int, ...]] = field(default_factory=list)
    is_pushing: bool = False
    version: int = 0  # of the newest table
    told: tuple[StagedPartition, ...] | None = None  # what it says, and whether that is settled
    told_settled: bool = False
    _began: float | None = None  # the first job
    _next_wave: float = 0.0  # not before

    def opened(self, agent: str, stage: StageAddress, wanted: int, now: float) -> list[Action]:
        """A stage has begun."""
        self.stages.pop(agent, None)
        self.stages[agent] = stage
        news = self.settle(wanted, now)
        if self.told is None or any(isinstance(one, Publish) for one in news):
            return news
        return [self._publish((stage,)), *news]

    def gone(self, agent: str, wanted: int, now: float) -> list[Action]:
        """A stage has ended, with what it kept."""
        self.stages.pop(agent, None)
        return self.settle(wanted, now)

    def arrived(self, placed: Iterable[StagedPartition], wanted: int, now: float) -> list[Action]:
        """A job of Spark's has brought these; it goes on."""
        return self._place(placed) or self.settle(wanted, now)

    def pushed(self, wanted: int, now: float) -> list[Action]:
        """A job of Spark's has ended, and what it has not brought is still missing."""
        self.is_pushing = False
        return self.settle(wanted, now)

    def failed(self, cause: str) -> list[Action]:
        """A job of Spark's has failed for good."""
        return [Fail(not_brought(self.name, cause))]

    def settle(self, wanted: int, now: float) -> list[Action]:
        """Begin when the stages are there; tell what has come; feed again what is lost, as soon as no job is under way."""
        if not self.stages or (not self.placed and len(self.stages) < wanted):
            return []
        stages = tuple(self.stages.values())
        if not self.is_pushing and (missing := self._missing()):
            self.is_pushing = True
            self._began = now if self._began is None else self._began
            return [*self._news(stages, now), Push(missing, stages)]
        return self._news(stages, now)

    def _place(self, placed: Iterable[StagedPartition]) -> list[Action]:
        """These attempts count."""
        for one in placed:
            before = self.placed.get(one.partition)
            if before is not None and [shard.rows for shard in before.shards] != [shard.rows for shard in one.shards]:
                return [Fail(_changed(self.name, before, one))]
            self.placed[one.partition] = one
        return []

    def _news(self, stages: tuple[StageAddress, ...], now: float) -> list[Action]:
        """A table, where there is something to tell, and all is there or enough time has passed."""
        if not self._is_whole and (now < self._next_wave or not self.placed):
            return []
        known = {partition for wave in self.waves for partition in wave}
        new = tuple(sorted(self.placed.keys() - known))
        settled = self._is_whole and not self.is_pushing and not self._missing()
        if new or not self.waves:
            self.waves.append(new)
        elif (self._known(), settled) == (self.told, self.told_settled) or not settled:
            return []  # what is brought again is told when all of it is there
        since = 0.0 if self._began is None else now - self._began
        self._next_wave = now + max(FIRST_PAUSE_S, PAUSE_SHARE * since)
        self.version, self.told, self.told_settled = self.version + 1, self._known(), settled
        return [self._publish(stages)]

    @property
    def _is_whole(self) -> bool:
        return len(self.placed) == self.partitions

    def _known(self) -> tuple[StagedPartition, ...]:
        return tuple(self.placed[number] for number in sorted(number for wave in self.waves for number in wave))

    def _missing(self) -> tuple[int, ...]:
        """Partitions of which no stage that is there keeps the attempt that counts."""
        there = {stage.url for stage in self.stages.values()}
        return tuple(n for n in range(self.partitions) if n not in self.placed or self.placed[n].stage not in there)

    def _publish(self, to: tuple[StageAddress, ...]) -> Publish:
        stages = {stage.url: stage for stage in self.stages.values()}
        known = self.told or ()
        is_whole, is_settled = len(known) == self.partitions, self.told_settled and not self.is_pushing
        table = FrameTable(self.name, self.version, known, stages, tuple(self.waves), is_whole, is_settled)
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
