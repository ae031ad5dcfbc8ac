"""Tests of groups that grow in place: single rules; random walks are in other files."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.generations import END_S
from hopsml.cluster.gang.elastic.in_place import AGAIN_S, GROW_S, MEND_S, PAUSE_S, TOGETHER_S
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.events import Phase
from tests.unit.cluster.elastic_group import close, grant, of_kind, report_commit, report_storage_failure, running
from tests.unit.cluster.test_mending_gang import KILLED, kill, notes, report_reconfigured

pytestmark = pytest.mark.fast


def training_group(*names: str, **other: Any) -> ElasticGroupMachine:
    """Return a running group that can grow in place; each member holds the commit of step 5."""
    machine = running(*names, kind=ElasticGroupMachine, **{"min_size": 1, **other})
    assert isinstance(machine, ElasticGroupMachine)
    report_commit(machine, 5, *names)
    for name in names:
        machine.handle(events.Reconfigurable(name, machine.generation), 3.0)
    return machine


def report_prepared(machine: ElasticGroupMachine, *names: str, now: float = 4.0) -> list[events.Action]:
    """These newcomers' workers have begun, and are ready."""
    actions = list[events.Action]()
    for name in names:
        number = machine.growth.newcomers[name].generation
        machine.handle(events.Started(name, number), now)
        machine.handle(events.Reconfigurable(name, number), now)
        actions += machine.handle(events.Paused(name, number, 6), now)
    return actions


def report_paused(machine: ElasticGroupMachine, *names: str, step: int = 9, now: float = 4.2) -> list[events.Action]:
    generation = machine.generation
    return [one for name in names for one in machine.handle(events.Paused(name, generation, step), now)]


def admitting_group(*names: str, **other: Any) -> ElasticGroupMachine:
    """Return a group whose two members have paused and form the next generation with newcomers."""
    machine = training_group("a", "b", size=2 + len(names), **other)
    grant(machine, *names, now=3.5)
    report_prepared(machine, *names)
    report_paused(machine, "a", "b")
    assert machine.phase is Phase.MENDING and set(machine.members) == {"a", "b", *names}
    machine.handle(events.Ranked(("a", "b", *names)), 4.2)
    return machine


# ---------------------------------------------------------------------------------------------------- the usual sequence


def test_newcomer_prepares_during_training_and_members_pause_when_it_is_ready() -> None:
    machine = training_group("a", "b")
    assert grant(machine, "c", now=3.5) == [events.PrepareNewcomers(1, ("c",), ("a", "b"), 5, ("a", "b"))]
    assert machine.phase is Phase.RUNNING and machine.generation == 0 and not machine.membership.spares
    assert report_prepared(machine, "c") == [events.PauseGroup(0, ("a", "b"))] and machine.commits.newest_of["c"] == 5
    assert report_paused(machine, "a") == []
    assert report_paused(machine, "b") == [events.ReconfigureGroup(2, ("a", "b", "c"), meets=True)]
    machine.handle(events.Ranked(("a", "b", "c")), 4.2)
    assert report_reconfigured(machine, "a", "c") == []
    assert notes(report_reconfigured(machine, "b")) == "1 more joined at step 9: 3 workers go on in their processes"
    assert machine.phase is Phase.RUNNING and machine.policy.resets == 0 and not machine.growth.meets
    assert machine.is_current("c", 1) and not machine.is_current("c", 0) and machine.is_current("a", 0)


def test_newcomers_are_admitted_together_up_to_a_time_limit() -> None:
    machine = training_group("a", size=3)
    grant(machine, "b", "c", now=3.5)
    assert report_prepared(machine, "b", now=4.0) == []
    assert machine.handle(events.Tick(), 4.0 + TOGETHER_S - 0.1) == []
    assert machine.handle(events.Tick(), 4.0 + TOGETHER_S) == [events.PauseGroup(0, ("a",))]
    report_prepared(machine, "c", now=9.1)
    assert report_paused(machine, "a", now=9.2) == [events.ReconfigureGroup(2, ("a", "b", "c"), meets=True)]


def test_successor_after_a_loss_is_prepared_without_a_wait() -> None:
    machine = training_group("a", "b", size=2)
    kill(machine, "b")
    report_reconfigured(machine, "a")
    (prepare,) = machine.handle(events.Closed("b", 0), 4.2)
    assert prepare == events.PrepareNewcomers(2, ("b",), ("a",), 5, ("a", "b"))
    report_prepared(machine, "b", now=4.3)
    assert report_paused(machine, "a", now=4.4) == [events.ReconfigureGroup(3, ("a", "b"), meets=True)]


def test_no_more_newcomers_prepare_than_the_group_has_places() -> None:
    machine = training_group("a", "b", size=3)
    assert of_kind(grant(machine, "c", "d", now=3.5), events.PrepareNewcomers)[0].agent_ids == ("c",)
    actions = machine.handle(events.ResizeRequested(2), 3.6)
    assert events.StopWorkers(1, ("c",), 0.0, 0.0, keep=True) in actions and not machine.growth.newcomers
    assert of_kind(machine.handle(events.Closed("c", 1), 3.7), events.ReturnAgents) or "c" in machine.membership.spares


def test_superfluous_newcomer_is_stopped_before_and_during_the_pause() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    assert report_prepared(machine, "c") == [events.PauseGroup(0, ("a", "b"))]
    actions = machine.handle(events.Reconfigurable("a", 0, "the data is shuffled anew"), 4.1)
    assert events.StopWorkers(1, ("c",), 0.0, 0.0, keep=True) in actions and not machine.growth.newcomers
    assert not machine.growth.pausing and machine.growth.anew == "the data is shuffled anew"
    assert report_paused(machine, "a") == [], "it had agreed before"
    assert report_paused(machine, "b") == [events.ReconfigureGroup(2, ("a", "b"), meets=False)]
    report_reconfigured(machine, "a", "b")
    actions = machine.handle(events.Closed("c", 1), 4.3)
    assert machine.phase is Phase.PARKING and "processes restart for them: the data is shuffled anew" in notes(actions)


# ---------------------------------------------------------------------------------------------------- newcomers fail


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("failed", "killed by signal 9"),
        ("lost", ""),
        ("finished", "its function returned before it had joined"),
        ("late", "it was not ready after 10 s"),
    ],
)
def test_newcomer_that_does_not_become_ready_leaves_the_group_unchanged(how: str, why: str) -> None:
    machine = training_group("a", "b", start_timeout_s=10)
    grant(machine, "c", now=3.5)
    machine.handle(events.Reconfigurable("c", 1), 3.6)
    event: events.Event = {
        "failed": events.Failed("c", 1, KILLED, outside=True),
        "lost": events.MemberLost("c", "gone"),
        "finished": events.Finished("c", 1),
        "late": events.Tick(),
    }[how]
    actions = machine.handle(event, 13.5)
    assert not of_kind(actions, events.ReconfigureGroup) and not of_kind(actions, events.PauseGroup)
    assert all(stop.agent_ids == ("c",) for stop in of_kind(actions, events.StopWorkers))
    assert machine.phase is Phase.RUNNING and set(machine.members) == {"a", "b"} and not machine.growth.newcomers
    text = f"a new worker on host-c could not be prepared, and the group continues as it is: {why}"
    assert notes(actions) == (text if why else "")
    if how != "lost":
        assert "c" not in machine.in_place.mendable
        assert machine.handle(events.Closed("c", 1), 13.6) == []  # it may try again, but not at once
        assert machine.membership.spares == {"c": True}


def test_newcomer_whose_worker_does_not_end_is_dropped() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    machine.handle(events.Failed("c", 1, KILLED, outside=True), 4.0)
    assert machine.handle(events.Tick(), 4.0 + END_S - 0.1) == []
    (drop,) = of_kind(machine.handle(events.Tick(), 4.0 + END_S), events.DropAgents)
    assert drop.agent_ids == ("c",)


def test_stopped_newcomer_is_not_waited_for() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    machine.handle(events.Stepped("c", 1, 6, stopped=True), 3.9)
    assert report_prepared(machine, "c") == []
    assert machine.handle(events.Stepped("c", 1, 6), 5.0) == [events.PauseGroup(0, ("a", "b"))]


def test_user_code_that_cannot_prepare_alone_makes_all_processes_restart() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    actions = machine.handle(events.Failed("c", 1, "IndexError: only one row", raised=True), 4.0)
    assert "IndexError: only one row" in notes(actions)
    actions = machine.handle(events.Closed("c", 1), 4.1)
    assert of_kind(actions, events.PauseWorkersAtCommit) == [
        events.PauseWorkersAtCommit(0, ("a", "b"), "1 more joined")
    ]
    assert "all processes restart for them: IndexError: only one row" in notes(actions)


def test_one_members_report_that_it_is_not_growable_counts_for_the_group() -> None:
    machine = training_group("a", "b")
    machine.handle(events.Reconfigurable("b", 0, "a process group has a fixed number of members"), 3.2)
    actions = grant(machine, "c", now=3.5)
    assert of_kind(actions, events.PauseWorkersAtCommit) and "a fixed number of members" in notes(actions)


def test_all_processes_restart_for_newcomers_over_another_collective() -> None:
    machine = running("a", "b", kind=ElasticGroupMachine, min_size=1)
    assert grant(machine, "c", now=3.5) == []  # members may not have reached their first operation
    actions = report_commit(machine, 5, "a", now=4.0)
    assert of_kind(actions, events.PauseWorkersAtCommit) == [
        events.PauseWorkersAtCommit(0, ("a", "b"), "1 more joined")
    ]
    assert "ranks 0 and 1 not in a group of hopsml's collective" in notes(actions)


# ---------------------------------------------------------------------------------------------------- the pause


def test_newcomer_lost_during_the_pause_is_not_waited_for() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    report_prepared(machine, "c")
    machine.handle(events.MemberLost("c", "gone"), 4.1)
    report_paused(machine, "a")
    assert report_paused(machine, "b") == [events.ReconfigureGroup(2, ("a", "b"))]
    assert report_reconfigured(machine, "a", "b") == [] and machine.phase is Phase.RUNNING


def test_pause_that_some_members_do_not_reach_ends_after_a_limit() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    report_prepared(machine, "c")
    report_paused(machine, "a", now=4.2)
    assert machine.handle(events.Tick(), 4.2 + PAUSE_S - 0.1) == []
    assert machine.handle(events.Tick(), 4.2 + PAUSE_S) == [events.ReconfigureGroup(2, ("a", "b"))]
    assert report_reconfigured(machine, "a", "b", now=14.3) == []
    assert machine.handle(events.Tick(), 14.2 + AGAIN_S) == [events.PauseGroup(2, ("a", "b"))]


@pytest.mark.parametrize("how", ["problem", "late"])
def test_failed_reconfiguration_after_a_pause_is_the_only_reason_of_the_restart(how: str) -> None:
    machine = training_group("a", "b")
    machine.policy.why = "what ended the generation before"
    grant(machine, "c", now=3.5)
    report_prepared(machine, "c")
    machine.handle(events.MemberLost("c", "gone"), 4.1)
    assert report_paused(machine, "a", "b") == [events.ReconfigureGroup(1 + machine.growth.launched, ("a", "b"))]
    if how == "problem":
        machine.handle(events.Reconfigured("b", machine.generation, problem="rank 0 does not answer"), 4.3)
        why = "rank 1 could not go on in its process: rank 0 does not answer"
    else:
        report_reconfigured(machine, "b")
        machine.handle(events.Tick(), 4.2 + MEND_S)
        why = f"rank 0 did not go on within {MEND_S:g} s"
    actions = close(machine, "a", "b", now=9.5)
    (start,) = of_kind(actions, events.StartGeneration)
    assert start.why == why and notes(actions) == f"generation 2 ended at step 5: {why}"


def test_loss_during_a_pause_ends_it_and_another_pause_follows() -> None:
    machine = training_group("a", "b", "c", size=4)
    grant(machine, "d", now=3.5)
    report_prepared(machine, "d")
    report_paused(machine, "a")
    assert kill(machine, "c", now=4.3)[-1] == events.ReconfigureGroup(2, ("a", "b"))
    assert report_paused(machine, "b", now=4.3) == []  # of the generation before
    assert report_reconfigured(machine, "a", "b", now=4.4)[-1] == events.PauseGroup(2, ("a", "b"))
    report_paused(machine, "a", now=4.6)
    assert report_paused(machine, "b", now=4.6) == [events.ReconfigureGroup(3, ("a", "b", "d"), meets=True)]


def test_drain_waits_for_the_end_of_the_pause() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    report_prepared(machine, "c")
    assert not of_kind(
        machine.handle(events.DrainRequested("b", "its node goes", 0.5), 4.1), events.PauseWorkersAtCommit
    )
    report_paused(machine, "a")
    assert report_paused(machine, "b")[0] == events.ReconfigureGroup(2, ("a", "b", "c"), meets=True)
    machine.handle(events.Ranked(("a", "b", "c")), 4.2)
    assert of_kind(report_reconfigured(machine, "a", "b", "c", now=4.3), events.PauseWorkersAtCommit)


def test_members_do_not_pause_for_newcomers_after_one_has_finished() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    actions = machine.handle(events.Finished("a", 0), 4.0)
    assert actions == [events.StopWorkers(1, ("c",), 0.0, 0.0, keep=True)]
    machine.handle(events.Finished("b", 0), 4.1)
    machine.handle(events.CommitPersisted("a", 5), 4.1)
    close(machine, "a", "b", now=4.2)
    assert machine.phase is Phase.STOPPING  # the newcomer's worker has not ended
    assert of_kind(machine.handle(events.Closed("c", 1), 4.3), events.ConcludeRun)


# ---------------------------------------------------------------------------------------------------- during admission


@pytest.mark.parametrize("how", ["problem", "late"])
def test_members_continue_as_before_if_one_cannot_join_newcomers(how: str) -> None:
    machine = admitting_group("c")
    if how == "problem":
        why = "rank 2 does not answer"
        note, stop, reconfigure = machine.handle(events.Reconfigured("b", 2, problem=why), 4.3)
    else:
        why = f"rank 2 did not go on within {MEND_S:g} s"
        report_reconfigured(machine, "a", "b")
        assert machine.handle(events.Tick(), 4.2 + MEND_S - 0.1) == []
        note, stop, reconfigure = machine.handle(events.Tick(), 4.2 + MEND_S)
    assert note == events.Note(f"1 new worker could not join the others, which continue as before: {why}")
    assert stop == events.StopWorkers(2, ("c",), 0.0, 0.0, keep=True)
    assert reconfigure == events.ReconfigureGroup(3, ("a", "b"), meets=True)  # some may exchange the state by now
    assert machine.handle(events.Closed("c", 1), 9.3) == [] and machine.membership.spares == {"c": True}
    assert report_reconfigured(machine, "a", "b", now=9.4) == [], "it may try again, but not at once"
    assert machine.phase is Phase.RUNNING and machine.policy.resets == 0
    assert not machine.growth.meets


@pytest.mark.parametrize("raised", [False, True])
def test_newcomer_that_fails_before_a_commit_costs_no_reset(raised: bool) -> None:
    machine = admitting_group("c", reset_limit=0)
    report_reconfigured(machine, "a", "b", "c")
    actions = machine.handle(events.Failed("c", 1, "ValueError: other data", raised=raised, outside=not raised), 5.0)
    actions += machine.handle(events.Tick(), 9.0)
    assert of_kind(actions, events.ReconfigureGroup) == [events.ReconfigureGroup(3, ("a", "b"))]
    report_reconfigured(machine, "a", "b", now=9.1)
    assert machine.phase is Phase.RUNNING and machine.policy.resets == 0
    assert machine.growth.anew == ("ValueError: other data" if raised else "")
    assert not of_kind(machine.handle(events.Closed("c", 1), 9.2), events.PrepareNewcomers), "not at once again"


def test_survivors_continue_with_newcomers_if_a_member_is_lost() -> None:
    machine = admitting_group("c")
    report_reconfigured(machine, "a")
    actions = machine.handle(events.Failed("b", 0, KILLED, outside=True), 4.3)
    assert actions[-1] == events.ReconfigureGroup(3, ("a", "c"), meets=True)
    text = notes(report_reconfigured(machine, "a", "c", now=4.4))
    assert "rank 1 was lost" in text and "1 more joined" in text and machine.policy.resets == 1


def test_loss_of_the_chief_during_growth_restarts_all_processes() -> None:
    machine = admitting_group("c")
    (stop,) = of_kind(machine.handle(events.Failed("a", 0, KILLED, outside=True), 4.3), events.StopWorkers)
    assert machine.phase is Phase.REFORMING and set(stop.agent_ids) == {"a", "b", "c"}
    (start,) = of_kind(close(machine, "a", "b", "c", now=4.4), events.StartGeneration)
    assert (start.generation, start.step) == (3, 5)


def test_newcomer_with_other_operations_disables_growth_in_place() -> None:
    machine = admitting_group("c")
    report_reconfigured(machine, "a", "b", "c")
    for name in "abc":
        cause = "CollectiveMismatch: members called different operations: rank 2 barrier; rank 0 all_reduce"
        machine.handle(events.Failed(name, 2, cause, raised=True), 5.0)
    machine.handle(events.Tick(), 9.0)
    (start,) = of_kind(close(machine, "a", "b", "c", now=9.1), events.StartGeneration)
    assert start.generation == 3 and "calls other collective operations" in start.why
    assert "members called different operations" in machine.growth.anew


def test_all_processes_restart_for_newcomers_a_while_after_a_loss() -> None:
    machine = training_group("a", "b", "c", size=3)
    machine.growth.anew = "it cannot"
    kill(machine, "c")
    machine.handle(events.Closed("c", 0), 4.05)
    assert not of_kind(report_reconfigured(machine, "a", "b", now=4.1), events.PauseWorkersAtCommit)
    assert of_kind(machine.handle(events.Tick(), 4.1 + GROW_S), events.PauseWorkersAtCommit)


# ---------------------------------------------------------------------------------------------------- at the bounds


def test_no_newcomer_prepares_after_a_member_has_finished() -> None:
    machine = training_group("a", "b")
    machine.handle(events.Finished("a", 0), 3.2)
    assert grant(machine, "c", now=3.5) == [] and machine.membership.spares == {"c": True}


def test_newcomer_prepares_from_the_commit_of_step_zero() -> None:
    machine = running("a", "b", kind=ElasticGroupMachine, min_size=1)
    report_commit(machine, 0, "b")
    for name in "ab":
        machine.handle(events.Reconfigurable(name, 0), 3.0)
    assert grant(machine, "c", now=3.5) == [events.PrepareNewcomers(1, ("c",), ("a", "b"), 0, ("b",))]


def test_newcomers_receive_the_members_in_rank_order_and_rank_after_them() -> None:
    machine = training_group("a", "b")
    machine.handle(events.Ranked(("b", "a")), 3.1)
    (prepare,) = grant(machine, "c", now=3.5)
    assert prepare == events.PrepareNewcomers(1, ("c",), ("b", "a"), 5, ("b", "a"))
    report_prepared(machine, "c")
    assert report_paused(machine, "a", "b") == [events.ReconfigureGroup(2, ("b", "a", "c"), meets=True)]
    actions = machine.handle(events.Reconfigured("a", 2, problem="no answer"), 4.3)
    assert actions[-1] == events.ReconfigureGroup(3, ("b", "a"), meets=True)


def test_newcomer_with_an_older_commit_is_a_holder_once_its_worker_starts() -> None:
    machine = training_group("a", "b", size=2)
    kill(machine, "b")
    report_reconfigured(machine, "a")
    report_commit(machine, 8, "a", now=4.2)
    (prepare,) = machine.handle(events.Closed("b", 0), 4.3)
    assert prepare == events.PrepareNewcomers(2, ("b",), ("a",), 8, ("a",)) and machine.commits.newest_of == {"a": 8}
    machine.handle(events.Started("b", 2), 4.4)
    assert machine.commits.newest_of == {"a": 8, "b": 8}


def test_newcomer_that_holds_the_newest_commit_retains_it() -> None:
    machine = training_group("a", "b", size=2)
    kill(machine, "b")
    report_reconfigured(machine, "a")
    machine.handle(events.Closed("b", 0), 4.2)
    assert set(machine.growth.newcomers) == {"b"} and machine.commits.newest_of == {"a": 5, "b": 5}


def test_newcomer_that_ends_without_a_report_is_retried_after_the_cooldown() -> None:
    machine = training_group("a", "b", host_cooldown_s=60)
    grant(machine, "c", now=3.5)
    machine.handle(events.Reconfigurable("c", 1), 3.6)
    (note,) = machine.handle(events.Closed("c", 1), 4.0)
    assert isinstance(note, events.Note) and note.text.endswith(
        "continues as it is: its process ended without a report"
    )
    assert machine.membership.spares == {"c": True} and "c" not in machine.in_place.mendable
    assert machine.handle(events.Tick(), 63.9) == []
    assert machine.handle(events.Tick(), 64.0) == [events.PrepareNewcomers(2, ("c",), ("a", "b"), 5, ("a", "b"))]


def test_newcomer_on_a_draining_node_is_stopped_and_returned_with_the_reason() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    assert machine.handle(events.DrainRequested("c", "its node goes", 5.0), 4.0) == [
        events.StopWorkers(1, ("c",), 0.0, 0.0, keep=True)
    ]
    assert machine.handle(events.Closed("c", 1), 4.1) == [events.ReturnAgents(("c",), "its node goes")]


# ---------------------------------------------------------------------------------------------- reasons of full restarts


def test_step_without_a_collective_group_makes_all_processes_restart() -> None:
    machine = running("a", "b", kind=ElasticGroupMachine, min_size=1)
    assert grant(machine, "c", now=3.5) == []
    actions = machine.handle(events.Stepped("b", 0, 1), 4.0)
    assert actions == [
        events.PauseWorkersAtCommit(0, ("a", "b"), "1 more joined"),
        events.Note(
            "new workers cannot join the running processes, so all processes restart for them: "
            "ranks 0 and 1 not in a group of hopsml's collective"
        ),
    ]


def test_reason_of_a_full_restart_is_noted_once_when_it_happens() -> None:
    machine = training_group("a", "b", size=4)
    assert machine.handle(events.Reconfigurable("b", 0, "it is fixed"), 3.2) == [], "nobody is to come"
    assert "it is fixed" in notes(grant(machine, "c", now=3.5))
    machine.handle(events.PausedAtCommit("a", 0, 7), 4.0)
    assert report_commit(machine, 7, "b", now=4.1) == [events.StopWorkers(0, ("a", "b"), 0.0, 0.0, keep=True)]
    close(machine, "a", "b", now=4.2)
    machine.handle(events.Ranked(("a", "b", "c")), 4.3)
    for name in "abc":
        machine.handle(events.Started(name, 1), 4.5)
    assert grant(machine, "d", now=5.0) == [events.PauseWorkersAtCommit(1, ("a", "b", "c"), "1 more joined")]


# ---------------------------------------------------------------------------------------------------- when to pause


def test_repeated_report_of_a_reconfigurable_member_requests_no_second_pause() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    assert report_prepared(machine, "c") == [events.PauseGroup(0, ("a", "b"))]
    assert machine.handle(events.Reconfigurable("a", 0), 4.1) == []
    assert machine.handle(events.Tick(), 4.2) == []


def test_paused_members_remain_paused_if_another_member_cannot_grow() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    report_prepared(machine, "c")
    report_paused(machine, "a")
    assert machine.handle(events.Reconfigurable("b", 0, "it is fixed"), 4.3) == [
        events.StopWorkers(1, ("c",), 0.0, 0.0, keep=True)
    ]
    assert report_paused(machine, "b", now=4.4) == [events.ReconfigureGroup(2, ("a", "b"))]


def test_members_do_not_pause_for_a_newcomer_during_a_reconfiguration() -> None:
    machine = training_group("a", "b", "c", size=4)
    grant(machine, "d", now=3.5)
    assert kill(machine, "c") == [
        events.StopWorkers(0, ("c",), 0.0, 0.0, keep=True),
        events.ReconfigureGroup(2, ("a", "b")),
    ]
    assert report_prepared(machine, "d", now=4.05) == []
    assert report_reconfigured(machine, "a", "b")[-1] == events.PauseGroup(2, ("a", "b"))


def test_members_do_not_pause_for_a_newcomer_while_a_member_drains() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    machine.handle(events.DrainRequested("b", "its node goes", 60.0), 3.6)
    assert report_prepared(machine, "c") == []
    assert machine.handle(events.Tick(), 4.5) == [] and set(machine.growth.newcomers) == {"c"}


def test_pause_of_an_earlier_generation_is_ignored() -> None:
    machine = training_group("a", "b", "c", size=4)
    grant(machine, "d", now=3.5)
    report_prepared(machine, "d")
    kill(machine, "c", now=4.1)
    report_reconfigured(machine, "a", "b", now=4.2)
    assert report_paused(machine, "a", now=4.3) == []
    assert machine.handle(events.Paused("b", 0, 9), 4.3) == []
    assert report_paused(machine, "b", now=4.4) == [events.ReconfigureGroup(3, ("a", "b", "d"), meets=True)]


def test_time_limit_of_a_pause_counts_from_the_first_paused_member() -> None:
    machine = training_group("a", "b", "c", size=4)
    grant(machine, "d", now=3.5)
    report_prepared(machine, "d")
    report_paused(machine, "a", now=4.2)
    report_paused(machine, "b", now=9.0)
    assert machine.handle(events.Tick(), 4.2 + PAUSE_S) == [events.ReconfigureGroup(2, ("a", "b", "c"))]


# ---------------------------------------------------------------------------------------------------- what costs what


def test_problem_of_an_earlier_generation_rejects_no_newcomer() -> None:
    machine = admitting_group("c")
    assert machine.handle(events.Reconfigured("b", 0, problem="rank 1 does not answer"), 4.3) == []
    report_reconfigured(machine, "a", "b", "c")
    assert machine.phase is Phase.RUNNING and set(machine.members) == {"a", "b", "c"}


def test_newcomers_wait_after_others_were_rejected() -> None:
    machine = training_group("a", "b", size=4)
    grant(machine, "c", now=3.5)
    grant(machine, "d", now=3.6)
    report_prepared(machine, "c")
    assert machine.handle(events.Tick(), 4.0 + TOGETHER_S) == [events.PauseGroup(0, ("a", "b"))]
    report_paused(machine, "a", "b", now=9.1)
    machine.handle(events.Reconfigured("a", 3, problem="rank 2 does not answer"), 9.2)
    report_reconfigured(machine, "a", "b", now=9.3)
    assert report_prepared(machine, "d", now=9.4) == []
    assert machine.handle(events.Tick(), 9.2 + AGAIN_S - 0.1) == []
    assert machine.handle(events.Tick(), 9.2 + AGAIN_S) == [events.PauseGroup(4, ("a", "b"))]


def test_earlier_newcomer_still_costs_no_reset_after_others_were_rejected() -> None:
    machine = admitting_group("c", start_timeout_s=60)
    machine.handle(events.ResizeRequested(4), 4.3)
    report_reconfigured(machine, "a", "b", "c")
    grant(machine, "d", now=4.5)
    report_prepared(machine, "d", now=4.6)
    report_paused(machine, "a", "b", "c", now=4.7)
    machine.handle(events.Reconfigured("a", 4, problem="rank 3 does not answer"), 4.8)
    report_reconfigured(machine, "a", "b", "c", now=4.9)
    machine.handle(events.Failed("c", 5, "ValueError: other data", raised=True), 5.0)
    assert machine.handle(events.Tick(), 9.0)[-1] == events.ReconfigureGroup(6, ("a", "b"))


def test_process_named_by_the_pace_dumps_its_stacks_before_it_is_stopped() -> None:
    machine = training_group("a", "b", progress_timeout_s=3.0)
    machine.handle(events.Stepped("a", 0, 8), 4.0)
    machine.handle(events.Stepped("b", 0, 7), 4.0)
    assert machine.handle(events.Tick(), 7.5) == [
        events.StopWorkers(0, ("b",), 0.0, 0.0, keep=True, dump=True),
        events.ReconfigureGroup(1, ("a",)),
    ]


def test_failed_newcomer_does_not_count_as_a_reset_in_a_full_restart() -> None:
    machine = admitting_group("c")
    report_reconfigured(machine, "a", "b", "c")
    machine.handle(events.Failed("c", 1, KILLED, outside=True), 5.0)
    machine.handle(events.Reconfigured("b", 3, problem="rank 0 does not answer"), 5.1)
    assert machine.phase is Phase.REFORMING and machine.policy.resets == 0


def outcome_of(machine: ElasticGroupMachine, cause: str) -> Phase:
    """The phase after an error of the user's that all members raise, once their workers have ended."""
    names = tuple(machine.members)
    for name in names:
        machine.handle(events.Failed(name, machine.generation, cause, raised=True), 5.0)
    machine.handle(events.Tick(), 9.0)
    close(machine, *names, now=9.1)
    return machine.phase


OTHER_OPERATIONS = "CollectiveMismatch: members called different operations: rank 2 barrier; rank 0 all_reduce"


@pytest.mark.parametrize(
    ("grown", "anew", "cause", "phase"),
    [
        (True, "", OTHER_OPERATIONS, Phase.FORMING),
        (True, "it was tried before", OTHER_OPERATIONS, Phase.FAILED),
        (True, "", "ValueError: bad batch", Phase.FAILED),
        (False, "", OTHER_OPERATIONS, Phase.FAILED),
        (False, "", "ValueError: bad batch", Phase.FAILED),
    ],
)
def test_mismatched_operations_of_a_grown_group_restart_it_once(
    grown: bool, anew: str, cause: str, phase: Phase
) -> None:
    machine = admitting_group("c") if grown else training_group("a", "b", "c")
    if grown:
        report_reconfigured(machine, "a", "b", "c")
        report_commit(machine, 12, "a", "b", "c", now=4.5)
    machine.growth.anew = anew
    assert outcome_of(machine, cause) is phase


def test_error_of_a_member_after_a_loss_ends_the_run() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    report_reconfigured(machine, "a", "b")
    close(machine, "c", now=4.2)
    machine.handle(events.Failed("b", 1, "ValueError: bad batch", raised=True), 5.0)
    actions = machine.handle(events.Tick(), 9.0)
    assert not of_kind(actions, events.ReconfigureGroup) and of_kind(actions, events.StopWorkers)


def test_unavailable_store_is_waited_for() -> None:
    machine = running("a", "b", kind=ElasticGroupMachine, min_size=1, begun=False)
    text = (
        "the store cannot be used now; the run waits for it, at most 20 s: the store could not be read: nobody answers"
    )
    assert text in notes(report_storage_failure(machine, 3.0))
    assert machine.phase is Phase.WAITING and machine.policy.try_again_at == 5.0


def test_next_generation_waits_for_the_end_of_a_newcomers_worker() -> None:
    machine = training_group("a")
    grant(machine, "b", now=3.5)
    assert machine.handle(events.MemberLost("a", "its host is gone"), 4.0) == [
        events.StopWorkers(1, ("b",), 0.0, 0.0, keep=True)
    ]
    assert machine.phase is Phase.REFORMING
    (start,) = of_kind(machine.handle(events.Closed("b", 1), 4.1), events.StartGeneration)
    assert start.agent_ids == ("b",)


def test_all_processes_restart_if_a_member_returned_before_a_late_newcomer() -> None:
    machine = admitting_group("c")
    report_reconfigured(machine, "a", "b")
    assert machine.handle(events.Finished("b", 2), 4.3) == []
    (stop,) = machine.handle(events.Tick(), 4.2 + MEND_S)
    assert stop == events.StopWorkers(2, ("a", "b", "c"), 0.0, 0.0, keep=True)
    (start,) = of_kind(close(machine, "a", "b", "c", now=9.5), events.StartGeneration)
    assert (start.generation, start.step, set(start.agent_ids)) == (3, 5, {"a", "b", "c"})
    for name in ("a", "b", "c"):
        machine.handle(events.Started(name, 3), 10.0)
    assert machine.phase is Phase.RUNNING and machine.handle(events.Tick(), 10.1) == []
