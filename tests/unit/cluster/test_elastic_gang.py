"""Tests of elastic groups: single rules, then invariants over random sequences of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.generations import END_S, JOIN_MOST_S
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.pace import AT_ONCE_S, Pace
from hopsml.cluster.shared.spec import FixedGroup
from tests.unit.cluster.elastic_group import (
    Kind,
    close,
    continuing_group,
    grant,
    grown_group,
    of_kind,
    report_commit,
    report_pause,
    report_storage_failure,
    request_drain,
    restarting_group,
    running,
    spec,
)

pytestmark = pytest.mark.fast


def test_process_that_ends_without_a_report_is_excluded_from_the_next_generation() -> None:
    machine = running("a", "b", "c", raised_settle_s=1)
    assert machine.handle(events.Closed("b", 0), 3.0) == []
    (stop,) = machine.handle(events.Tick(), 4.0)
    assert isinstance(stop, events.StopWorkers) and set(stop.agent_ids) == {"a", "c"}
    (start,) = of_kind(close(machine, "a", "c", now=4.1), events.StartGeneration)
    assert start.why == "rank 1: its process ended without a report" and start.generation == 1


def test_group_at_its_minimum_waits_a_second_for_more_agents():
    machine = restarting_group(spec())
    assert machine.begin(0.0) == [events.RequestAgents(2, 3)]
    assert grant(machine, "a", "b") == []
    assert machine.handle(events.Tick(), 0.9) == []
    assert machine.handle(events.Tick(), 1.0) == [events.StartGeneration(0, ("a", "b"))]


@pytest.mark.parametrize(("came", "starts"), [(0.5, 1.5), (3.0, 6.0), (4.0, 7.0), (8.0, 9.0)])
def test_wait_for_more_agents_is_as_long_as_the_first_ones_needed(came: float, starts: float) -> None:
    machine = restarting_group(spec())  # start timeout: 10 s
    machine.begin(0.0)
    assert grant(machine, "a", "b", now=came) == []
    assert machine.handle(events.Tick(), starts - 0.1) == []
    assert machine.handle(events.Tick(), starts) == [events.StartGeneration(0, ("a", "b"))]


def test_wait_for_more_agents_is_limited() -> None:
    machine = restarting_group(spec(start_timeout_s=600))
    machine.begin(0.0)
    assert grant(machine, "a", "b", now=60.0) == []
    assert machine.handle(events.Tick(), 60.0 + JOIN_MOST_S - 0.1) == []
    assert machine.handle(events.Tick(), 60.0 + JOIN_MOST_S) == [events.StartGeneration(0, ("a", "b"))]


def test_wait_for_more_agents_restarts_if_the_minimum_was_lost():
    machine = restarting_group(spec(start_timeout_s=600))
    machine.begin(4.5)
    grant(machine, "a", "b", now=4.5)
    machine.handle(events.MemberLost("b", "gone"), 4.6)
    assert machine.handle(events.Tick(), 4.7) == []
    assert grant(machine, "c", now=5.0) == [] and machine.handle(events.Tick(), 5.9) == []
    assert machine.handle(events.Tick(), 6.0) == [events.StartGeneration(0, ("a", "c"))]


def test_full_group_starts_at_once():
    machine = restarting_group(spec())
    machine.begin(0.0)
    assert grant(machine, "a", "b", "c") == [events.StartGeneration(0, ("a", "b", "c"))]


def test_newcomer_outside_the_formed_group_may_return_before_the_others():
    machine = running("a", "b")
    machine.handle(events.Forming("a", 0, 2), 3.0)
    assert machine.handle(events.Finished("b", 0), 4.0) == [] and machine.outcome is None


def test_survivors_continue_from_the_newest_commit_that_one_of_them_holds():
    machine = running("a", "b", "c")
    machine.handle(events.WorkerCommitted("a", 0, 10), 3.0)
    machine.handle(events.WorkerCommitted("b", 0, 20), 3.0)
    machine.handle(events.WorkerCommitted("c", 0, 30), 3.0)
    (stop,) = machine.handle(events.MemberLost("c", "its executor died"), 4.0)
    assert stop == events.StopWorkers(0, ("a", "b"), 0.0, 0.0, keep=True)
    (start,) = of_kind(close(machine, "a", "b"), events.StartGeneration)
    assert (start.generation, start.step, start.holders) == (1, 20, ("b",))
    assert set(start.agent_ids) == {"a", "b"}


def test_worker_that_is_killed_alone_is_restarted_on_its_agent():
    machine = running("a", "b")
    machine.handle(events.WorkerCommitted("b", 0, 4), 3.0)
    machine.handle(events.Failed("b", 0, "killed by signal 9"), 4.0)
    (start,) = of_kind(close(machine, "b", "a"), events.StartGeneration)
    assert set(start.agent_ids) == {"a", "b"} and start.step == 4 and "signal 9" in start.why


def test_user_error_ends_the_run_even_if_a_secondary_error_is_reported_first():
    machine = running("a", "b")
    machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True, raised=True), 4.0)
    machine.handle(events.Failed("b", 0, "ValueError: bad batch", raised=True), 4.1)
    (outcome,) = of_kind(close(machine, "a", "b"), events.ConcludeRun)
    assert (outcome.phase, outcome.rank, outcome.reason) == (Phase.FAILED, 1, "ValueError: bad batch")


def test_newcomer_is_admitted_only_after_its_imports_are_complete():
    machine = running("a", "b")
    assert grant(machine, "c", now=3.0, ready=False) == []
    (pause,) = machine.handle(events.Ready("c"), 4.0)
    assert pause == events.PauseWorkersAtCommit(0, ("a", "b"), "1 more joined")


def test_change_of_members_waits_for_all_commits_up_to_a_limit():
    machine = running("a", "b")
    grant(machine, "c", now=3.0)
    assert machine.handle(events.PausedAtCommit("a", 0, 7), 4.0) == []
    assert of_kind(machine.handle(events.WorkerCommitted("b", 0, 7), 4.1), events.StopWorkers)
    late = running("a", "b")
    grant(late, "c", now=3.0)
    late.handle(events.PausedAtCommit("a", 0, 7), 4.0)
    assert of_kind(late.handle(events.Tick(), 4.0 + spec().agree_s), events.StopWorkers)
    (start,) = of_kind(close(late, "a", "b"), events.StartGeneration)
    assert start.step == 7 and start.holders == ("a",) and len(start.agent_ids) == 3


def test_drained_member_leaves_and_a_group_below_its_minimum_waits():
    machine = running("a", "b")
    (pause,) = of_kind(
        machine.handle(events.DrainRequested("b", "its node is preempted", AT_ONCE_S), 3.0), events.PauseWorkersAtCommit
    )
    assert "preempted" in pause.why
    machine.handle(events.PausedAtCommit("a", 0, 5), 3.5)
    machine.handle(events.WorkerCommitted("b", 0, 5), 3.6)
    actions = close(machine, "a", "b", now=4.0)
    assert events.ReturnAgents(("b",), "its node is preempted") in actions
    assert machine.phase is Phase.WAITING and not of_kind(actions, events.StartGeneration)
    (outcome,) = of_kind(machine.handle(events.Tick(), 24.1), events.ConcludeRun)
    assert outcome.error == "minimum" and outcome.missing == ((1, "no agent"),)


def test_draining_sole_holder_of_the_state_leaves_after_handing_it_over():
    machine = running("a", "b", min_size=1)
    machine.handle(events.DrainRequested("b", "preempted", AT_ONCE_S), 3.0)
    machine.handle(events.PausedAtCommit("b", 0, 9), 3.5)
    machine.handle(events.Tick(), 3.5 + spec().agree_s)  # a was not there in time
    actions = close(machine, "a", "b", now=4.0)
    assert not of_kind(actions, events.ReturnAgents)
    (start,) = of_kind(actions, events.StartGeneration)
    assert start.agent_ids == ("a",) and start.step == 9 and start.holders == ("b",)
    assert machine.handle(events.Ready("b"), 4.5) == []
    assert machine.handle(events.Started("a", 1), 5.0) == [events.ReturnAgents(("b",), "preempted")]
    machine.handle(events.Failed("a", 1, "killed"), 6.0)
    (again,) = of_kind(close(machine, "a", now=6.1), events.StartGeneration)
    assert again.step == 9 and again.holders == ("a",)


def test_only_worker_waits_for_a_successor_and_hands_over_its_state():
    machine = running("a", min_size=1)
    machine.handle(events.DrainRequested("a", "preempted", AT_ONCE_S), 3.0)
    machine.handle(events.PausedAtCommit("a", 0, 4), 3.5)
    assert not of_kind(close(machine, "a", now=4.0), events.StartGeneration) and machine.phase is Phase.WAITING
    (start,) = of_kind(grant(machine, "b", now=6.0), events.StartGeneration)
    assert start.agent_ids == ("b",) and start.step == 4 and start.holders == ("a",)
    assert events.ReturnAgents(("a",), "preempted") in machine.handle(events.Started("b", 1), 7.0)


# ---------------------------------------------------------------------------------------------------- nodes that go away


def test_draining_members_train_until_all_their_successors_are_ready():
    machine = running("a", "b", size=2)
    assert not of_kind(request_drain(machine, "a", "b", time_s=40.0), events.PauseWorkersAtCommit)
    assert not of_kind(grant(machine, "c", "d", now=10.0, ready=False), events.PauseWorkersAtCommit)
    assert not of_kind(machine.handle(events.Ready("c"), 12.0), events.PauseWorkersAtCommit)
    (pause,) = of_kind(machine.handle(events.Ready("d"), 13.0), events.PauseWorkersAtCommit)
    assert pause.why == "rank 0 leaves: its node goes"
    report_pause(machine, 9, "a", "b", now=14.0)
    (start,) = of_kind(close(machine, "a", "b", now=14.1), events.StartGeneration)
    assert (set(start.agent_ids), start.step, set(start.holders)) == ({"c", "d"}, 9, {"a", "b"})
    actions = [one for name in "cd" for one in machine.handle(events.Started(name, 1), 15.0)]
    assert {one.agent_ids for one in of_kind(actions, events.ReturnAgents)} == {("a",), ("b",)}


def test_draining_members_pause_before_their_time_ends_without_successors():
    machine = running("a", "b", size=2)
    request_drain(machine, "a", "b", time_s=40.0, now=3.0)
    assert not of_kind(machine.handle(events.Tick(), 32.9), events.PauseWorkersAtCommit)
    assert of_kind(machine.handle(events.Tick(), 33.1), events.PauseWorkersAtCommit)
    unknown = running("a", "b", size=2, drain_s=20.0)
    unknown.handle(events.DrainRequested("a", "its node goes"), 3.0)
    assert not of_kind(unknown.handle(events.Tick(), 12.9), events.PauseWorkersAtCommit)
    assert of_kind(unknown.handle(events.Tick(), 13.1), events.PauseWorkersAtCommit)


def test_draining_holders_leave_once_their_commit_is_stored():
    """Successors connect only after the executors of the draining members have ended, so draining waits for none."""
    machine = running("a", "b", size=2)
    request_drain(machine, "a", "b", time_s=AT_ONCE_S)
    stops = report_pause(machine, 9, "a", "b", now=4.0)
    assert of_kind(stops, events.PersistCommit) == [events.PersistCommit("a")]
    actions = close(machine, "a", "b", now=4.1)
    assert machine.phase is Phase.WAITING and not of_kind(actions, events.ReturnAgents)
    returned = of_kind(machine.handle(events.CommitPersisted("a", 9, 0.2), 4.5), events.ReturnAgents)
    assert [one.agent_ids for one in returned] == [("a",), ("b",)] and all(one.leave for one in returned)
    (start,) = of_kind(grant(machine, "c", "d", now=9.0), events.StartGeneration)
    assert (start.step, start.holders, start.stored) == (-1, (), 9)


def test_commit_is_stored_at_the_warning_if_all_members_drain():
    machine = running("a", "b", size=2)
    report_commit(machine, 4, "a", "b")
    assert not of_kind(request_drain(machine, "a", time_s=40.0), events.PersistCommit)  # b stays, and has it
    assert of_kind(request_drain(machine, "b", time_s=40.0), events.PersistCommit) == [events.PersistCommit("a")]
    machine.handle(events.CommitPersisted("a", 4), 4.0)
    assert not of_kind(report_commit(machine, 6, "a", "b", now=5.0), events.PersistCommit)  # not each one
    machine.handle(events.MemberLost("a", "its node is gone"), 6.0)
    machine.handle(events.MemberLost("b", "its node is gone"), 6.0)
    actions = grant(machine, "c", "d", now=20.0)
    (start,) = of_kind(actions, events.StartGeneration)
    assert (start.step, start.stored) == (-1, 4)
    (note,) = of_kind(actions, events.Note)
    assert note.text == "the commit of step 6 is lost with the agents that held it: the training continues from step 4"


def test_checkpoint_of_a_lost_member_is_not_read_if_survivors_hold_a_commit():
    """The store may be unavailable; the training continues from the held commit."""
    machine = running("a", "b", "c")
    report_commit(machine, 4, "a", "b", "c")
    report_commit(machine, 6, "a")
    machine.handle(events.CommitPersisted("a", 6), 4.0)
    machine.handle(events.MemberLost("a", "gone"), 4.1)
    actions = close(machine, "b", "c")
    (start,) = of_kind(actions, events.StartGeneration)
    assert (start.step, start.stored) == (4, -1)
    assert [note.text for note in of_kind(actions, events.Note)] == [
        "generation 0 ended after step 6 or later; continues from the commit of step 4: rank 0: gone",
        "the commit of step 6 is lost with the agents that held it: the training continues from step 4",
    ]


def test_checkpoint_of_drained_holders_is_preferred_to_an_older_held_commit():
    machine = running("a", "b", size=2)
    report_commit(machine, 4, "a", "b")
    request_drain(machine, "a", time_s=AT_ONCE_S)
    report_pause(machine, 6, "a", now=4.0)
    machine.handle(events.Tick(), 4.0 + spec().agree_s)  # b was not there in time
    machine.handle(events.CommitPersisted("a", 6), 4.5)
    machine.handle(events.MemberLost("a", "its node is gone"), 4.6)
    close(machine, "b")
    (start,) = of_kind(grant(machine, "c", now=9.0), events.StartGeneration)
    assert (start.step, start.holders, start.stored) == (-1, (), 6)


def test_generation_restarts_if_a_newer_checkpoint_is_found():
    """Agents have stored more while the driver stood still, and have ended; the older one may not even be there any more."""
    machine = running("a", "b", size=2)
    report_commit(machine, 26, "a", "b")
    machine.handle(events.CommitPersisted("a", 26), 3.5)
    for name in "ab":
        machine.handle(events.MemberLost(name, "gone"), 20.0)
    (start,) = of_kind(grant(machine, "c", "d", now=21.0), events.StartGeneration)
    assert (start.step, start.stored) == (-1, 26)
    (stop,) = machine.handle(events.CommitPersisted("c", 36), 21.5)
    assert stop == events.StopWorkers(1, ("c", "d"), 0.0, 0.0, keep=True)
    assert machine.handle(events.CommitPersisted("d", 36), 21.5) == []
    actions = close(machine, "c", "d", now=21.6)
    (again,) = of_kind(actions, events.StartGeneration)
    assert (again.generation, again.step, again.stored) == (2, -1, 36) and machine.policy.resets == 1  # the loss alone
    assert "the checkpoint of step 36 was found, which is newer" in of_kind(actions, events.Note)[0].text
    assert machine.handle(events.CommitPersisted("c", 36), 21.7) == [] and machine.phase is Phase.FORMING


def test_generation_with_a_held_commit_does_not_restart_for_a_checkpoint():
    machine = running("a", "b", "c")
    report_commit(machine, 4, "a", "b", "c")
    machine.handle(events.MemberLost("a", "gone"), 4.0)
    close(machine, "b", "c")
    assert machine.phase is Phase.FORMING
    assert machine.handle(events.CommitPersisted("b", 6), 5.5) == [] and machine.phase is Phase.FORMING


def test_lost_commit_without_a_checkpoint_is_noted():
    machine = running("a", "b", size=2)
    report_commit(machine, 6, "a", "b")
    for name in "ab":
        machine.handle(events.MemberLost(name, "its node is gone"), 6.0)
    (note,) = of_kind(grant(machine, "c", "d", now=20.0), events.Note)
    assert "step 6 is lost" in note.text and "restarts at this run's start" in note.text


def test_next_holder_stores_the_commit_if_the_storing_agent_is_lost():
    machine = running("a", "b", size=2)
    request_drain(machine, "a", "b", time_s=AT_ONCE_S)
    report_pause(machine, 9, "a", "b", now=4.0)
    close(machine, "a", "b", now=4.1)
    assert of_kind(machine.handle(events.MemberLost("a", "gone"), 4.2), events.PersistCommit) == [
        events.PersistCommit("b")
    ]
    assert of_kind(machine.handle(events.CommitPersisted("b", 9), 4.5), events.ReturnAgents)


def test_newcomers_fetch_the_state_from_draining_holders_before_it_is_stored():
    machine = running("a", "b", size=2)
    request_drain(machine, "a", "b", time_s=AT_ONCE_S)
    report_pause(machine, 9, "a", "b", now=4.0)
    close(machine, "a", "b", now=4.1)
    (start,) = of_kind(grant(machine, "c", "d", now=4.2), events.StartGeneration)
    assert start.step == 9 and set(start.holders) == {"a", "b"}
    assert not of_kind(
        machine.handle(events.CommitPersisted("a", 9), 4.3), events.ReturnAgents
    )  # it is being fetched there
    assert of_kind([*machine.handle(events.Started("c", 1), 5.0), *machine.handle(events.Started("d", 1), 5.0)],
                   events.ReturnAgents)  # fmt: skip


def test_spares_for_draining_members_are_retained_if_the_size_is_requested_again():
    machine = running("a", "b", size=2)
    request_drain(machine, "a", "b", time_s=40.0)
    grant(machine, "c", now=4.0)
    assert not of_kind(machine.handle(events.ResizeRequested(2), 5.0), events.ReturnAgents)
    assert of_kind(grant(machine, "d", now=6.0), events.PauseWorkersAtCommit)


def test_draining_member_needs_no_successor_in_a_group_that_is_made_smaller():
    machine = running("a", "b", "c", size=3, min_size=1)
    request_drain(machine, "c", time_s=40.0)
    (pause,) = of_kind(machine.handle(events.ResizeRequested(2), 4.0), events.PauseWorkersAtCommit)
    assert pause.why.startswith("rank 2 leaves")


def test_fixed_group_notes_the_expected_loss_of_a_draining_member():
    machine = ElasticGroupMachine(FixedGroup(size=2))
    machine.begin(0.0)
    machine.handle(events.Granted(("a", "b")), 0.0)
    (note,) = machine.handle(events.DrainRequested("b", "decommissioned"), 1.0)
    assert "rank 1 is about to be lost (decommissioned)" in note.text and "min_workers" in note.text
    assert machine.handle(events.DrainRequested("stranger", "decommissioned"), 1.0) == []


def test_repeated_failures_without_a_commit_end_the_run():
    machine = running("a", "b", fruitless_limit=2)
    machine.handle(events.Failed("a", 0, "killed by signal 11"), 3.0)
    close(machine, "a", "b")
    machine.handle(events.Failed("a", 1, "killed by signal 11"), 6.0)
    (outcome,) = of_kind(close(machine, "a", "b", now=7.0), events.ConcludeRun)
    assert "2 generations in a row ended without a new commit" in outcome.reason


def test_host_with_too_many_failures_is_excluded_until_its_cooldown_ends():
    machine = running("a", "b", "c", host_failure_limit=1, host_cooldown_s=15)
    machine.handle(events.WorkerCommitted("a", 0, 1), 3.0)
    machine.handle(events.Failed("c", 0, "killed by signal 7"), 4.0)
    (start,) = of_kind(close(machine, "a", "b", "c", now=4.0), events.StartGeneration)
    assert set(start.agent_ids) == {"a", "b"}
    for name in "ab":
        machine.handle(events.Started(name, 1), 5.0)
    machine.handle(events.WorkerCommitted("a", 1, 2), 5.0)
    machine.handle(events.MemberLost("b", "gone"), 6.0)
    assert close(machine, "a", now=6.0)[-1:] != [] and machine.phase is Phase.WAITING
    assert of_kind(machine.handle(events.Tick(), 19.5), events.StartGeneration)


def test_sole_holder_on_an_excluded_host_is_retained_until_members_have_its_state():
    machine = running("a", "b", "c", host_failure_limit=1, host_cooldown_s=15)
    machine.handle(events.WorkerCommitted("c", 0, 1), 3.0)
    machine.handle(events.Failed("c", 0, "killed by signal 7"), 4.0)
    machine.handle(events.ResizeRequested(2), 4.0)
    actions = close(machine, "a", "b", "c", now=4.0)
    (start,) = of_kind(actions, events.StartGeneration)
    assert (set(start.agent_ids), start.step, start.holders) == ({"a", "b"}, 1, ("c",))
    assert of_kind(actions, events.ReturnAgents) == []
    machine.handle(events.Started("a", 1), 5.0)
    (released,) = of_kind(machine.handle(events.Started("b", 1), 5.0), events.ReturnAgents)
    assert released.agent_ids == ("c",)


def test_excluded_host_is_readmitted_only_after_its_cooldown():
    machine = running("a", "b", min_size=1, host_failure_limit=1, host_cooldown_s=15)
    machine.handle(events.WorkerCommitted("a", 0, 1), 3.0)
    machine.handle(events.Failed("b", 0, "killed by signal 7"), 4.0)
    (start,) = of_kind(close(machine, "a", "b", now=4.0), events.StartGeneration)
    assert start.agent_ids == ("a",)
    machine.handle(events.Ready("b"), 4.5)
    assert machine.handle(events.Started("a", 1), 5.0) == []
    assert machine.handle(events.Tick(), 18.9) == []
    (pause,) = machine.handle(events.Tick(), 19.1)
    assert pause == events.PauseWorkersAtCommit(1, ("a",), "1 more joined")


def test_member_without_progress_is_named():
    machine = running("a", "b", progress_timeout_s=5.0)
    for now, step in ((3.0, 1), (4.0, 2)):
        machine.handle(events.Stepped("a", 0, step), now)
        machine.handle(events.Stepped("b", 0, 1), now)
    assert machine.handle(events.Tick(), 8.9) == []
    (stop,) = of_kind(machine.handle(events.Tick(), 9.1), events.StopWorkers)
    assert stop.dump
    (start,) = of_kind(close(machine, "a", "b", now=9.5), events.StartGeneration)
    assert start.why == "rank 1: no step for 5 s; it is behind the others"


def test_slow_member_is_named_once_and_even_members_are_not():
    machine, reported = running("a", "b", "c"), list[events.Action]()
    for second in range(20):
        for name, step in (("a", second), ("b", second - 1), ("c", second)):
            reported += machine.handle(events.Stepped(name, 0, max(0, step)), 3.0 + second)
    (note,) = reported
    assert note.text.startswith("rank 1 on host-b is slower than the others")
    even, notes = running("a", "b"), list[events.Action]()
    for second in range(20):  # one always reports half a second after the other
        notes += even.handle(events.Stepped("a", 0, 10 * second), 3.0 + second)
        notes += even.handle(events.Stepped("b", 0, 10 * second + 5), 3.5 + second)
    assert notes == []


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("lag_s", [0.0, 0.24])
def test_slowness_is_detected_independently_of_report_times(offset: float, lag_s: float) -> None:
    """Steps take 0.3 s; rank 1 makes each step ``behind`` seconds later and reports ``offset`` seconds later."""
    machine, reported = running("a", "b"), list[events.Action]()
    for second in range(20):
        for name, at, late in (("a", float(second), 0.0), ("b", second + offset, lag_s)):
            step = max(0, int((at - late) / 0.3))
            age = max(0.0, at - late - 0.3 * step)
            reported += machine.handle(events.Stepped(name, 0, step, age_s=age), 3.0 + at)
    assert len(reported) == (lag_s > 0), reported


def test_members_that_do_not_report_their_end_are_dropped():
    machine = running("a", "b", "c")
    machine.handle(events.WorkerCommitted("a", 0, 3), 3.0)
    machine.handle(events.Failed("a", 0, "killed", outside=True), 4.0)
    close(machine, "a", "b", now=4.1)
    actions = machine.handle(events.Tick(), 4.0 + END_S)
    assert events.DropAgents(("c",), "did not report its worker's end in time") in actions
    (start,) = of_kind(actions, events.StartGeneration)
    assert set(start.agent_ids) == {"a", "b"}


# ---------------------------------------------------------------------------------------------------- who is to blame


def test_killed_member_is_blamed_if_its_neighbour_reports_an_error_first():
    machine = running("a", "b")
    machine.handle(events.WorkerCommitted("b", 0, 4), 3.0)
    assert machine.handle(events.Failed("a", 0, "ConnectionResetError", secondary=True, raised=True), 4.0) == []
    (stop,) = machine.handle(events.Failed("b", 0, "killed by signal 9", outside=True), 4.2)
    assert stop.agent_ids == ("a", "b") and stop.keep
    (start,) = of_kind(close(machine, "a", "b"), events.StartGeneration)
    assert start.why == "rank 1: killed by signal 9" and machine.policy.exclusions.failures == {"host-b": 1}


def test_lost_agent_outranks_an_error_that_it_may_have_caused():
    machine = running("a", "b")
    machine.handle(events.Failed("a", 0, "RuntimeError: who has gone?", raised=True), 4.0)
    machine.handle(events.MemberLost("b", "its executor died"), 4.9)
    assert not of_kind(close(machine, "a"), events.ConcludeRun) and machine.phase is Phase.WAITING
    assert machine.policy.why == "rank 1: its executor died"


def test_user_error_ends_the_run_after_a_second():
    machine = running("a", "b")
    machine.handle(events.Failed("a", 0, "ValueError", raised=True), 4.0)
    assert machine.handle(events.Tick(), 4.9) == []
    assert of_kind(machine.handle(events.Tick(), 5.0), events.StopWorkers)
    (outcome,) = of_kind(close(machine, "a", "b"), events.ConcludeRun)
    assert (outcome.rank, outcome.reason) == (0, "ValueError")


def test_connection_error_caused_by_sys_exit_of_a_member_ends_the_run():
    machine = running("a", "b")
    machine.handle(events.Finished("b", 0, exited=True), 3.0)
    machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True), 3.1)
    (outcome,) = of_kind(close(machine, "a", "b"), events.ConcludeRun)
    assert outcome.rank == 1 and outcome.reason.startswith("called sys.exit(0)")


# ---------------------------------------------------------------------------------------------------- newcomers


FAILURES: dict[str, events.Event] = {
    "crash": events.Failed("c", 1, "killed by signal 11"),
    "kill": events.Failed("c", 1, "killed by signal 9", outside=True),
    "its own GPU": events.Failed("c", 1, "InternalError: CUDA", raised=True),
    "lost": events.MemberLost("c", "gone"),
}


@pytest.mark.parametrize("event", FAILURES.values(), ids=FAILURES)
def test_newcomer_that_fails_before_its_first_commit_costs_no_reset(event: events.Event):
    machine = grown_group()
    machine.handle(events.Failed("a", 1, "UnavailableError", secondary=True, raised=True), 4.9)
    machine.handle(event, 5.0)
    machine.handle(events.Tick(), 6.0)
    actions = close(machine, "a", "b", "c", now=6.0)
    (start,) = of_kind(actions, events.StartGeneration)
    assert set(start.agent_ids) == {"a", "b"} and start.step == 7
    (note,) = [one for one in of_kind(actions, events.Note) if "new worker" in one.text]
    assert "host-c" in note.text and "the group continues as before" in note.text
    assert ("it may try again in 60 s" in note.text) == isinstance(event, events.Failed)
    assert machine.policy.resets == machine.policy.fruitless == 0 and machine.policy.exclusions.failures == {
        "host-c": 1
    }


def test_failed_newcomer_is_retried_after_growing_pauses():
    machine, now = grown_group(host_failure_limit=9), 5.0
    for attempt in (1, 2):
        machine.handle(events.Failed("c", machine.generation, "killed by signal 9", outside=True), now)
        close(machine, "a", "b", "c", now=now)
        for name in "ab":
            machine.handle(events.Started(name, machine.generation), now)
        assert len(machine.members) == 2 and machine.phase is Phase.RUNNING
        for name in "ab":
            machine.handle(events.WorkerCommitted(name, machine.generation, 10 * attempt), now)
        assert machine.handle(events.Tick(), now + 60 * attempt - 0.1) == []
        now += 60.0 * attempt
        (pause,) = machine.handle(events.Tick(), now)
        assert pause.why == "1 more joined"
        machine.handle(events.PausedAtCommit("a", machine.generation, 10 * attempt + 1), now)
        machine.handle(events.WorkerCommitted("b", machine.generation, 10 * attempt + 1), now)
        close(machine, "a", "b", now=now)
        for name in "abc":
            machine.handle(events.Started(name, machine.generation), now)
        assert len(machine.members) == 3


def test_failure_of_a_newcomer_after_its_first_commit_counts_as_a_reset():
    machine = grown_group(reset_limit=0)
    machine.handle(events.WorkerCommitted("c", 1, 8), 5.0)
    machine.handle(events.Failed("c", 1, "killed by signal 9", outside=True), 5.1)
    (outcome,) = of_kind(close(machine, "a", "b", "c", now=5.2), events.ConcludeRun)
    assert "the reset limit of 0 is reached" in outcome.reason


def test_error_raised_by_newcomer_and_old_member_ends_the_run():
    machine = grown_group()
    machine.handle(events.Failed("c", 1, "ValueError: three", raised=True), 5.0)
    machine.handle(events.Failed("a", 1, "ValueError: three", raised=True), 5.1)
    machine.handle(events.Tick(), 6.0)
    (outcome,) = of_kind(close(machine, "a", "b", "c", now=6.0), events.ConcludeRun)
    assert outcome.reason == "ValueError: three"


def test_growth_is_reverted_if_generations_with_newcomers_keep_failing():
    machine, now = grown_group(fruitless_limit=2, reset_limit=None), 5.0
    for attempt in (1, 2):
        machine.handle(events.Failed("a", machine.generation, "killed by signal 11", outside=True), now)
        actions = close(machine, "a", "b", "c", now=now)
        (start,) = of_kind(actions, events.StartGeneration)
        assert set(start.agent_ids) == set("abc" if attempt == 1 else "ab")
    assert [note for note in of_kind(actions, events.Note) if "continues as before" in note.text]
    machine.handle(events.Failed("a", machine.generation, "killed by signal 11", outside=True), now)
    (outcome,) = of_kind(close(machine, "a", "b", now=now), events.ConcludeRun)
    assert "2 generations in a row" in outcome.reason


def test_failure_of_a_newcomer_needed_for_the_minimum_counts_as_any_failure():
    machine = running("a", "b", fruitless_limit=2)
    machine.handle(events.WorkerCommitted("a", 0, 5), 3.0)
    machine.handle(events.MemberLost("b", "gone"), 4.0)
    close(machine, "a", now=4.0)
    (start,) = of_kind(grant(machine, "c", now=5.0), events.StartGeneration)
    assert set(start.agent_ids) == {"a", "c"}
    machine.handle(events.Failed("c", 1, "killed by signal 9", outside=True), 6.0)
    (again,) = of_kind(close(machine, "a", "c", now=6.0), events.StartGeneration)
    assert set(again.agent_ids) == {"a", "c"} and machine.policy.fruitless == 1


# ---------------------------------------------------------------------------------------------------- the store


def test_unavailable_store_is_waited_for_up_to_min_workers_timeout():
    machine = running("a", "b", fruitless_limit=1, reset_limit=0, min_workers_timeout_s=100)
    now, tries, notes = 3.0, 0, list[events.Action]()
    while not machine.phase.is_final and now < 1000:
        if machine.phase in (Phase.RUNNING, Phase.FORMING):
            tries += 1
            actions = report_storage_failure(machine, now)
            notes += [one for one in of_kind(actions, events.Note) if "cannot be used now" in one.text]
            outcomes = of_kind(actions, events.ConcludeRun)
        now += 0.5
        machine.handle(events.Tick(), now)
    (outcome,), (note,) = outcomes, notes
    assert outcome.error == "storage" and "could not be used for 100 s (min_workers_timeout)" in outcome.reason
    assert "nobody answers" in outcome.reason and "at most 100 s" in note.text
    assert 103 <= now < 105 and tries == 8  # after 2, 4, 8, 16, 30, 30 s, and at the end of the time
    assert not machine.policy.exclusions.failures


def test_outage_of_the_store_is_forgotten_after_the_next_commit():
    machine = running("a", "b", fruitless_limit=1, min_workers_timeout_s=100)
    report_storage_failure(machine, 3.0)
    assert machine.handle(events.Tick(), 4.9) == []
    assert of_kind(machine.handle(events.Tick(), 5.0), events.StartGeneration)
    for name in "ab":
        machine.handle(events.Started(name, 1), 6.0)
    machine.handle(events.WorkerCommitted("a", 1, 1), 90.0)
    assert machine.policy.store_away is None
    assert not of_kind(report_storage_failure(machine, 200.0), events.ConcludeRun)


# ---------------------------------------------------------------------------------------------------- stopped processes


@pytest.mark.parametrize("has_started", [True, False])
def test_stopped_process_is_replaced_within_seconds_also_before_its_first_step(has_started: bool):
    machine = restarting_group(spec(size=2))
    machine.begin(0.0)
    grant(machine, "a", "b")
    for name in "ab" if has_started else "a":
        machine.handle(events.Started(name, 0), 2.0)
    (note,) = machine.handle(events.Stepped("b", 0, -1, stopped=True), 2.5)
    assert "rank 1 is stopped" in note.text
    assert machine.handle(events.Tick(), 7.4) == []
    assert of_kind(machine.handle(events.Tick(), 7.5), events.StopWorkers)
    (start,) = of_kind(close(machine, "a", "b", now=7.6), events.StartGeneration)
    assert start.why == "rank 1: its process has been stopped (SIGSTOP) for 5 s"
    assert machine.handle(events.Tick(), 8.0) == [] and not machine.liveness.stopped


def test_active_members_have_no_time_limit_before_their_first_step():
    """They compile, or run a function that makes no steps."""
    machine = running("a", "b")
    for name in "ab":
        machine.handle(events.Stepped(name, 0, -1), 5000.0)
    assert of_kind(machine.handle(events.Tick(), 5000.0), events.StopWorkers) == []
    machine.handle(events.Stepped("b", 0, -1, idle_s=30.0), 5001.0)
    assert of_kind(machine.handle(events.Tick(), 5001.0), events.StopWorkers)
    machine = running("a", "b", progress_timeout_s=100.0)
    assert of_kind(machine.handle(events.Tick(), 102.0), events.StopWorkers)


def test_group_with_a_member_that_waits_for_storage_is_not_hung():
    machine = running("a", "b", progress_timeout_s=100.0)
    machine.handle(events.Stepped("a", 0, -1, storage_s=60.0), 100.0)
    assert of_kind(machine.handle(events.Tick(), 160.0), events.StopWorkers) == []
    assert of_kind(machine.handle(events.Tick(), 162.0), events.StopWorkers)


def test_time_limit_of_the_first_step_follows_from_the_first_generation():
    machine = running("a", "b")
    machine.handle(events.Stepped("a", 0, 0), 3.0)
    assert machine.progress.pace.limit_s() == 600
    machine.handle(events.Stepped("a", 0, 1), 12.0)  # the generation began at 1.0
    machine.handle(events.Failed("b", 0, "killed by signal 9", outside=True), 20.0)
    close(machine, "a", "b", now=20.0)
    assert (
        machine.phase is Phase.FORMING and machine.progress.pace.limit_s() == 105
    )  # ten times the 10.5 s that it took
    for first_s, limit in ((2.0, 60.0), (100.0, 600.0)):
        assert Pace(0.0, first_before_s=first_s).limit_s() == limit
    assert Pace(0.0, first_before_s=7.0).for_next_generation(5.0).first_before_s == 7.0


# ---------------------------------------------------------------------------------------------------- bounds


def test_run_survives_as_many_resets_as_the_limit():
    machine = running("a", "b", reset_limit=1)
    for generation in (0, 1):
        machine.handle(events.WorkerCommitted("a", generation, generation + 1), 3.0)
        machine.handle(events.Failed("a", generation, "killed by signal 9", outside=True), 4.0)
        actions = close(machine, "a", "b", now=4.0)
        assert bool(of_kind(actions, events.ConcludeRun)) == (generation == 1)


def test_newcomer_is_not_admitted_after_a_member_has_finished():
    machine = running("a", "b")
    machine.handle(events.Finished("a", 0), 3.0)
    assert grant(machine, "c", now=4.0) == [] and machine.phase is Phase.RUNNING


def finished(*names: str, step: int) -> ElasticGroupMachine:
    """Return a run whose workers have all finished after the commit of this step."""
    machine = running(*names)
    for name in names:
        machine.handle(events.WorkerCommitted(name, 0, step), 3.0)
    for name in names:
        machine.handle(events.Finished(name, 0), 4.0)
    assert machine.phase is Phase.STOPPING
    return machine


def test_finished_run_stores_its_last_commit_as_a_checkpoint():
    machine = finished("a", "b", step=39)
    machine.handle(events.CommitPersisted("a", 39), 4.5)
    actions = close(machine, "b", "a")
    assert of_kind(actions, events.ConcludeRun)[0].phase is Phase.FINISHED and not of_kind(actions, events.Note)


def test_another_agent_stores_the_last_commit_if_the_storing_agent_is_lost():
    machine = finished("a", "b", "c", step=39)
    close(machine, "b", "c")
    (ask,) = machine.handle(events.MemberLost("a", "its executor died"), 5.0)
    assert ask == events.PersistCommit("b")
    assert machine.handle(events.Tick(), 6.0) == []
    assert machine.handle(events.MemberLost("b", "its executor died"), 7.0) == [events.PersistCommit("c")]
    actions = machine.handle(events.CommitPersisted("c", 39), 8.0)
    assert of_kind(actions, events.ConcludeRun)[0].phase is Phase.FINISHED and not of_kind(actions, events.Note)


def test_another_agent_stores_the_last_commit_if_the_chief_has_ended_at_an_earlier_step():
    machine = running("a", "b")
    for name, step in (("a", 36), ("b", 39)):
        machine.handle(events.WorkerCommitted(name, 0, step), 3.0)
        machine.handle(events.Finished(name, 0), 4.0)
    machine.handle(events.CommitPersisted("a", 36), 4.5)
    assert of_kind(close(machine, "b", "a"), events.PersistCommit) == [events.PersistCommit("b")]
    actions = machine.handle(events.CommitPersisted("b", 39), 5.0)
    assert of_kind(actions, events.ConcludeRun)[0].phase is Phase.FINISHED and not of_kind(actions, events.Unstored)


def test_unstored_last_commit_is_reported_as_missing():
    for newest in (0, 36):
        away = finished("a", "b", step=39)
        away.handle(events.CommitPersisted("a", newest), 4.5)
        note, _, outcome = close(away, "b", "a")
        text = f"the run's last commit, of step 39, is no checkpoint: the newest one is of step {newest}"
        assert note == events.Unstored(-1, text, is_checkpoint=True) and outcome == events.ConcludeRun(Phase.FINISHED)
    lost = finished("a", "b", step=39)
    close(lost, "b")
    lost.handle(events.MemberLost("a", "its executor died"), 5.0)
    assert lost.deadline is not None
    actions = lost.handle(events.Tick(), lost.deadline)
    assert "the newest one does not exist" in of_kind(actions, events.Unstored)[0].text
    assert of_kind(actions, events.ConcludeRun)[0].phase is Phase.FINISHED


def test_host_that_has_all_agents_is_not_excluded():
    machine = restarting_group(spec(size=2, host_failure_limit=1))
    machine.begin(0.0)
    machine.handle(events.Granted(("a", "b"), ("one", "one"), (True, True)), 0.0)
    for name in "ab":
        machine.handle(events.Started(name, 0), 1.0)
    machine.handle(events.WorkerCommitted("a", 0, 1), 2.0)
    machine.handle(events.Failed("b", 0, "killed by signal 9", outside=True), 3.0)
    actions = close(machine, "a", "b", now=3.0)
    assert of_kind(actions, events.StartGeneration) and not [
        n for n in of_kind(actions, events.Note) if "aside" in n.text
    ]


def test_group_below_its_minimum_waits_for_min_workers_timeout():
    machine = running("a", "b", start_timeout_s=10, min_workers_timeout_s=50)
    machine.handle(events.MemberLost("b", "gone"), 3.0)
    close(machine, "a", now=3.0)
    assert machine.handle(events.Tick(), 52.9) == []
    (outcome,) = of_kind(machine.handle(events.Tick(), 53.0), events.ConcludeRun)
    assert outcome.error == "minimum"


def test_group_is_not_resized_below_its_minimum():
    machine = running("a", "b", "c")
    (ask, pause) = machine.handle(events.ResizeRequested(1), 3.0)
    assert ask == events.RequestAgents(0, 2) and pause.why == "resized to 2 workers"


# ---------------------------------------------------------------------------------------------------- invariants

_AGENTS = [f"a{number}" for number in range(6)]
_EVENTS = st.one_of(
    st.tuples(st.just("grant"), st.sampled_from(_AGENTS), st.booleans()),
    st.tuples(
        st.sampled_from(
            ["ready", "lost", "started", "mendable", "mended", "paused", "closed", "drain", "finished", "persisted"]
        ),
        st.sampled_from(_AGENTS),
        st.just(0),
    ),
    st.tuples(st.sampled_from(["committed", "parked", "stepped"]), st.sampled_from(_AGENTS), st.integers(0, 40)),
    st.tuples(st.just("failed"), st.sampled_from(_AGENTS), st.sampled_from(["died", "killed", "echo", "raised"])),
    st.tuples(st.just("broken"), st.sampled_from(_AGENTS), st.just(0)),
    st.tuples(st.just("resize"), st.just(""), st.integers(2, 4)),
    st.tuples(st.just("tick"), st.just(""), st.sampled_from([0.1, 1.0, 30.0])),
)
_DISTURBANCES = st.one_of(
    st.tuples(st.sampled_from(["lost", "drain"]), st.sampled_from(_AGENTS), st.sampled_from([0, 40])),
    st.just(("all", "drain", 40)),
    st.tuples(st.just("failed"), st.sampled_from(_AGENTS), st.sampled_from(["died", "killed", "echo"])),
    st.tuples(st.just("grant"), st.sampled_from(_AGENTS), st.just(True)),
    st.tuples(st.just("resize"), st.just(""), st.integers(2, 4)),
)


def _all(kind: str, value: int = 0) -> list[tuple[str, str, Any]]:
    return [("all", kind, value)]


# A usual generation with random events in between: purely random events rarely get beyond the first generation.
_ROUND = st.builds(
    lambda before, step, disturbance, after: [
        *before, *_all("started"), *_all("mendable"), *_all("committed", step), disturbance, *after, *_all("mended"),
        *_all("parked", step + 1), *_all("closed"), ("tick", "", 1.0),
    ],
    st.lists(_EVENTS, max_size=3),
    st.integers(0, 40),
    _DISTURBANCES,
    st.lists(_EVENTS, max_size=3),
)  # fmt: skip
# A worker is lost and joins again, with random events before and during its admission.
_GROWTH = st.builds(
    lambda lost, between, pausing, after, step: [
        *_all("started"), *_all("mendable"), *_all("committed", step), ("failed", lost, "killed"), *_all("mended"),
        ("closed", lost, 0), *between, *_all("started"), *_all("mendable"), *_all("paused"), *pausing, ("tick", "", 1.0),
        *_all("paused"), *after, *_all("mended"), *_all("committed", step + 1),
    ],
    st.sampled_from(_AGENTS[1:4]),
    st.lists(_EVENTS, max_size=2),
    st.lists(_EVENTS, max_size=2),
    st.lists(_EVENTS, max_size=2),
    st.integers(0, 40),
)  # fmt: skip
_ROUNDS = st.lists(st.one_of(_ROUND, _GROWTH), min_size=1, max_size=8)
_CROWD = [("grant", name, True) for name in _AGENTS[:4]]


class _World:
    """Model of the driver's side: agents of the run, live workers, held commits."""

    def __init__(self, kind: Kind) -> None:
        self.machine = kind(spec(size=4, reset_limit=50))
        self.now = 0.0
        self.held: set[str] = set()
        self.alive: dict[str, int] = {}  # agent -> generation of its live worker
        self.concluded = self.reconfigured = 0
        self.chief, self.mendable = "", set[str]()  # agents whose workers are reconfigurable
        self.members: set[str] = set()
        self.number = -1  # the highest that a generation, or a newcomer's process, has had
        self.preparing: dict[str, int] = {}  # newcomers -> the commit that they prepare from
        self.grown = 0
        self.base = -1
        self.states: dict[str, int] = {}  # agent -> newest step that it holds
        self.stored = -1  # the newest checkpoint
        self.storing: set[str] = set()  # agents that were requested to store a checkpoint
        self.do(self.machine.begin(0.0))

    def do(self, actions: list[events.Action]) -> None:
        for action in actions:
            assert not self.concluded or isinstance(action, events.ReturnAgents)
            match action:
                case events.StartGeneration():
                    assert 2 <= len(set(action.agent_ids)) == len(action.agent_ids) <= 4
                    assert not self.alive, "a worker of the last generation lives"
                    assert set(action.agent_ids) | set(action.holders) <= self.held
                    assert action.generation > self.number
                    self.number = action.generation
                    self.alive = dict.fromkeys(action.agent_ids, action.generation)
                    self.members, self.preparing = set(action.agent_ids), {}
                    self.chief, self.mendable = action.agent_ids[0], set()
                    newest = max(self.states.values(), default=-1)
                    assert max(action.step, action.stored) == max(newest, self.stored), "the newest state was given up"
                    assert action.step < 0 or action.stored < 0
                    if action.step < 0:
                        self.states.clear()
                    assert action.step < 0 or all(self.states[agent_id] == action.step for agent_id in action.holders)
                    assert bool(action.holders) == (action.step >= 0)
                    self.base = action.step
                case events.ReconfigureGroup():
                    assert 2 <= len(set(action.agent_ids)) == len(action.agent_ids) <= 4
                    assert set(action.agent_ids) <= set(self.alive), "nobody goes on who is not there"
                    assert set(action.agent_ids) <= self.mendable | set(self.preparing)
                    assert action.agent_ids[0] == self.chief
                    assert action.generation > self.number
                    joined = set(action.agent_ids) - self.members
                    assert joined <= set(self.preparing) and (action.meets or not joined)
                    self.number, self.members = action.generation, set(action.agent_ids)
                    self.reconfigured += 1
                    self.grown += bool(joined)
                    for agent_id in joined:
                        del self.preparing[agent_id]
                case events.PrepareNewcomers():
                    assert set(action.agent_ids) <= self.held and not set(action.agent_ids) & set(self.alive)
                    assert action.generation > self.number and set(action.members) == self.members
                    assert action.step == max(self.states.values()) and action.holders
                    assert all(self.states[agent_id] == action.step for agent_id in action.holders)
                    assert len(self.members) + len(self.preparing) + len(action.agent_ids) <= 4
                    self.number = action.generation
                    for agent_id in action.agent_ids:
                        self.alive[agent_id], self.preparing[agent_id] = action.generation, action.step
                        if agent_id not in action.holders:
                            self.states.pop(agent_id, None)
                case events.PauseGroup():
                    assert set(action.agent_ids) == self.members <= self.mendable
                    assert action.generation == self.machine.generation
                case events.StopWorkers():
                    for agent_id in action.agent_ids:
                        self.preparing.pop(agent_id, None)
                case events.ReturnAgents():
                    assert set(action.agent_ids) <= self.held
                    assert not set(action.agent_ids) & set(self.alive)
                    self.held -= set(action.agent_ids)
                    before = max(self.states.values(), default=-1)
                    for agent_id in action.agent_ids:
                        self.states.pop(agent_id, None)
                    if action.leave:
                        left = max(self.states.values(), default=-1)
                        assert max(left, self.stored) >= before, "the newest state went with it"
                case events.PersistCommit():
                    assert action.agent_id in self.held and self.states.get(action.agent_id, -1) >= 0
                    self.storing.add(action.agent_id)
                case events.DropAgents():
                    for agent_id in action.agent_ids:
                        self.held.discard(agent_id)
                        self.states.pop(agent_id, None)
                        self.alive.pop(agent_id, None)
                case events.ConcludeRun():
                    self.concluded += 1

    def check_drains(self) -> None:
        """Check that a waiting run has its state stored if only draining agents hold it, and then releases them."""
        newest = max(self.states.values(), default=-1)
        holders = {agent for agent, step in self.states.items() if step == newest}
        if (
            self.machine.phase is Phase.WAITING
            and newest > self.stored
            and holders <= set(self.machine.membership.leaving)
        ):
            assert self.storing & holders, "nobody stores what only those have that leave"
        if self.machine.phase is Phase.WAITING and newest <= self.stored:
            assert not self.held & set(self.machine.membership.leaving), (
                "they are waited for, and hold what others could have"
            )

    def apply(self, kind: str, agent: str, value: Any) -> None:
        if kind == "all":
            for one in list(self.alive):
                self.apply(agent, one, value)
            return
        self.now += 0.01 if kind != "tick" else value
        prepares = agent in self.preparing
        generation = self.alive[agent] if prepares and agent in self.alive else self.machine.generation
        event: events.Event
        if kind == "grant":
            if agent in self.held or self.machine.phase.is_final:
                return
            self.held.add(agent)
            event = events.Granted((agent,), (f"h{agent}",), (value,))
        elif kind == "tick":
            event = events.Tick()
        elif kind == "resize":
            event = events.ResizeRequested(value)
        elif agent not in self.held:
            return
        elif kind == "lost":
            self.held.discard(agent)
            self.states.pop(agent, None)
            self.alive.pop(agent, None)
            self.preparing.pop(agent, None)
            event = events.MemberLost(agent, "gone")
        elif kind == "ready":
            event = events.Ready(agent)
        elif kind == "drain":
            event = events.DrainRequested(agent, "warned", float(value))
        elif kind == "persisted":
            if agent not in self.storing or self.states.get(agent, -1) < 0:
                return
            self.storing.discard(agent)
            self.stored = max(self.stored, self.states[agent])
            event = events.CommitPersisted(agent, self.states[agent])
        elif kind == "closed":
            if self.alive.pop(agent, None) is None:
                return
            self.preparing.pop(agent, None)
            event = events.Closed(agent, generation)
        elif agent not in self.alive:
            return
        elif kind == "failed":
            event = events.Failed(
                agent, generation, "died", value == "echo", value == "raised", outside=value == "killed"
            )
        elif kind == "mendable":
            self.mendable.add(agent)
            event = events.Reconfigurable(agent, generation)
        elif kind in ("mended", "broken"):
            event = events.Reconfigured(agent, generation, 7, "" if kind == "mended" else "it cannot")
        elif kind == "paused":
            event = events.Paused(agent, generation, 7)
        else:
            made = {"started": events.Started, "finished": events.Finished}.get(kind)
            with_step = {
                "committed": events.WorkerCommitted,
                "parked": events.PausedAtCommit,
                "stepped": events.Stepped,
            }
            event = made(agent, generation) if made else with_step[kind](agent, generation, value)
            counts = kind == "committed" or (kind == "parked" and self.machine.phase is Phase.PARKING)
            if prepares and kind == "started":
                self.states[agent] = max(self.states.get(agent, -1), self.preparing[agent])
            elif agent in self.members and (counts or (kind == "started" and self.base >= 0)):
                self.states[agent] = max(self.states.get(agent, -1), value if counts else self.base)
        self.do(self.machine.handle(event, self.now))


# A newcomer is admitted, and the generation ends before it has continued: its late events do not make it a holder of
# the others' newest commit.
_LATE = [
    [
        *_all("started"), *_all("mendable"), *_all("committed", step), ("failed", lost, "killed"), *_all("mended"),
        ("closed", lost, 0), *_all("started"), *_all("mendable"), *_all("paused"), ("tick", "", 1.0), *_all("paused"),
        *after, *_all("mended"), *_all("committed", step + 1),
    ]
    for lost, step, after in (("a2", 1, []), ("a1", 0, [("lost", "a0", 0)]))
]  # fmt: skip
_LATE += [[*_all("started"), *_all("mendable"), *_all("closed"), ("tick", "", 1.0)]]


@settings(max_examples=150, deadline=None)
@given(_ROUNDS)
@example(_LATE)
@pytest.mark.parametrize("kind", [restarting_group, continuing_group, ElasticGroupMachine])
def test_every_event_sequence_preserves_the_invariants_and_can_be_cancelled(
    kind: Kind, rounds: list[list[tuple[str, str, Any]]]
):
    world = _World(kind)
    for kind, agent, value in [*_CROWD, *(event for one in rounds for event in one)]:
        world.apply(kind, agent, value)
        machine = world.machine
        assert machine.phase.is_final == bool(world.concluded)
        waits = machine.phase in (Phase.WAITING, Phase.FORMING, Phase.MENDING, Phase.REFORMING, Phase.STOPPING)
        assert not waits or machine.deadline is not None
        world.check_drains()
    world.do(world.machine.handle(events.CancelRequested("enough"), world.now))
    for agent in list(world.alive):
        world.apply("closed", agent, 0)
    for _ in range(3):
        world.apply("tick", "", 1000.0)
    assert world.concluded == 1 and not world.held
