"""Where the rows of a DataFrame are, whatever comes and goes while they are brought."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hopsml.training.data.frame_log import (
    Fail,
    FrameLog,
    FrameTable,
    Publish,
    Push,
    StageAddress,
    StagedPartition,
    StagedShard,
    described,
)

pytestmark = pytest.mark.fast


def stage(name: str) -> StageAddress:
    return StageAddress(f"grpc+tls://{name}", "certificate", "token", "host", f"/{name}")


def kept(partition: int, at: str, *rows: int, attempt: int = 0) -> StagedPartition:
    shards = tuple(StagedShard(number, 1, count, 8 * count) for number, count in enumerate(rows))
    return StagedPartition(partition, attempt, stage(at).url, shards)


def test_nothing_begins_before_all_members_stages_are_there() -> None:
    log = FrameLog("clicks", 3)
    assert log.opened("a1", stage("one"), wanted=2) == []
    (push,) = log.opened("a2", stage("two"), wanted=2)
    assert push == Push((0, 1, 2), (stage("one"), stage("two")))
    assert log.settle(2) == []  # a job is under way


def test_a_member_that_is_lost_meanwhile_is_not_waited_for() -> None:
    log = FrameLog("clicks", 1)
    assert log.opened("a1", stage("one"), wanted=2) == []
    assert log.settle(1) == [Push((0,), (stage("one"),))]


def test_all_stages_are_told_where_all_rows_are_once() -> None:
    log = FrameLog("clicks", 2)
    log.opened("a1", stage("one"), 1)
    placed = [kept(1, "one", 5), kept(0, "one", 3, 4)]
    (told,) = log.pushed(placed, 1)
    table = FrameTable("clicks", 1, (placed[1], placed[0]), {stage("one").url: stage("one")})
    assert told == Publish(table, (stage("one"),))
    assert log.settle(1) == []
    assert described(table) == "data='clicks': 12 rows, 0.0 MB, in 2 partition(s) at 1 agent(s)"


def test_a_newcomer_is_told_at_once() -> None:
    log = FrameLog("clicks", 1)
    log.opened("a1", stage("one"), 1)
    log.pushed([kept(0, "one", 5)], 1)
    (told,) = log.opened("a2", stage("two"), 2)
    assert isinstance(told, Publish) and told.stages == (stage("two"),) and told.table.version == 1


def test_what_was_lost_with_a_stage_is_brought_again_and_nothing_else() -> None:
    log = FrameLog("clicks", 3)
    log.opened("a1", stage("one"), 2)
    log.opened("a2", stage("two"), 2)
    log.pushed([kept(0, "one", 5), kept(1, "two", 6), kept(2, "two", 7)], 2)
    assert log.gone("a2", 1) == [Push((1, 2), (stage("one"),))]
    (told,) = log.pushed([kept(1, "one", 6, attempt=9), kept(2, "one", 7, attempt=8)], 1)
    assert isinstance(told, Publish) and told.table.version == 2
    assert [one.attempt for one in told.table.partitions] == [0, 9, 8]


def test_what_was_brought_to_a_stage_that_is_gone_by_then_is_brought_once_more() -> None:
    log = FrameLog("clicks", 2)
    log.opened("a1", stage("one"), 2)
    log.opened("a2", stage("two"), 2)
    assert log.gone("a2", 1) == []  # as long as the job is under way
    assert log.pushed([kept(0, "one", 5), kept(1, "two", 6)], 1) == [Push((1,), (stage("one"),))]


def test_a_cancelled_job_begins_again() -> None:
    log = FrameLog("clicks", 1)
    log.opened("a1", stage("one"), 1)
    assert log.pushed([], 1) == [Push((0,), (stage("one"),))]


def test_without_any_stage_the_next_one_is_waited_for() -> None:
    log = FrameLog("clicks", 1)
    log.opened("a1", stage("one"), 1)
    log.pushed([kept(0, "one", 5)], 1)
    assert log.gone("a1", 0) == []
    assert log.opened("a2", stage("two"), 1) == [Push((0,), (stage("two"),))]


def test_a_stage_in_the_place_of_another_of_the_same_agent_keeps_nothing_yet() -> None:
    log = FrameLog("clicks", 1)
    log.opened("a1", stage("one"), 1)
    log.pushed([kept(0, "one", 5)], 1)
    assert log.opened("a1", stage("again"), 1) == [Push((0,), (stage("again"),))]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((5, 6), "it had 12 rows, and now 11"),
        ((6, 6), "it had the same 12 rows, in other batches"),
    ],
)
def test_a_dataframe_that_gives_other_rows_is_refused(rows: tuple[int, ...], message: str) -> None:
    log = FrameLog("clicks", 1)
    log.opened("a1", stage("one"), 1)
    log.pushed([kept(0, "one", 7, 5)], 1)
    log.opened("a1", stage("again"), 1)
    (fail,) = log.pushed([kept(0, "again", *rows)], 1)
    assert isinstance(fail, Fail) and message in fail.reason and "checkpointed" in fail.reason


def test_a_dataframe_without_partitions_has_a_table_too() -> None:
    log = FrameLog("clicks", 0)
    (told,) = log.opened("a1", stage("one"), 1)
    assert isinstance(told, Publish) and told.table.partitions == ()
    assert log.settle(1) == []


def test_a_job_that_fails_ends_the_run_with_its_cause() -> None:
    log = FrameLog("clicks", 1)
    log.opened("a1", stage("one"), 1)
    assert log.failed("ValueError: no") == [Fail("data='clicks' could not be brought to the workers: ValueError: no")]


class Feeding(RuleBasedStateMachine):
    """Stages come and go, jobs end well or are cancelled, in any order; the model knows what lies where."""

    def __init__(self) -> None:
        super().__init__()
        self.log = FrameLog("clicks", 5)
        self.there: dict[str, str] = {}  # agent -> stage
        self.job: Push | None = None
        self.named = self.attempts = 0
        self.table: FrameTable | None = None
        self.knows: dict[str, int] = {}  # stage -> version of its table

    def carry_out(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Push():
                    assert self.job is None, "two jobs at once"
                    self.job = action
                case Publish():
                    assert self.table is None or action.table.version >= self.table.version
                    self.table = action.table
                    for one in action.stages:
                        self.knows[one.url] = action.table.version
                case Fail():
                    raise AssertionError(action.reason)

    @rule(agent=st.sampled_from(["a1", "a2", "a3"]))
    def opens(self, agent: str) -> None:
        self.named += 1
        self.there[agent] = f"s{self.named}"
        self.carry_out(self.log.opened(agent, stage(self.there[agent]), len(self.there)))

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.there)))
        del self.there[agent]
        self.carry_out(self.log.gone(agent, len(self.there)))

    @precondition(lambda self: self.job is not None)
    @rule(data=st.data(), cancelled=st.booleans())
    def job_ends(self, data: st.DataObject, cancelled: bool) -> None:
        assert self.job is not None
        push, self.job = self.job, None
        names = [one.url.removeprefix("grpc+tls://") for one in push.stages]
        self.attempts += 10
        placed = [
            kept(number, data.draw(st.sampled_from(names)), number + 1, attempt=self.attempts + number)
            for number in push.partitions
        ]
        self.carry_out(self.log.pushed([] if cancelled else placed, len(self.there)))

    @invariant()
    def at_rest_all_rows_are_where_the_table_says_and_all_know_it(self) -> None:
        if self.job is not None or not self.there:
            return
        assert self.table is not None
        urls = {stage(name).url for name in self.there.values()}
        assert [one.partition for one in self.table.partitions] == list(range(5))
        assert {one.stage for one in self.table.partitions} <= urls
        assert all(self.knows.get(url) == self.table.version for url in urls)


TestFeeding = Feeding.TestCase
