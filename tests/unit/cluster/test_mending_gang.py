"""Tests of groups that continue in place after losses: single rules; random walks are in other files."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.generations import END_S
from hopsml.cluster.gang.elastic.in_place import GROW_S, MEND_S
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.events import ConcludeRun, Phase
from tests.unit.cluster.elastic_group import (
    close,
    continuing_group,
    grant,
    of_kind,
    report_commit,
    report_pause,
    report_start,
    restarting_group,
    running,
)

pytestmark = pytest.mark.fast

KILLED = "killed by signal 9"


def training_group(*names: str, **other: Any) -> ElasticGroupMachine:
    """Return a running group that can lose members in place; each member holds the commit of step 5."""
    machine = running(*names, kind=continuing_group, **{"min_size": 1, **other})
    assert isinstance(machine, ElasticGroupMachine)
    report_commit(machine, 5, *names)
    for name in names:
        machine.handle(events.Reconfigurable(name, machine.generation), 3.0)
    return machine


def kill(machine: ElasticGroupMachine, name: str, now: float = 4.0) -> list[events.Action]:
    return machine.handle(events.Failed(name, machine.generation, KILLED, outside=True), now)


def report_reconfigured(
    machine: ElasticGroupMachine, *names: str, step: int = 9, now: float = 4.1
) -> list[events.Action]:
    generation = machine.generation
    return [one for name in names for one in machine.handle(events.Reconfigured(name, generation, step), now)]


def notes(actions: list[events.Action]) -> str:
    return "\n".join(one.text for one in of_kind(actions, events.Note))


# ---------------------------------------------------------------------------------------------------- a loss


def test_survivors_continue_in_place_after_a_worker_is_killed() -> None:
    machine = training_group("a", "b", "c")
    stop, reconfigure = kill(machine, "b")
    assert stop == events.StopWorkers(0, ("b",), 0.0, 0.0, keep=True)
    assert reconfigure == events.ReconfigureGroup(1, ("a", "c"))
    assert machine.phase is Phase.MENDING and (machine.rank("a"), machine.rank("c")) == (0, 1)
    assert report_reconfigured(machine, "a") == []
    (note,) = report_reconfigured(machine, "c", step=10)
    text = "rank 1 was lost (killed by signal 9): 2 workers went on at step 10 in their processes"
    assert isinstance(note, events.Note) and note.text.startswith(text)
    assert (note.lost, note.step, note.restarts) == (((1, KILLED),), 10, False)
    assert machine.phase is Phase.RUNNING and (machine.policy.resets, machine.deadline) == (1, None)


def test_survivors_continue_in_place_after_an_agent_is_lost() -> None:
    machine = training_group("a", "b")
    assert machine.handle(events.MemberLost("b", "its executor died"), 4.0) == [events.ReconfigureGroup(1, ("a",))]
    assert "the chief alone went on at step 9 in its process" in notes(report_reconfigured(machine, "a"))
    assert "b" not in machine.commits.newest_of and "b" not in machine.in_place.mendable and not machine.in_place.ending


def test_survivors_continue_in_place_without_a_stopped_process_which_is_killed() -> None:
    machine = training_group("a", "b")
    machine.handle(events.Stepped("b", 0, 7, stopped=True), 4.0)
    stop, reconfigure = machine.handle(events.Tick(), 9.0)
    assert stop == events.StopWorkers(0, ("b",), 0.0, 0.0, keep=True) and reconfigure == events.ReconfigureGroup(
        1, ("a",)
    )
    assert not machine.liveness.stopped
    assert "stopped (SIGSTOP) for 5 s" in notes(report_reconfigured(machine, "a", now=9.1))


def test_survivors_continue_in_place_without_a_member_named_by_the_pace() -> None:
    machine = training_group("a", "b", progress_timeout_s=3.0)
    machine.handle(events.Stepped("a", 0, 8), 4.0)
    machine.handle(events.Stepped("b", 0, 7), 4.0)
    (stop, reconfigure) = machine.handle(events.Tick(), 7.5)
    assert isinstance(stop, events.StopWorkers) and stop.agent_ids == ("b",) and stop.dump
    assert reconfigure == events.ReconfigureGroup(1, ("a",))
    report_reconfigured(machine, "a", now=7.6)
    assert machine.handle(events.Tick(), 10.0) == []  # the others' time limit restarts
    assert of_kind(machine.handle(events.Tick(), 10.6), events.StopWorkers)


def test_hang_of_all_members_restarts_all_processes() -> None:
    machine = training_group("a", "b", progress_timeout_s=3.0)
    for name in "ab":
        machine.handle(events.Stepped(name, 0, 7), 4.0)
    (stop,) = machine.handle(events.Tick(), 7.5)
    assert stop == events.StopWorkers(0, ("a", "b"), 0.0, 0.0, keep=True, dump=True)
    assert machine.handle(events.Tick(), 7.5 + END_S - 0.1) == []
    assert of_kind(machine.handle(events.Tick(), 7.5 + END_S), events.DropAgents)


def test_crash_is_settled_before_the_group_is_reconfigured() -> None:
    machine = training_group("a", "b")
    assert machine.handle(events.Failed("b", 0, "killed by signal 11"), 4.0) == []
    assert machine.phase is Phase.SETTLING
    assert machine.handle(events.Tick(), 5.0)[-1] == events.ReconfigureGroup(1, ("a",))


def test_agent_of_a_crashed_worker_that_has_ended_is_a_spare_at_once() -> None:
    machine = training_group("a", "b", "c")
    machine.handle(events.Failed("b", 0, "killed by signal 11"), 4.0)
    machine.handle(events.Closed("b", 0), 4.1)
    assert machine.handle(events.Tick(), 5.0) == [events.ReconfigureGroup(1, ("a", "c"))]
    assert machine.membership.spares == {"b": True} and not machine.in_place.ending


def test_survivors_retain_the_order_of_their_ranks() -> None:
    machine = training_group("a", "b", "c")
    machine.handle(events.Ranked(("b", "c", "a")), 3.1)
    assert kill(machine, "c")[-1] == events.ReconfigureGroup(1, ("b", "a"))


def test_steps_of_a_lost_member_do_not_count_in_the_pace_of_the_others() -> None:
    machine = training_group("a", "b", progress_timeout_s=3.0)
    machine.handle(events.Stepped("a", 0, 8), 3.5)
    machine.handle(events.Stepped("b", 0, 20), 3.5)
    kill(machine, "b")
    machine.handle(events.Stepped("b", 0, 21), 4.05)  # on its way since before its end
    report_reconfigured(machine, "a")
    machine.handle(events.Stepped("a", 1, 9), 6.0)
    assert machine.handle(events.Tick(), 8.9) == []
    assert of_kind(machine.handle(events.Tick(), 9.1), events.StopWorkers)


@pytest.mark.parametrize(
    ("members", "step", "text"),
    [
        (("a", "b", "c"), 9, "2 workers went on at step 9 in their processes"),
        (("a", "b", "c"), 0, "2 workers went on at step 0 in their processes"),
        (("a", "c"), 0, "the chief alone went on at step 0 in its process"),
        (("a", "c"), -1, "the chief alone went on in its process"),
    ],
)
def test_note_names_the_lost_rank_and_the_step_that_the_others_continued_at(
    members: tuple[str, ...], step: int, text: str
) -> None:
    machine = training_group(*members)
    kill(machine, "c")
    assert notes(report_reconfigured(machine, *members[:-1], step=step)) == (
        f"rank {len(members) - 1} was lost (killed by signal 9): {text}; "
        "the lost share of the batch under way may not have been trained on"
    )


def test_host_with_lost_workers_is_excluded() -> None:
    machine = training_group("a", "b", "c", host_failure_limit=1, host_cooldown_s=60)
    kill(machine, "c")
    assert report_reconfigured(machine, "a", "b")[1:] == [events.Note("host host-c is set aside for 60 s: 1 failures")]
    close(machine, "c", now=4.2)
    assert machine.policy.exclusions.is_excluded("host-c", 64.0) and not machine.policy.exclusions.is_excluded(
        "host-c", 64.1
    )


def test_two_simultaneous_losses_reconfigure_the_group_twice() -> None:
    machine = training_group("a", "b", "c", "d", size=4)
    assert kill(machine, "b")[-1] == events.ReconfigureGroup(1, ("a", "c", "d"))
    report_reconfigured(machine, "a")
    again = machine.handle(
        events.Failed("d", 0, KILLED, outside=True), 4.1
    )  # sent before its agent received the first reconfiguration
    assert again[-1] == events.ReconfigureGroup(2, ("a", "c"))
    assert machine.handle(events.Reconfigured("a", 1, 9), 4.2) == []  # an answer to the first
    text = notes(report_reconfigured(machine, "a", "c", now=4.3))
    assert "rank 1 was lost (killed by signal 9); rank 2 was lost (killed by signal 9): 2 workers went on" in text


def test_events_of_the_previous_generation_count_after_a_reconfiguration() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    machine.handle(events.WorkerCommitted("b", 0, 8), 4.05)
    assert machine.commits.newest_of["b"] == 8 and machine.commits.reached == 8
    report_reconfigured(machine, "a", "b")
    for name in "ab":
        machine.handle(events.Finished(name, 0), 4.2)
    assert machine.phase is Phase.STOPPING


def test_late_started_event_does_not_count_as_reconfigured() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    assert machine.handle(events.Started("b", 0), 4.05) == []
    assert report_reconfigured(machine, "a") == [] and machine.phase is Phase.MENDING
    report_reconfigured(machine, "b")
    assert machine.phase is Phase.RUNNING


def test_reconfiguration_has_a_time_limit() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    close(machine, "c", now=4.0)
    report_reconfigured(machine, "a")
    assert machine.handle(events.Tick(), 4.0 + MEND_S - 0.1) == []
    (stop,) = machine.handle(events.Tick(), 4.0 + MEND_S)
    assert stop == events.StopWorkers(1, ("a", "b"), 0.0, 0.0, keep=True)
    actions = close(machine, "a", "b", now=9.1)
    (start,) = of_kind(actions, events.StartGeneration)
    assert (start.generation, start.step, set(start.agent_ids)) == (2, 5, {"a", "b", "c"})
    assert notes(actions).endswith(f"rank 2: killed by signal 9; rank 1 did not go on within {MEND_S:g} s")
    assert machine.policy.resets == 1


def test_worker_that_cannot_reconfigure_makes_all_restart_with_its_problem_as_reason() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    (stop,) = machine.handle(events.Reconfigured("b", 1, problem="rank 0 does not answer"), 4.2)
    assert stop == events.StopWorkers(1, ("a", "b"), 0.0, 0.0, keep=True)
    close(machine, "c", now=4.3)
    (start,) = of_kind(close(machine, "a", "b", now=4.3), events.StartGeneration)
    why = "rank 2: killed by signal 9"
    assert (
        start.generation == 2 and start.why == f"{why}; rank 1 could not go on in its process: rank 0 does not answer"
    )
    report_start(machine, "a", "b", "c", now=5.0)
    rank = machine.rank("b")
    machine.handle(events.MemberLost("b", "its node died"), 6.0)
    (start,) = of_kind(close(machine, "a", "c", now=6.1), events.StartGeneration)
    assert start.why == f"rank {rank}: its node died"  # an earlier problem is no reason of this restart


def test_worker_with_spontaneously_broken_connections_makes_all_restart() -> None:
    machine = training_group("a", "b")
    assert machine.handle(events.Reconfigured("b", 0, problem="it can no longer reach rank 0"), 4.0) == []
    assert machine.phase is Phase.SETTLING
    (stop,) = machine.handle(events.Tick(), 4.0 + machine.spec.settle_s)
    assert isinstance(stop, events.StopWorkers) and set(stop.agent_ids) == {"a", "b"}


# ---------------------------------------------------------------------------------------------------- full restarts


def test_loss_of_the_chief_restarts_all_processes() -> None:
    machine = training_group("a", "b", "c")
    (stop,) = kill(machine, "a")
    assert stop == events.StopWorkers(0, ("a", "b", "c"), 0.0, 0.0, keep=True) and machine.phase is Phase.REFORMING


def test_loss_below_the_minimum_restarts_all_processes() -> None:
    machine = training_group("a", "b", min_size=2)
    (stop,) = kill(machine, "b")
    assert isinstance(stop, events.StopWorkers) and machine.phase is Phase.REFORMING


def test_member_that_cannot_reconfigure_makes_all_restart_after_a_loss() -> None:
    machine = training_group("a", "b", "c")
    machine.in_place.mendable.discard("c")
    (stop,) = kill(machine, "b")
    assert isinstance(stop, events.StopWorkers) and machine.phase is Phase.REFORMING


def test_user_error_ends_the_run() -> None:
    machine = training_group("a", "b", "c")
    machine.handle(events.Failed("b", 0, "ValueError: bad batch", raised=True), 4.0)
    assert of_kind(machine.handle(events.Tick(), 5.0), events.StopWorkers)
    (outcome,) = of_kind(close(machine, "a", "b", "c"), ConcludeRun)
    assert (outcome.phase, outcome.rank, outcome.reason) == (Phase.FAILED, 1, "ValueError: bad batch")


def test_error_during_a_reconfiguration_does_not_hide_the_loss() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    machine.handle(events.Failed("b", 0, "ValueError: bad batch", raised=True), 4.1)
    assert of_kind(machine.handle(events.Tick(), 5.2), events.StopWorkers) and machine.phase is Phase.REFORMING
    close(machine, "c", now=5.3)
    (start,) = of_kind(close(machine, "a", "b", now=5.3), events.StartGeneration)
    assert start.generation == 2 and machine.policy.resets == 1


def test_loss_during_a_change_of_members_restarts_all_processes() -> None:
    machine = training_group("a", "b")
    (pause,) = of_kind(grant(machine, "c", now=3.5), events.PauseWorkersAtCommit)
    assert pause.agent_ids == ("a", "b")
    (stop,) = kill(machine, "b")
    assert isinstance(stop, events.StopWorkers) and machine.phase is Phase.REFORMING
    late = training_group("a", "b")
    grant(late, "c", now=3.5)
    late.handle(events.Reconfigurable("a", 0), 3.6)
    assert of_kind(kill(late, "b"), events.StopWorkers)


def test_loss_before_the_group_has_formed_restarts_all_processes() -> None:
    machine = running("a", "b", "c", kind=continuing_group, min_size=1)
    machine.handle(events.Reconfigurable("a", 0), 3.0)
    (stop,) = of_kind(machine.handle(events.MemberLost("b", "gone"), 4.0), events.StopWorkers)
    assert stop.agent_ids == ("a", "c")
    forming = running("a", "b", kind=continuing_group, begun=False, min_size=1)
    assert not of_kind(forming.handle(events.MemberLost("b", "gone"), 4.0), events.ReconfigureGroup)


def test_newcomer_lost_before_its_first_commit_is_noted_without_a_reconfiguration() -> None:
    machine = training_group("a", "b")
    grant(machine, "c", now=3.5)
    report_pause(machine, 7, "a", now=4.0)
    report_commit(machine, 7, "b", now=4.0)
    close(machine, "a", "b", now=4.0)
    report_start(machine, "a", "b", "c", now=4.5)
    assert machine.phase is Phase.RUNNING and not machine.in_place.mendable  # of the last processes
    for name in "abc":
        machine.handle(events.Reconfigurable(name, 1), 4.6)
    assert not of_kind(kill(machine, "c", now=5.0), events.ReconfigureGroup)
    assert "new worker" in notes(close(machine, "a", "b", "c", now=5.0))


def test_loss_after_a_member_has_finished_restarts_all_processes() -> None:
    machine = training_group("a", "b", "c")
    machine.handle(events.Finished("a", 0), 3.5)
    assert not of_kind(kill(machine, "b"), events.ReconfigureGroup)


def test_reset_limit_counts_every_loss() -> None:
    machine = training_group("a", "b", "c", reset_limit=1)
    assert of_kind(kill(machine, "c"), events.ReconfigureGroup)
    report_reconfigured(machine, "a", "b")
    close(machine, "c", now=4.2)
    machine.membership.spares.clear()
    machine.phase = Phase.RUNNING
    machine.in_place.mendable = {"a", "b"}
    assert not of_kind(kill(machine, "b", now=5.0), events.ReconfigureGroup)
    (outcome,) = of_kind(close(machine, "a", "b", now=5.0), ConcludeRun)
    assert "reset limit of 1" in outcome.reason


def test_each_loss_counts_once_and_losses_before_a_full_restart_count_once_together() -> None:
    machine = training_group("a", "b", "c", "d", "e", size=5)
    kill(machine, "e")
    report_reconfigured(machine, "a", "b", "c", "d")
    assert machine.policy.resets == 1
    kill(machine, "d")
    report_reconfigured(machine, "a", "b", "c")
    assert machine.policy.resets == 2
    kill(machine, "c", now=4.2)
    kill(machine, "b", now=4.3)
    assert machine.policy.resets == 4
    machine.handle(events.Reconfigured("a", machine.generation, problem="it does not work"), 4.4)
    for name in "bcde":
        machine.handle(events.Closed(name, 0), 4.5)
    close(machine, "a", now=4.5)
    assert machine.phase is Phase.FORMING and machine.policy.resets == 3


def test_repeated_failed_reconfigurations_without_a_commit_end_the_run() -> None:
    machine = training_group("a", "b", "c", fruitless_limit=2)
    for resets, generation in enumerate((0, 2, 4), start=1):  # in the first of them there was a commit
        assert of_kind(kill(machine, "c"), events.ReconfigureGroup)
        machine.handle(events.Reconfigured("a", generation + 1, problem="it does not work"), 4.1)
        close(machine, "c", now=4.2)
        actions = close(machine, "a", "b", now=4.2)
        assert machine.policy.resets == resets
        if generation == 4:
            break
        machine.handle(events.Ranked(("a", "b", "c")), 4.3)
        report_start(machine, "a", "b", "c", now=4.5)
        for name in "abc":
            machine.handle(events.Reconfigurable(name, machine.generation), 4.6)
    (outcome,) = of_kind(actions, ConcludeRun)
    assert outcome.reason == f"{KILLED} (2 generations in a row ended without a new commit)"


# ---------------------------------------------------------------------------------------------------- who was lost


def test_agent_of_a_lost_worker_is_a_spare_once_that_worker_has_ended() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    assert "c" not in machine.membership.spares and machine.is_current("c", 0) and not machine.is_current("c", 2)
    report_reconfigured(machine, "a", "b")
    assert machine.handle(events.WorkerCommitted("c", 0, 99), 4.2) == [] and machine.commits.reached == 5
    assert machine.handle(events.Stepped("c", 0, 99), 4.2) == [] and not machine.progress.pace.steps
    assert machine.handle(events.Closed("c", 0), 4.3) == []
    assert machine.membership.spares == {"c": True} and not machine.is_current("c", 0)


def test_spare_with_a_commit_older_than_the_checkpoint_is_not_continued_from() -> None:
    machine = training_group("a", "b")
    kill(machine, "b")
    close(machine, "b", now=4.1)
    report_reconfigured(machine, "a")
    report_commit(machine, 26, "a")
    machine.handle(events.CommitPersisted("a", 26), 6.0)
    (start,) = of_kind(machine.handle(events.MemberLost("a", "its host is gone"), 7.0), events.StartGeneration)
    assert (start.agent_ids, start.step, start.stored) == (("b",), -1, 26)


def test_newcomer_is_delayed_for_a_while_after_a_loss() -> None:
    machine = training_group("a", "b", "c", size=4)
    kill(machine, "c")
    assert machine.handle(events.Closed("c", 0), 4.05) == [] and machine.membership.spares == {"c": True}
    assert not of_kind(report_reconfigured(machine, "a", "b", now=4.1), events.PauseWorkersAtCommit)
    assert grant(machine, "d", now=5.0) == []
    assert machine.handle(events.Tick(), 4.1 + GROW_S - 0.1) == []
    (pause,) = machine.handle(events.Tick(), 4.1 + GROW_S)
    assert pause == events.PauseWorkersAtCommit(1, ("a", "b"), "2 more joined")
    assert machine.in_place.grow_at == 0.0


def test_newcomer_granted_at_the_end_of_the_delay_is_admitted_at_once() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    report_reconfigured(machine, "a", "b", now=4.1)
    machine.handle(events.MemberLost("c", "gone"), 4.2)
    assert of_kind(grant(machine, "d", now=4.1 + GROW_S), events.PauseWorkersAtCommit)


def test_resize_and_drain_are_not_delayed_after_a_loss() -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    close(machine, "c", now=4.05)
    report_reconfigured(machine, "a", "b")
    assert of_kind(machine.handle(events.ResizeRequested(1), 4.2), events.PauseWorkersAtCommit)
    draining = training_group("a", "b", "c")
    kill(draining, "c")
    close(draining, "c", now=4.05)
    report_reconfigured(draining, "a", "b")
    assert of_kind(draining.handle(events.DrainRequested("b", "its node goes", 1.0), 4.2), events.PauseWorkersAtCommit)


def test_agent_that_does_not_report_the_end_of_its_lost_worker_is_dropped() -> None:
    machine = training_group("a", "b")
    kill(machine, "b")
    report_reconfigured(machine, "a")
    assert machine.handle(events.Tick(), 4.0 + END_S - 0.1) == []
    (drop,) = machine.handle(events.Tick(), 4.0 + END_S)
    assert drop == events.DropAgents(("b",), "did not report its worker's end in time") and not machine.in_place.ending
    assert machine.handle(events.MemberLost("b", "cut off"), 14.1) == []


@pytest.mark.parametrize("how", ["closed", "lost", "overdue"])
def test_run_finishes_once_the_agent_of_the_lost_worker_is_released(how: str) -> None:
    machine = training_group("a", "b")
    kill(machine, "b")
    report_reconfigured(machine, "a")
    machine.handle(events.CommitPersisted("a", 5), 4.2)
    machine.handle(events.Finished("a", 1), 4.2)
    assert not of_kind(machine.handle(events.Closed("a", 1), 4.3), ConcludeRun) and machine.phase is Phase.STOPPING
    event: events.Event = {
        "closed": events.Closed("b", 0),
        "lost": events.MemberLost("b", "gone"),
        "overdue": events.Tick(),
    }[how]
    actions = machine.handle(event, 14.5 if how == "overdue" else 4.4)
    (outcome,) = of_kind(actions, ConcludeRun)
    assert outcome.phase is Phase.FINISHED
    assert any("b" in one.agent_ids for one in of_kind(actions, events.ReturnAgents)) == (how == "closed")


@pytest.mark.parametrize(
    ("end", "members"),
    [(events.Closed("c", 0), {"a", "b", "c"}), (events.MemberLost("c", "gone"), {"a", "b"})],
    ids=["worker ended", "agent lost"],
)
def test_full_restart_waits_for_the_agent_of_the_lost_worker(end: events.Event, members: set[str]) -> None:
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    machine.handle(events.Reconfigured("a", 1, problem="it does not work"), 4.1)
    assert not of_kind(close(machine, "a", "b", now=4.2), events.StartGeneration)
    (start,) = of_kind(machine.handle(end, 4.3), events.StartGeneration)
    assert set(start.agent_ids) == members


def test_group_without_reconfigurable_members_stops_all_workers_after_a_loss() -> None:
    for kind in (restarting_group, continuing_group):
        machine = running("a", "b", "c", kind=kind)
        report_commit(machine, 5, "a", "b", "c")
        (stop,) = machine.handle(events.MemberLost("c", "gone"), 4.0)
        assert stop == events.StopWorkers(0, ("a", "b"), 0.0, 0.0, keep=True)


def test_member_that_returns_during_a_reconfiguration_is_not_waited_for() -> None:
    """A worker is lost at the end of the training; another returns, and the chief still saves the model."""
    machine = training_group("a", "b", "c")
    kill(machine, "c")
    close(machine, "c", now=4.0)
    report_reconfigured(machine, "a")
    actions = machine.handle(events.Finished("b", 1), 4.2)
    assert machine.phase is Phase.RUNNING and "2 workers went on" in notes(actions)
    assert machine.handle(events.Tick(), 4.2 + MEND_S) == []
    machine.handle(events.Finished("a", 1), 20.0)
    machine.handle(events.CommitPersisted("a", 5), 20.1)
    (end,) = of_kind(close(machine, "a", "b", now=20.2), events.ConcludeRun)
    assert end.phase is Phase.FINISHED
