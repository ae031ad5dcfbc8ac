"""Tests of the locations of a DataFrame's rows while they are transferred, with lost and added stages."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hopsml.training.data.frame_log import (
    FIRST_PAUSE_S,
    PAUSE_SHARE,
    EndRun,
    FrameTable,
    FrameTransfer,
    PublishTable,
    StageAddress,
    StagedPartition,
    StagedShard,
    StartPushJob,
    describe_table,
)

pytestmark = pytest.mark.fast


def stage(name: str) -> StageAddress:
    return StageAddress(f"grpc+tls://{name}", "certificate", "token", "host", f"/{name}")


def staged_partition(partition: int, at: str, *rows: int, attempt: int = 0) -> StagedPartition:
    shards = tuple(StagedShard(number, 1, count, 8 * count) for number, count in enumerate(rows))
    return StagedPartition(partition, attempt, stage(at).url, shards)


def push_all(log: FrameTransfer, placed: list[StagedPartition], wanted: int, now: float = 1.0) -> list[Any]:
    """All partitions of a job at its end."""
    return [*log.partitions_stored(placed, wanted, now), *log.push_job_ended(wanted, now)]


def test_frame_log_pushes_only_when_stages_of_all_members_are_open() -> None:
    log = FrameTransfer("clicks", 3)
    assert log.stage_opened("a1", stage("one"), 2, 0) == []
    (push,) = log.stage_opened("a2", stage("two"), 2, 0)
    assert push == StartPushJob((0, 1, 2), (stage("one"), stage("two")))
    assert log.due_actions(2, 0) == []  # a job is under way


def test_frame_log_does_not_wait_for_a_lost_member() -> None:
    log = FrameTransfer("clicks", 1)
    assert log.stage_opened("a1", stage("one"), 2, 0) == []
    assert log.due_actions(1, 0) == [StartPushJob((0,), (stage("one"),))]


def test_frame_log_publishes_row_locations_once_to_all_stages() -> None:
    log = FrameTransfer("clicks", 2)
    log.stage_opened("a1", stage("one"), 1, 0)
    placed = [staged_partition(1, "one", 5), staged_partition(0, "one", 3, 4)]
    first, settled = push_all(log, placed, 1)
    table = FrameTable("clicks", 1, (placed[1], placed[0]), {stage("one").url: stage("one")}, ((0, 1),), True, False)
    assert first == PublishTable(table, (stage("one"),))
    assert settled == PublishTable(msgspec.structs.replace(table, version=2, is_settled=True), (stage("one"),))
    assert log.due_actions(1, 99) == []
    assert describe_table(table, 1) == "data='clicks': 12 rows, 0.0 MB, in 2 partition(s) at 1 agent(s)"


def test_frame_log_publishes_the_first_partition_at_once_and_later_ones_less_often() -> None:
    log = FrameTransfer("clicks", 400)
    log.stage_opened("a1", stage("one"), 1, 0)
    published = []
    for number in range(400):  # one each tenth of a second
        now = 0.1 * (number + 1)
        published += [
            (now, one.table) for one in log.partitions_stored([staged_partition(399 - number, "one", 5)], 1, now)
        ]
    assert published[0][0] == 0.1 and published[0][1].waves == ((399,),) and not published[0][1].is_whole
    assert all(not table.is_whole for _, table in published[:-1]) and published[-1][1].is_whole
    assert sorted(sum(published[-1][1].waves, ())) == list(range(400))
    for (before, one), (after, other) in itertools.pairwise(published[:-1]):
        assert other.waves[: len(one.waves)] == one.waves and len(other.waves) == len(one.waves) + 1
        assert after - before >= max(FIRST_PAUSE_S, PAUSE_SHARE * before) - 1e-9
    assert len(published) < 25
    (settled,) = log.push_job_ended(1, 50)
    assert isinstance(settled, PublishTable) and settled.table.is_settled and not published[-1][1].is_settled
    assert log.due_actions(1, 60) == []


def test_frame_log_publishes_to_a_newcomer_at_once() -> None:
    log = FrameTransfer("clicks", 1)
    log.stage_opened("a1", stage("one"), 1, 0)
    push_all(log, [staged_partition(0, "one", 5)], 1)
    (published,) = log.stage_opened("a2", stage("two"), 2, 2)
    assert isinstance(published, PublishTable) and published.stages == (stage("two"),) and published.table.version == 2


def test_frame_log_publishes_arrived_partitions_to_a_newcomer_during_the_push() -> None:
    log = FrameTransfer("clicks", 2)
    log.stage_opened("a1", stage("one"), 1, 0)
    log.partitions_stored([staged_partition(0, "one", 5)], 1, 1)
    (published,) = log.stage_opened("a2", stage("two"), 2, 1)
    assert (
        isinstance(published, PublishTable) and published.stages == (stage("two"),) and published.table.waves == ((0,),)
    )


def test_frame_log_pushes_only_partitions_lost_with_a_stage_again() -> None:
    log = FrameTransfer("clicks", 3)
    log.stage_opened("a1", stage("one"), 2, 0)
    log.stage_opened("a2", stage("two"), 2, 0)
    push_all(log, [staged_partition(0, "one", 5), staged_partition(1, "two", 6), staged_partition(2, "two", 7)], 2)
    assert log.stage_ended("a2", 1, 2) == [StartPushJob((1, 2), (stage("one"),))]
    (published,) = push_all(
        log, [staged_partition(1, "one", 6, attempt=9), staged_partition(2, "one", 7, attempt=8)], 1, 3
    )
    assert (
        isinstance(published, PublishTable) and published.table.version == 3 and published.table.waves == ((0, 1, 2),)
    )
    assert published.table.is_settled
    assert [one.attempt for one in published.table.partitions] == [0, 9, 8]


def test_frame_log_pushes_partitions_again_that_arrived_at_an_ended_stage() -> None:
    log = FrameTransfer("clicks", 2)
    log.stage_opened("a1", stage("one"), 2, 0)
    log.stage_opened("a2", stage("two"), 2, 0)
    assert log.stage_ended("a2", 1, 1) == []  # as long as the job is under way
    *_, last = push_all(log, [staged_partition(0, "one", 5), staged_partition(1, "two", 6)], 1)
    assert last == StartPushJob((1,), (stage("one"),))


def test_frame_log_restarts_a_cancelled_push_with_missing_partitions() -> None:
    log = FrameTransfer("clicks", 2)
    log.stage_opened("a1", stage("one"), 1, 0)
    log.partitions_stored([staged_partition(1, "one", 5)], 1, 0)
    assert log.push_job_ended(1, 0) == [StartPushJob((0,), (stage("one"),))]


def test_frame_log_without_stages_waits_for_the_next_one() -> None:
    log = FrameTransfer("clicks", 1)
    log.stage_opened("a1", stage("one"), 1, 0)
    push_all(log, [staged_partition(0, "one", 5)], 1)
    assert log.stage_ended("a1", 0, 2) == []
    *_, last = log.stage_opened("a2", stage("two"), 1, 2)
    assert last == StartPushJob((0,), (stage("two"),))


def test_frame_log_treats_a_replacement_stage_of_an_agent_as_empty() -> None:
    log = FrameTransfer("clicks", 1)
    log.stage_opened("a1", stage("one"), 1, 0)
    push_all(log, [staged_partition(0, "one", 5)], 1)
    *_, last = log.stage_opened("a1", stage("again"), 1, 2)
    assert last == StartPushJob((0,), (stage("again"),))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((5, 6), "it had 12 rows, and now 11"),
        ((6, 6), "it had the same 12 rows, in other batches"),
    ],
)
def test_frame_log_refuses_a_dataframe_that_returns_different_rows(rows: tuple[int, ...], message: str) -> None:
    log = FrameTransfer("clicks", 1)
    log.stage_opened("a1", stage("one"), 1, 0)
    push_all(log, [staged_partition(0, "one", 7, 5)], 1)
    log.stage_opened("a1", stage("again"), 1, 2)
    (fail,) = log.partitions_stored([staged_partition(0, "again", *rows)], 1, 3)
    assert isinstance(fail, EndRun) and message in fail.reason and "checkpointed" in fail.reason


def test_frame_log_publishes_a_table_for_a_dataframe_without_partitions() -> None:
    log = FrameTransfer("clicks", 0)
    (published,) = log.stage_opened("a1", stage("one"), 1, 0)
    assert isinstance(published, PublishTable) and published.table.partitions == () and published.table.waves == ((),)
    assert published.table.is_whole and log.due_actions(1, 9) == []


def test_failed_push_job_fails_the_run_with_its_cause() -> None:
    log = FrameTransfer("clicks", 1)
    log.stage_opened("a1", stage("one"), 1, 0)
    (failed,) = log.push_job_failed("ValueError: no.")
    assert isinstance(failed, EndRun)
    assert failed.reason.startswith(
        "data='clicks' could not be sent to the workers: ValueError: no. Remedy: correct the "
    )


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "data='clicks' has no rows; check the filters and joins of the DataFrame"),
        ([1], "data='clicks': 1 row, 0.0 MB, in 1 partition(s) at 1 agent(s); 2 of 3 workers have no row"),
        ([2, 1], "data='clicks': 3 rows, 0.0 MB, in 1 partition(s) at 1 agent(s)"),
    ],
)
def test_note_names_too_few_rows(rows: list[int], text: str) -> None:
    table = FrameTable(
        "clicks", 1, (staged_partition(0, "one", *rows),), {stage("one").url: stage("one")}, ((),), True, True
    )
    assert describe_table(table, 3) == text


class Feeding(RuleBasedStateMachine):
    """Stages come and go, jobs bring what they bring and end well or are cancelled, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.log = FrameTransfer("clicks", 5)
        self.there: dict[str, str] = {}  # agent -> stage
        self.job: StartPushJob | None = None
        self.left: list[int] = []  # partitions that the job still has to send
        self.named = self.attempts = 0
        self.now = 0.0
        self.table: FrameTable | None = None
        self.knows: dict[str, int] = {}  # stage -> version of its table

    def carry_out(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case StartPushJob():
                    assert self.job is None, "two jobs at once"
                    self.job, self.left = action, list(action.partitions)
                case PublishTable():
                    self.check_table(action.table)
                    for one in action.stages:
                        self.knows[one.url] = action.table.version
                case EndRun():
                    raise AssertionError(action.reason)

    def check_table(self, table: FrameTable) -> None:
        """Check what workers rely on: waves and a partition's rows never change, each partition is in one wave."""
        before, self.table = self.table, table
        numbers = sorted(number for wave in table.waves for number in wave)
        assert [one.partition for one in table.partitions] == numbers == sorted(set(numbers))
        assert table.is_whole == (len(numbers) == 5) and table.is_whole >= table.is_settled
        assert not table.is_settled or self.job is None, "a job may have kept what is not told yet"
        if before is not None:
            assert table.version >= before.version and table.waves[: len(before.waves)] == before.waves
            assert not before.is_whole or table.waves == before.waves

    @rule(agent=st.sampled_from(["a1", "a2", "a3"]))
    def stage_opens(self, agent: str) -> None:
        self.named += 1
        self.there[agent] = f"s{self.named}"
        self.carry_out(self.log.stage_opened(agent, stage(self.there[agent]), len(self.there), self.now))

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def stage_ends(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.there)))
        del self.there[agent]
        self.carry_out(self.log.stage_ended(agent, len(self.there), self.now))

    @precondition(lambda self: self.left)
    @rule(data=st.data(), some=st.integers(1, 3))
    def job_sends_partitions(self, data: st.DataObject, some: int) -> None:
        assert self.job is not None
        names = [one.url.removeprefix("grpc+tls://") for one in self.job.stages]
        self.attempts += 10
        brought, self.left = self.left[:some], self.left[some:]
        placed = [
            staged_partition(number, data.draw(st.sampled_from(names)), number + 1, attempt=self.attempts + number)
            for number in brought
        ]
        self.carry_out(self.log.partitions_stored(placed, len(self.there), self.now))

    @precondition(lambda self: self.job is not None)
    @rule(cancelled=st.booleans())
    def job_ends(self, cancelled: bool) -> None:
        if not self.left or cancelled:
            self.job, self.left = None, []
            self.carry_out(self.log.push_job_ended(len(self.there), self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.log.due_actions(len(self.there), self.now))

    @invariant()
    def settled_table_is_complete_and_published_to_all(self) -> None:
        if self.job is not None or not self.there:
            return
        assert self.table is not None and self.table.is_whole and self.table.is_settled
        urls = {stage(name).url for name in self.there.values()}
        assert {one.stage for one in self.table.partitions} <= urls
        assert all(self.knows.get(url) == self.table.version for url in urls)


TestFeeding = Feeding.TestCase
