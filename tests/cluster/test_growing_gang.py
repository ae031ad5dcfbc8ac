"""Groups that grow in their processes: the rules one by one; the walks are beside those of others."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic_gang import END_S
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.growing_gang import AGAIN_S, PAUSE_S, TOGETHER_S, GrowingGang
from hopsml.cluster.gang.mending_gang import GROW_S, MEND_S
from tests.cluster.elastic_group import close, committed, grant, of_kind, running
from tests.cluster.test_mending_gang import KILLED, kill, mended, notes

pytestmark = pytest.mark.fast


def at_work(*names: str, **other: Any) -> GrowingGang:
    """All members train, in a group that can go on with others; each holds the commit of step 5."""
    machine = running(*names, kind=GrowingGang, **{"min_size": 1, **other})
    assert isinstance(machine, GrowingGang)
    committed(machine, 5, *names)
    for name in names:
        machine.handle(events.Mendable(name, machine.generation), 3.0)
    return machine


def prepared(machine: GrowingGang, *names: str, now: float = 4.0) -> list[events.Action]:
    """These newcomers' workers have begun, and are ready."""
    actions = list[events.Action]()
    for name in names:
        number = machine.newcomers[name].generation
        machine.handle(events.Started(name, number), now)
        machine.handle(events.Mendable(name, number), now)
        actions += machine.handle(events.Paused(name, number, 6), now)
    return actions


def paused(machine: GrowingGang, *names: str, step: int = 9, now: float = 4.2) -> list[events.Action]:
    generation = machine.generation
    return [one for name in names for one in machine.handle(events.Paused(name, generation, step), now)]


def coming(*names: str, **other: Any) -> GrowingGang:
    """Two members have paused for newcomers, with whom they form the next generation."""
    machine = at_work("a", "b", size=2 + len(names), **other)
    grant(machine, *names, now=3.5)
    prepared(machine, *names)
    paused(machine, "a", "b")
    assert machine.phase is Phase.MENDING and set(machine.members) == {"a", "b", *names}
    machine.handle(events.Ranked(("a", "b", *names)), 4.2)
    return machine


# ---------------------------------------------------------------------------------------------------- as it goes


def test_a_newcomer_prepares_beside_the_others_who_pause_when_it_is_ready() -> None:
    machine = at_work("a", "b")
    assert grant(machine, "c", now=3.5) == [events.PrepareNewcomers(1, ("c",), ("a", "b"), 5, ("a", "b"))]
    assert machine.phase is Phase.RUNNING and machine.generation == 0 and not machine.spares
    assert prepared(machine, "c") == [events.PauseGroup(0, ("a", "b"))] and machine.commits["c"] == 5
    assert paused(machine, "a") == []
    assert paused(machine, "b") == [events.MendGroup(2, ("a", "b", "c"), meets=True)]
    machine.handle(events.Ranked(("a", "b", "c")), 4.2)
    assert mended(machine, "a", "c") == []
    assert notes(mended(machine, "b")) == "1 more joined at step 9: 3 workers go on in their processes"
    assert machine.phase is Phase.RUNNING and machine.resets == 0 and not machine.meets
    assert machine.is_current("c", 1) and not machine.is_current("c", 0) and machine.is_current("a", 0)


def test_two_that_are_there_come_together_but_not_for_long() -> None:
    machine = at_work("a", size=3)
    grant(machine, "b", "c", now=3.5)
    assert prepared(machine, "b", now=4.0) == []
    assert machine.handle(events.Tick(), 4.0 + TOGETHER_S - 0.1) == []
    assert machine.handle(events.Tick(), 4.0 + TOGETHER_S) == [events.PauseGroup(0, ("a",))]
    prepared(machine, "c", now=9.1)
    assert paused(machine, "a", now=9.2) == [events.MendGroup(2, ("a", "b", "c"), meets=True)]


def test_a_successor_needs_no_wait_after_a_loss() -> None:
    machine = at_work("a", "b", size=2)
    kill(machine, "b")
    mended(machine, "a")
    (prepare,) = machine.handle(events.Closed("b", 0), 4.2)
    assert prepare == events.PrepareNewcomers(2, ("b",), ("a",), 5, ("a", "b"))
    prepared(machine, "b", now=4.3)
    assert paused(machine, "a", now=4.4) == [events.MendGroup(3, ("a", "b"), meets=True)]


def test_no_more_prepare_than_there_are_places_for() -> None:
    machine = at_work("a", "b", size=3)
    assert of_kind(grant(machine, "c", "d", now=3.5), events.PrepareNewcomers)[0].agent_ids == ("c",)
    actions = machine.handle(events.ResizeAsked(2), 3.6)
    assert events.StopWorkers(1, ("c",), 0.0, 0.0, keep=True) in actions and not machine.newcomers
    assert of_kind(machine.handle(events.Closed("c", 1), 3.7), events.ReturnAgents) or "c" in machine.spares


def test_one_for_whom_there_is_no_place_any_more_is_dismissed_before_and_amid_the_pause() -> None:
    machine = at_work("a", "b")
    grant(machine, "c", now=3.5)
    assert prepared(machine, "c") == [events.PauseGroup(0, ("a", "b"))]
    actions = machine.handle(events.Mendable("a", 0, "the data is shuffled anew"), 4.1)
    assert events.StopWorkers(1, ("c",), 0.0, 0.0, keep=True) in actions and not machine.newcomers
    assert not machine.pausing and machine.anew == "the data is shuffled anew"
    assert paused(machine, "a") == [], "it had agreed before"
    assert paused(machine, "b") == [events.MendGroup(2, ("a", "b"), meets=False)]
    mended(machine, "a", "b")
    actions = machine.handle(events.Closed("c", 1), 4.3)
    assert machine.phase is Phase.PARKING and "begin anew for them: the data is shuffled anew" in notes(actions)


# ---------------------------------------------------------------------------------------------------- newcomers fail


@pytest.mark.parametrize("how", ["failed", "lost", "finished", "late"])
def test_one_that_does_not_get_ready_costs_the_others_nothing(how: str) -> None:
    machine = at_work("a", "b", start_timeout_s=10)
    grant(machine, "c", now=3.5)
    event: events.Event = {
        "failed": events.Failed("c", 1, KILLED, outside=True),
        "lost": events.MemberLost("c", "gone"),
        "finished": events.Finished("c", 1),
        "late": events.Tick(),
    }[how]
    actions = machine.handle(event, 13.5)
    assert not of_kind(actions, events.MendGroup) and not of_kind(actions, events.PauseGroup)
    assert all(stop.agent_ids == ("c",) for stop in of_kind(actions, events.StopWorkers))
    assert machine.phase is Phase.RUNNING and set(machine.members) == {"a", "b"} and not machine.newcomers
    assert (how == "lost") or "could not get ready, and the group goes on as it is" in notes(actions)
    if how != "lost":
        assert machine.handle(events.Closed("c", 1), 13.6) == []  # it may try again, but not at once
        assert machine.spares == {"c": True}


def test_one_whose_worker_does_not_end_is_cut_off() -> None:
    machine = at_work("a", "b")
    grant(machine, "c", now=3.5)
    machine.handle(events.Failed("c", 1, KILLED, outside=True), 4.0)
    (drop,) = of_kind(machine.handle(events.Tick(), 4.0 + END_S), events.DropAgents)
    assert drop.agent_ids == ("c",)


def test_one_that_is_stopped_is_not_waited_for() -> None:
    machine = at_work("a", "b")
    grant(machine, "c", now=3.5)
    machine.handle(events.Stepped("c", 1, 6, stopped=True), 3.9)
    assert prepared(machine, "c") == []
    assert machine.handle(events.Stepped("c", 1, 6), 5.0) == [events.PauseGroup(0, ("a", "b"))]


def test_where_the_users_code_cannot_all_begin_anew_for_newcomers_and_a_note_says_why() -> None:
    machine = at_work("a", "b")
    grant(machine, "c", now=3.5)
    actions = machine.handle(events.Failed("c", 1, "IndexError: only one row", raised=True), 4.0)
    assert "IndexError: only one row" in notes(actions)
    actions = machine.handle(events.Closed("c", 1), 4.1)
    assert of_kind(actions, events.ParkWorkers) == [events.ParkWorkers(0, ("a", "b"), "1 more joined")]
    assert "all begin anew for them: IndexError: only one row" in notes(actions)


def test_what_a_worker_says_of_its_group_holds_for_all() -> None:
    machine = at_work("a", "b")
    machine.handle(events.Mendable("b", 0, "a process group has a fixed number of members"), 3.2)
    actions = grant(machine, "c", now=3.5)
    assert of_kind(actions, events.ParkWorkers) and "a fixed number of members" in notes(actions)


def test_over_another_collective_all_begin_anew_and_a_note_says_why() -> None:
    machine = running("a", "b", kind=GrowingGang, min_size=1)
    assert grant(machine, "c", now=3.5) == []  # it may be that they have not come to their first operation
    actions = committed(machine, 5, "a", now=4.0)
    assert of_kind(actions, events.ParkWorkers) == [events.ParkWorkers(0, ("a", "b"), "1 more joined")]
    assert "ranks 0 and 1 not in a group of hopsml's collective" in notes(actions)


# ---------------------------------------------------------------------------------------------------- the pause


def test_a_newcomer_that_is_gone_when_all_have_paused_is_not_waited_for() -> None:
    machine = at_work("a", "b")
    grant(machine, "c", now=3.5)
    prepared(machine, "c")
    machine.handle(events.MemberLost("c", "gone"), 4.1)
    paused(machine, "a")
    assert paused(machine, "b") == [events.MendGroup(2, ("a", "b"))]
    assert mended(machine, "a", "b") == [] and machine.phase is Phase.RUNNING


def test_a_pause_that_not_all_come_to_ends() -> None:
    machine = at_work("a", "b")
    grant(machine, "c", now=3.5)
    prepared(machine, "c")
    paused(machine, "a", now=4.2)
    assert machine.handle(events.Tick(), 4.2 + PAUSE_S - 0.1) == []
    assert machine.handle(events.Tick(), 4.2 + PAUSE_S) == [events.MendGroup(2, ("a", "b"))]
    assert mended(machine, "a", "b", now=14.3) == []
    assert machine.handle(events.Tick(), 14.2 + AGAIN_S) == [events.PauseGroup(2, ("a", "b"))]


def test_a_loss_while_the_members_pause_ends_the_pause_and_another_one_follows() -> None:
    machine = at_work("a", "b", "c", size=4)
    grant(machine, "d", now=3.5)
    prepared(machine, "d")
    paused(machine, "a")
    assert kill(machine, "c", now=4.3)[-1] == events.MendGroup(2, ("a", "b"))
    assert paused(machine, "b", now=4.3) == []  # of the generation before
    assert mended(machine, "a", "b", now=4.4)[-1] == events.PauseGroup(2, ("a", "b"))
    paused(machine, "a", now=4.6)
    assert paused(machine, "b", now=4.6) == [events.MendGroup(3, ("a", "b", "d"), meets=True)]


def test_what_else_is_to_change_waits_for_the_end_of_the_pause() -> None:
    machine = at_work("a", "b")
    grant(machine, "c", now=3.5)
    prepared(machine, "c")
    assert not of_kind(machine.handle(events.DrainAsked("b", "its node goes", 0.5), 4.1), events.ParkWorkers)
    paused(machine, "a")
    assert paused(machine, "b")[0] == events.MendGroup(2, ("a", "b", "c"), meets=True)
    machine.handle(events.Ranked(("a", "b", "c")), 4.2)
    assert of_kind(mended(machine, "a", "b", "c", now=4.3), events.ParkWorkers)


def test_nobody_pauses_for_newcomers_at_the_end() -> None:
    machine = at_work("a", "b")
    grant(machine, "c", now=3.5)
    actions = machine.handle(events.Finished("a", 0), 4.0)
    assert actions == [events.StopWorkers(1, ("c",), 0.0, 0.0, keep=True)]
    machine.handle(events.Finished("b", 0), 4.1)
    machine.handle(events.Persisted("a", 5), 4.1)
    close(machine, "a", "b", now=4.2)
    assert machine.phase is Phase.STOPPING  # the newcomer's worker has not ended
    assert of_kind(machine.handle(events.Closed("c", 1), 4.3), events.Conclude)


# ---------------------------------------------------------------------------------------------------- while it is let in


@pytest.mark.parametrize("how", ["problem", "late"])
def test_where_one_cannot_go_on_with_newcomers_all_others_go_on_as_before(how: str) -> None:
    machine = coming("c")
    if how == "problem":
        stop, mend = (actions := machine.handle(events.Mended("b", 2, problem="rank 2 does not answer"), 4.3))[1:]
    else:
        mended(machine, "a", "b")
        stop, mend = (actions := machine.handle(events.Tick(), 4.2 + MEND_S))[1:]
    assert stop == events.StopWorkers(2, ("c",), 0.0, 0.0, keep=True)
    assert mend == events.MendGroup(3, ("a", "b"), meets=True)  # some may exchange the state by now
    assert "1 newcomers could not come to the others" in notes(actions)
    mended(machine, "a", "b", now=9.4)
    assert machine.phase is Phase.RUNNING and machine.resets == 0
    assert not machine.meets


@pytest.mark.parametrize("raised", [False, True])
def test_a_newcomer_that_fails_before_a_commit_with_it_costs_the_pause(raised: bool) -> None:
    machine = coming("c", reset_limit=0)
    mended(machine, "a", "b", "c")
    actions = machine.handle(events.Failed("c", 1, "ValueError: other data", raised=raised, outside=not raised), 5.0)
    actions += machine.handle(events.Tick(), 9.0)
    assert of_kind(actions, events.MendGroup) == [events.MendGroup(3, ("a", "b"))]
    mended(machine, "a", "b", now=9.1)
    assert machine.phase is Phase.RUNNING and machine.resets == 0
    assert machine.anew == ("ValueError: other data" if raised else "")


def test_the_loss_of_a_member_while_newcomers_come_lets_all_others_go_on_with_them() -> None:
    machine = coming("c")
    mended(machine, "a")
    actions = machine.handle(events.Failed("b", 0, KILLED, outside=True), 4.3)
    assert actions[-1] == events.MendGroup(3, ("a", "c"), meets=True)
    text = notes(mended(machine, "a", "c", now=4.4))
    assert "rank 1 was lost" in text and "1 more joined" in text and machine.resets == 1


def test_the_loss_of_the_chief_while_newcomers_come_lets_all_begin_anew() -> None:
    machine = coming("c")
    (stop,) = of_kind(machine.handle(events.Failed("a", 0, KILLED, outside=True), 4.3), events.StopWorkers)
    assert machine.phase is Phase.REFORMING and set(stop.agent_ids) == {"a", "b", "c"}
    (start,) = of_kind(close(machine, "a", "b", "c", now=4.4), events.StartGeneration)
    assert (start.generation, start.step) == (3, 5)


def test_a_newcomer_that_does_something_else_lets_all_begin_anew_from_now_on() -> None:
    machine = coming("c")
    mended(machine, "a", "b", "c")
    for name in "abc":
        cause = "CollectiveMismatch: members called different operations: rank 2 barrier; rank 0 all_reduce"
        machine.handle(events.Failed(name, 2, cause, raised=True), 5.0)
    machine.handle(events.Tick(), 9.0)
    (start,) = of_kind(close(machine, "a", "b", "c", now=9.1), events.StartGeneration)
    assert start.generation == 3 and "calls other operations" in start.why
    assert "members called different operations" in machine.anew


def test_all_begin_anew_after_a_while_where_a_loss_came_before() -> None:
    machine = at_work("a", "b", "c", size=3)
    machine.anew = "it cannot"
    kill(machine, "c")
    machine.handle(events.Closed("c", 0), 4.05)
    assert not of_kind(mended(machine, "a", "b", now=4.1), events.ParkWorkers)
    assert of_kind(machine.handle(events.Tick(), 4.1 + GROW_S), events.ParkWorkers)
