"""State machine that assigns the partitions of a DataFrame to agents; pure: events in, actions out.

Spark includes one successful attempt of each partition in a job's result, whatever other attempts have run: the result
determines which of the attempts stored at agents is valid. Partitions that were stored at a failed agent are computed
again from the same DataFrame, which must produce the same rows.

Workers start before all partitions are stored. The partitions that arrived since the last table form a wave, which is
published soon after the first partition and then less and less often.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from hopsml.core.decoding import checked

FIRST_PAUSE_S = 0.25  # between the first two waves
PAUSE_SHARE = 0.25  # fraction of the time since the start, between later waves: their number grows logarithmically


class StageAddress(msgspec.Struct, frozen=True):
    """Network address and credentials of an agent's stage, the process that stores rows."""

    url: str
    certificate: str  # PEM; the server's certificate
    token: str
    hostname: str
    folder: str  # workers on the same machine memory-map its files
    host: str = ""  # host and port where Spark's JVM sends whole Arrow files
    door: int = 0
    client_key: str = ""  # PEM; with the certificate it is what clients of the Flight server must show

    def __repr__(self) -> str:
        return f"StageAddress({self.url!r})"  # its token and key are secret


class StagedShard(msgspec.Struct, frozen=True):
    """Unit of reading: ``count`` successive record batches of a partition, from batch ``first`` on.

    ``size`` is in bytes.
    """

    first: int
    count: int
    rows: int
    size: int


class StagedPartition(msgspec.Struct, frozen=True):
    """One Spark attempt at a partition, as stored at a stage."""

    partition: int
    attempt: int
    stage: str  # URL of the stage
    shards: tuple[StagedShard, ...]

    def file_path(self, name: str) -> str:
        """Return the path of the attempt's file within the stage's folder; ``name`` is that of the DataFrame."""
        return attempt_file_path(name, self.partition, self.attempt)


def attempt_file_path(name: str, partition: int | str, attempt: int | str) -> str:
    """Return the path of an attempt's file within a stage's folder.

    ``name`` is a Python identifier, so that it is a valid file name.
    """
    return f"data-{name}/{partition}-{attempt}.arrow"


class FrameTable(msgspec.Struct, frozen=True):
    """Locations of a DataFrame's rows: the partitions that are known, in order.

    Attributes:
        name: of the DataFrame.
        version: increases with each table that is published.
        partitions: the known partitions, by number.
        stages: addresses of the stages, by URL.
        waves: numbers of the partitions that became known together; a newer table has the same waves, and maybe more.
        is_whole: True if all partitions are known.
        is_settled: True if also no other attempt at any of them is in progress or can become valid.
    """

    name: str
    version: int
    partitions: tuple[StagedPartition, ...]
    stages: dict[str, StageAddress]  # by URL
    waves: tuple[tuple[int, ...], ...]
    is_whole: bool
    is_settled: bool


decode_address = checked(msgspec.msgpack.Decoder(StageAddress).decode)
decode_addresses = checked(msgspec.msgpack.Decoder(tuple[StageAddress, ...]).decode)
decode_partition = checked(msgspec.msgpack.Decoder(StagedPartition).decode)
decode_shards = checked(msgspec.msgpack.Decoder(tuple[StagedShard, ...]).decode)
decode_table = checked(msgspec.msgpack.Decoder(FrameTable).decode)


@dataclass(frozen=True)
class StartPushJob:
    """Action: start a Spark job that sends these partitions to the stages."""

    partitions: tuple[int, ...]
    stages: tuple[StageAddress, ...]


@dataclass(frozen=True)
class PublishTable:
    """Action: send the table to these stages, for their workers."""

    table: FrameTable
    stages: tuple[StageAddress, ...]


@dataclass(frozen=True)
class EndRun:
    """Action: end the run with this reason."""

    reason: str


Action = StartPushJob | PublishTable | EndRun


@dataclass
class FrameTransfer:
    """State of one DataFrame's transfer to the agents of a run.

    Each event method takes ``wanted``, the number of stages that the group's members have once all are open, and
    ``now``, seconds of a monotonic clock; it returns the actions to perform.
    """

    name: str
    partitions: int
    stages: dict[str, StageAddress] = field(default_factory=dict)  # by agent
    placed: dict[int, StagedPartition] = field(default_factory=dict)
    waves: list[tuple[int, ...]] = field(default_factory=list)
    is_pushing: bool = False
    version: int = 0  # of the newest table
    told: tuple[StagedPartition, ...] | None = None  # partitions of the newest table
    told_settled: bool = False
    _began: float | None = None  # start of the first job
    _next_wave: float = 0.0  # earliest time

    def stage_opened(self, agent: str, stage: StageAddress, wanted: int, now: float) -> list[Action]:
        """Handle a stage that has been opened at ``agent``."""
        self.stages.pop(agent, None)
        self.stages[agent] = stage
        news = self.due_actions(wanted, now)
        if self.told is None or any(isinstance(one, PublishTable) for one in news):
            return news
        return [self._publish((stage,)), *news]

    def stage_ended(self, agent: str, wanted: int, now: float) -> list[Action]:
        """Handle a stage that has ended, with the partitions that it stored."""
        self.stages.pop(agent, None)
        return self.due_actions(wanted, now)

    def partitions_stored(self, placed: Iterable[StagedPartition], wanted: int, now: float) -> list[Action]:
        """Handle partitions that a Spark job has stored; the job is still running."""
        return self._place(placed) or self.due_actions(wanted, now)

    def push_job_ended(self, wanted: int, now: float) -> list[Action]:
        """Handle the end of a Spark job; partitions that it has not stored are missing."""
        self.is_pushing = False
        return self.due_actions(wanted, now)

    def push_job_failed(self, cause: str) -> list[Action]:
        """Handle the permanent failure of a Spark job."""
        return [EndRun(transfer_error_message(self.name, cause))]

    def due_actions(self, wanted: int, now: float) -> list[Action]:
        """Return the actions that are due: a Spark job for missing partitions, and a new table.

        The first job starts once the stages are open; a lost partition is requested again once no job is running.
        """
        if not self.stages or (not self.placed and len(self.stages) < wanted):
            return []
        stages = tuple(self.stages.values())
        if not self.is_pushing and (missing := self._missing()):
            self.is_pushing = True
            self._began = now if self._began is None else self._began
            return [*self._news(stages, now), StartPushJob(missing, stages)]
        return self._news(stages, now)

    def _place(self, placed: Iterable[StagedPartition]) -> list[Action]:
        """Record these attempts as valid ones; return a failure if a partition was recomputed with other rows."""
        for one in placed:
            before = self.placed.get(one.partition)
            if before is not None and [shard.rows for shard in before.shards] != [shard.rows for shard in one.shards]:
                return [EndRun(_changed(self.name, before, one))]
            self.placed[one.partition] = one
        return []

    def _news(self, stages: tuple[StageAddress, ...], now: float) -> list[Action]:
        """Return a new table if something has changed, and all partitions are stored or enough time has passed."""
        if not self._is_whole and (now < self._next_wave or not self.placed):
            return []
        known = {partition for wave in self.waves for partition in wave}
        new = tuple(sorted(self.placed.keys() - known))
        settled = self._is_whole and not self.is_pushing and not self._missing()
        if new or not self.waves:
            self.waves.append(new)
        elif (self._known(), settled) == (self.told, self.told_settled) or not settled:
            return []  # partitions that are computed again are published when all of them are stored
        since = 0.0 if self._began is None else now - self._began
        self._next_wave = now + max(FIRST_PAUSE_S, PAUSE_SHARE * since)
        self.version, self.told, self.told_settled = self.version + 1, self._known(), settled
        return [self._publish(stages)]

    @property
    def _is_whole(self) -> bool:
        """True if every partition has been stored at some time."""
        return len(self.placed) == self.partitions

    def _known(self) -> tuple[StagedPartition, ...]:
        """Return the partitions of all waves, by number."""
        return tuple(self.placed[number] for number in sorted(number for wave in self.waves for number in wave))

    def _missing(self) -> tuple[int, ...]:
        """Return the partitions whose valid attempt is stored at no open stage."""
        there = {stage.url for stage in self.stages.values()}
        return tuple(n for n in range(self.partitions) if n not in self.placed or self.placed[n].stage not in there)

    def _publish(self, to: tuple[StageAddress, ...]) -> PublishTable:
        """Return the action that sends the newest table to stages."""
        stages = {stage.url: stage for stage in self.stages.values()}
        known = self.told or ()
        is_whole, is_settled = len(known) == self.partitions, self.told_settled and not self.is_pushing
        table = FrameTable(self.name, self.version, known, stages, tuple(self.waves), is_whole, is_settled)
        return PublishTable(table, to)


def _changed(name: str, before: StagedPartition, now: StagedPartition) -> str:
    """Build the error message of a partition that was recomputed with other rows."""
    rows = [sum(shard.rows for shard in one.shards) for one in (before, now)]
    how = f"{rows[0]} rows, and now {rows[1]}" if rows[0] != rows[1] else f"the same {rows[0]} rows, in other batches"
    return (
        f"partition {now.partition} of data={name!r} was lost with its agent and computed again, with a different "
        f"result: it had {how}. A DataFrame whose rows change at each computation (rand(), limit() without an order) "
        "must be written out, or checkpointed, before"
    )


def transfer_error_message(name: str, cause: str) -> str:
    """Build the error message of a DataFrame whose transfer to the workers has failed."""
    return (
        f"data={name!r} could not be sent to the workers: {cause.rstrip('.')}. Remedy: correct the DataFrame; if Spark "
        'cannot compute it alone either, df.write.format("noop").mode("overwrite").save() shows Spark\'s whole error'
    )


def describe_table(table: FrameTable, workers: int) -> str:
    """Return the numbers of rows, bytes, partitions and agents of a table, for the log, and whether rows are too few."""
    shards = [shard for one in table.partitions for shard in one.shards]
    size = sum(shard.size for shard in shards)
    rows = sum(shard.rows for shard in shards)
    if not rows:
        return f"data={table.name!r} has no rows; check the filters and joins of the DataFrame"
    return (
        f"data={table.name!r}: {rows:,} row{'s' * (rows != 1)}, {size / 1e6:,.1f} MB, in "
        f"{len(table.partitions)} partition(s) at {len(table.stages)} agent(s)"
        + f"; {workers - rows} of {workers} workers have no row"
        * (rows < workers)
    )
