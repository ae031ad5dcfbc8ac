"""Tests of the gang: single rules, then invariants over random sequences of events."""

from __future__ import annotations

from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.machine import MemberState, ranks
from hopsml.cluster.shared.spec import ElasticGroup, FixedGroup
from tests.unit.cluster.elastic_group import restarting_group

pytestmark = pytest.mark.fast

SPEC = FixedGroup(size=2, start_timeout_s=10, settle_s=1, grace_s=2, flush_s=5, failed_flush_s=1)
NAMES = ("a", "b")


def granted(spec: FixedGroup = SPEC) -> ElasticGroupMachine:
    machine = ElasticGroupMachine(spec)
    machine.begin(0.0)
    machine.handle(events.Granted(("a", "b", "c")[: spec.size]), 1.0)
    return machine


def running(spec: FixedGroup = SPEC) -> ElasticGroupMachine:
    machine = granted(spec)
    for name in machine.members:
        machine.handle(events.Started(name, 0), 2.0)
    return machine


def conclusion(actions: list[events.Action]) -> events.ConcludeRun:
    (found,) = [action for action in actions if isinstance(action, events.ConcludeRun)]
    return found


def test_ranks_follow_the_order_of_the_grant():
    machine = ElasticGroupMachine(SPEC)
    assert machine.begin(0.0) == [events.RequestAgents(2, 2)]
    assert machine.handle(events.Granted(("x", "y")), 1.0) == [events.StartGeneration(0, ("x", "y"))]
    assert [machine.rank(name) for name in ("x", "y", "stranger")] == [0, 1, -1]
    assert [machine.agent_of(rank) for rank in (0, 1, 2)] == ["x", "y", None]


def test_process_that_ends_without_a_report_has_failed():
    """Its peers would wait for it in their next collective, and no other event reports its end."""
    machine = running()
    assert machine.handle(events.Closed("b", 0), 3.0) == []
    machine.handle(events.Tick(), 3.0 + SPEC.raised_settle_s)
    found = conclusion(machine.handle(events.Closed("a", 0), 9.0))
    assert (found.phase, found.rank, found.reason) == (Phase.FAILED, 1, "its process ended without a report")
    finished = running()
    for name in NAMES:
        finished.handle(events.Finished(name, 0), 3.0)
        actions = finished.handle(events.Closed(name, 0), 3.1)
    assert conclusion(actions).phase is Phase.FINISHED


def test_heartbeat_is_handled_without_iterating_over_the_members():
    """A group may have a thousand members, each of which sends one every second."""

    class Members(dict[str, MemberState]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("all members were looked at")

        keys = values = items = __iter__  # type: ignore[assignment]

    machine = running()
    machine.members = Members(machine.members)
    assert machine.handle(events.Stepped("b", 0, 7), 3.0) == []


def test_failure_names_the_rank_whose_process_was_stopped():
    """JAX ends a process by itself ten seconds after a peer has fallen silent: sooner than the run gives that one up."""
    machine = running()
    machine.handle(events.Stepped("b", 0, -1, stopped=True), 3.0)
    machine.handle(events.Failed("a", 0, "killed by signal 6 (SIGABRT)"), 13.0)
    machine.handle(events.Tick(), 20.0)
    outcome = machine.outcome
    assert outcome is not None
    assert outcome.reason == "while the process of rank 1 was stopped (SIGSTOP): killed by signal 6 (SIGABRT)"
    own = running()
    own.handle(events.Stepped("b", 0, -1, stopped=True), 3.0)
    own.handle(events.Failed("a", 0, "ValueError: bad batch", raised=True), 13.0)
    own.handle(events.Tick(), 20.0)
    assert own.outcome is not None and own.outcome.reason == "ValueError: bad batch"


def test_waiting_group_counts_no_more_agents_than_it_needs():
    assert [ElasticGroupMachine(SPEC).agent_counts(idle) for idle in (0, 1, 2, 5)] == [
        (0, "2"),
        (1, "2"),
        (2, "2"),
        (2, "2"),
    ]


def test_run_finishes_when_all_workers_have_finished_and_closed():
    machine = running()
    assert machine.phase is Phase.RUNNING
    machine.handle(events.Finished("a", 0), 3.0)
    machine.handle(events.Closed("a", 0), 3.1)
    assert machine.phase is Phase.RUNNING
    machine.handle(events.Finished("b", 0), 4.0)
    actions = machine.handle(events.Closed("b", 0), 4.1)
    assert actions == [events.ReturnAgents(NAMES), events.ConcludeRun(Phase.FINISHED)]
    assert machine.handle(events.Tick(), 1e9) == []


def test_start_timeout_names_the_ranks_that_have_not_started():
    machine = granted()
    machine.handle(events.Started("a", 0), 2.0)
    assert machine.handle(events.Tick(), 9.9) == []
    (stop,) = machine.handle(events.Tick(), 10.0)
    assert stop == events.StopWorkers(0, NAMES, 2, 1)
    machine.handle(events.Closed("a", 0), 10.1)
    outcome = conclusion(machine.handle(events.Closed("b", 0), 10.2))
    reason = "not all of 2 workers had connected after 10 s"
    assert outcome == events.ConcludeRun(Phase.FAILED, "start", reason, missing=((1, "not started"),))


def test_start_timeout_without_any_agent_ends_the_run_at_once():
    machine = ElasticGroupMachine(SPEC)
    machine.begin(0.0)
    reason, missing = "not all of 2 workers had connected after 10 s", ((0, "no agent"), (1, "no agent"))
    assert machine.handle(events.Tick(), 9.9) == []
    outcome = conclusion(machine.handle(events.Tick(), 10.0))
    assert outcome == events.ConcludeRun(Phase.FAILED, "start", reason, missing=missing)


def test_running_group_has_no_deadline():
    assert running().deadline is None and running().handle(events.Tick(), 1e6) == []


def test_secondary_failure_waits_for_its_cause():
    machine = running()
    assert machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True), 3.0) == []
    machine.handle(events.Failed("b", 0, "ValueError: bad batch"), 3.2)
    machine.handle(events.Closed("a", 0), 3.3)
    outcome = conclusion(machine.handle(events.Closed("b", 0), 3.4))
    assert (outcome.rank, outcome.reason) == (1, "ValueError: bad batch")


def test_secondary_failure_without_another_is_the_cause():
    machine = running()
    machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True), 3.0)
    assert machine.handle(events.Tick(), 3.9) == []
    (stop,) = machine.handle(events.Tick(), 4.0)
    assert isinstance(stop, events.StopWorkers)
    machine.handle(events.Closed("a", 0), 4.1)
    outcome = conclusion(machine.handle(events.Closed("b", 0), 4.2))
    assert outcome == events.ConcludeRun(Phase.FAILED, "worker", "UnavailableError", "a", 0)


def test_secondary_failure_just_before_the_start_timeout_waits_for_its_cause():
    machine = granted()
    machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True), 9.5)
    assert machine.handle(events.Tick(), 10.4) == []
    (stop,) = machine.handle(events.Tick(), 10.5)
    assert stop == events.StopWorkers(0, NAMES, 2, 1)


def test_loss_of_an_agent_whose_worker_has_failed_extends_no_wait():
    machine = running()
    machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True), 3.0)
    machine.handle(events.Closed("a", 0), 3.1)
    assert machine.handle(events.MemberLost("a", "gone"), 3.2) == []
    assert machine.handle(events.Tick(), 3.9) == []
    (stop,) = machine.handle(events.Tick(), 4.0)
    assert stop == events.StopWorkers(0, ("b",), 2, 1)
    assert machine.outcome is not None and machine.outcome.reason == "UnavailableError"


@pytest.mark.parametrize(
    "neighbours",
    [
        events.Failed(
            "a", 0, "ConnectionResetError: [Errno 104] Connection reset by peer", secondary=True, raised=True
        ),
        events.Failed("a", 0, "RuntimeError: the other one does not answer", raised=True),
    ],
)
@pytest.mark.parametrize(
    "killing", [events.Failed("b", 0, "killed by signal 9", outside=True), events.MemberLost("b", "killed by signal 9")]
)
def test_killed_member_is_blamed_if_its_neighbour_reports_an_error_first(
    neighbours: events.Event, killing: events.Event
):
    machine = running()
    assert machine.handle(neighbours, 3.0) == [] and machine.phase is Phase.SETTLING
    machine.handle(killing, 3.9)
    machine.handle(events.Closed("b", 0), 3.9)
    outcome = conclusion(machine.handle(events.Closed("a", 0), 4.0))
    assert (outcome.rank, outcome.reason) == (1, "killed by signal 9")


def test_raised_error_waits_shorter_than_a_secondary_one_and_only_for_silent_members():
    machine = ElasticGroupMachine(FixedGroup(size=2, settle_s=3, raised_settle_s=1))
    machine.begin(0.0)
    machine.handle(events.Granted(NAMES), 1.0)
    machine.handle(events.Failed("a", 0, "an echo", secondary=True), 2.0)
    assert machine.deadline == 5.0
    machine.members["c"] = MemberState(2)  # a member that may still report
    machine.handle(events.Failed("b", 0, "ValueError", raised=True), 2.5)
    assert machine.deadline == 3.5 and machine.handle(events.Tick(), 3.4) == []
    (stop,) = machine.handle(events.Tick(), 3.5)
    assert isinstance(stop, events.StopWorkers) and machine.outcome is not None and machine.outcome.rank == 1
    alone = ElasticGroupMachine(FixedGroup(size=1))
    alone.begin(0.0)
    alone.handle(events.Granted(("a",)), 1.0)
    assert isinstance(alone.handle(events.Failed("a", 0, "ValueError", raised=True), 2.0)[0], events.StopWorkers)


def test_agent_lost_after_its_worker_closed_is_not_a_failure():
    machine = running()
    machine.handle(events.Finished("a", 0), 3.0)
    machine.handle(events.Closed("a", 0), 3.1)
    assert machine.handle(events.MemberLost("a", "gone"), 3.2) == [] and machine.phase is Phase.RUNNING
    machine.handle(events.Finished("b", 0), 4.0)
    assert conclusion(machine.handle(events.Closed("b", 0), 4.1)).phase is Phase.FINISHED


def test_finished_run_has_a_time_limit_to_store_its_files():
    machine = running()
    for name in NAMES:
        machine.handle(events.Finished(name, 0), 3.0)
    limit = 3.0 + SPEC.grace_s + SPEC.flush_s
    assert machine.handle(events.Tick(), limit + 9.9) == []
    (drop, *_) = machine.handle(events.Tick(), limit + 10)
    assert drop == events.DropAgents(NAMES, "did not report its worker's end in time")


def test_only_members_that_have_not_reported_their_end_are_dropped():
    machine = running()
    for name in NAMES:
        machine.handle(events.Finished(name, 0), 3.0)
    machine.handle(events.Closed("a", 0), 3.1)
    drop, note, back, outcome = machine.handle(events.Tick(), 100.0)
    assert drop == events.DropAgents(("b",), "did not report its worker's end in time")
    assert isinstance(note, events.Note) and note.text.startswith(
        "the agent of rank 1 did not report in time that its last"
    )
    assert (back, outcome) == (events.ReturnAgents(("a",)), events.ConcludeRun(Phase.FINISHED))


def test_refusal_by_the_backend_does_not_replace_the_outcome_of_a_stopping_run():
    machine = running()
    machine.handle(events.Failed("b", 0, "killed by signal 9", outside=True), 3.0)
    assert machine.handle(events.Refused("the application ends", "application"), 3.1) == []
    machine.handle(events.Closed("a", 0), 3.2)
    assert conclusion(machine.handle(events.Closed("b", 0), 3.3)).reason == "killed by signal 9"
    finished = running()
    for name in NAMES:
        finished.handle(events.Finished(name, 0), 3.0)
    assert finished.handle(events.Refused("the application ends", "application"), 3.1) == []
    finished.handle(events.Closed("a", 0), 3.2)
    assert conclusion(finished.handle(events.Closed("b", 0), 3.3)).phase is Phase.FINISHED


def test_refusal_by_the_backend_ends_a_waiting_and_a_running_run():
    machine = ElasticGroupMachine(SPEC)
    machine.begin(0.0)
    outcome = conclusion(machine.handle(events.Refused("there is 1 slot"), 1.0))
    assert outcome == events.ConcludeRun(Phase.FAILED, "slots", "there is 1 slot")
    machine = running()
    assert machine.handle(events.Refused("it was stopped", "application"), 3.0) == [events.StopWorkers(0, NAMES, 2, 1)]
    assert machine.handle(events.Tick(), 3.0 + SPEC.grace_s + SPEC.failed_flush_s + 1.9) == []
    drop, *_, outcome = machine.handle(events.Tick(), 3.0 + SPEC.grace_s + SPEC.failed_flush_s + 2)
    assert drop == events.DropAgents(NAMES, "did not report its worker's end in time")
    assert outcome == events.ConcludeRun(Phase.FAILED, "application", "it was stopped")


def test_cancellation_stops_workers_that_save_files_and_replaces_no_failure():
    machine = running()
    assert machine.handle(events.CancelRequested("Ctrl-C"), 3.0) == [events.StopWorkers(0, NAMES, 2, 1)]
    machine.handle(events.Closed("a", 0), 3.1)
    cancelled = conclusion(machine.handle(events.Closed("b", 0), 3.1))
    assert cancelled == events.ConcludeRun(Phase.CANCELLED, "cancelled", "Ctrl-C")
    saving = running()
    for name in NAMES:
        saving.handle(events.Finished(name, 0), 3.0)
    assert saving.handle(events.CancelRequested("Ctrl-C"), 3.1) == [events.StopWorkers(0, NAMES, 2, 1)]
    assert saving.handle(events.CancelRequested("again"), 3.2) == []
    assert saving.outcome == cancelled
    failed = running()
    failed.handle(events.Failed("b", 0, "killed by signal 9", outside=True), 3.0)
    assert failed.handle(events.CancelRequested("Ctrl-C"), 3.1) == []
    assert failed.outcome == events.ConcludeRun(Phase.FAILED, "worker", "killed by signal 9", "b", 1)


def test_agents_granted_after_the_end_are_returned():
    machine = ElasticGroupMachine(SPEC)
    machine.begin(0.0)
    machine.handle(events.CancelRequested("Ctrl-C"), 1.0)
    assert machine.phase is Phase.CANCELLED
    assert machine.handle(events.Granted(NAMES), 2.0) == [events.ReturnAgents(NAMES)]
    assert machine.handle(events.CancelRequested("again"), 3.0) == []


def test_events_of_unknown_agents_are_ignored():
    machine = running()
    for event in (
        events.Started("c", 0),
        events.Stepped("c", 0, 1, stopped=True),
        events.Finished("c", 0),
        events.Failed("c", 0, "ValueError", raised=True),
        events.Closed("c", 0),
        events.MemberLost("c", "gone"),
        events.DrainRequested("c", "its node goes"),
    ):
        assert machine.handle(event, 3.0) == [], event
        assert machine.phase is Phase.RUNNING and not machine.failures


def test_second_failure_report_of_a_worker_is_ignored():
    machine = running()
    machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True), 3.0)
    machine.handle(events.Failed("a", 0, "ValueError", raised=True), 3.1)
    machine.handle(events.Tick(), 3.0 + SPEC.settle_s)
    assert machine.outcome is not None and machine.outcome.reason == "UnavailableError"


def test_warning_of_a_node_is_noted_with_a_remedy():
    machine = running()
    for rank, name in enumerate(NAMES):
        assert machine.handle(events.DrainRequested(name, "its node goes"), 3.0) == [
            events.Note(
                f"rank {rank} is about to be lost (its node goes), and a group of fixed size ends with it; with "
                "min_workers= instead of num_workers= it would go on"
            )
        ]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([1], "rank 1"),
        ([0, 2], "ranks 0 and 2"),
        ([0, 2, 3], "ranks 0, 2 and 3"),
        ([4, 5, 6, 11], "ranks 4, 5, 6 and 11"),
    ],
)
def test_ranks_are_listed_in_words(numbers: list[int], words: str):
    assert ranks(numbers) == words


# ---------------------------------------------------------------------------------------------- idle members


def stepped(name: str, stopped: bool = False, idle_s: float = 0.0) -> events.Stepped:
    return events.Stepped(name, 0, -1, stopped, idle_s=idle_s)


def test_stopped_process_is_noted_at_once_and_fails_the_run_within_a_minute():
    machine = running()
    assert machine.handle(stepped("b", stopped=True), 3.0) == [
        events.Note(
            "the process of rank 1 is stopped (SIGSTOP), and the others wait for it; if it is not resumed within 60 s "
            "it counts as lost"
        )
    ]
    assert machine.handle(stepped("b", stopped=True), 4.0) == []
    assert machine.handle(events.Tick(), 62.9) == []
    (stop,) = machine.handle(events.Tick(), 63.0)
    assert stop == events.StopWorkers(0, NAMES, 2, 1)
    reason = "its process has been stopped (SIGSTOP) for 60 s"
    assert machine.outcome == events.ConcludeRun(Phase.FAILED, "worker", reason, "b", 1)


def test_stopped_process_remains_the_cause_when_all_workers_are_killed():
    spec = ElasticGroup(size=2, min_size=2, stopped_s=5)
    machine = restarting_group(spec)
    machine.begin(0.0)
    machine.handle(events.Granted(NAMES), 1.0)
    for name in NAMES:
        machine.handle(events.Started(name, 0), 2.0)
    machine.handle(stepped("b", stopped=True), 3.0)
    assert machine.handle(events.Tick(), 7.9) == []
    (stop,) = machine.handle(events.Tick(), 8.0)
    assert stop == events.StopWorkers(0, NAMES, 0.0, 0.0, keep=True)
    for name in NAMES:  # by us
        machine.handle(events.Failed(name, 0, "killed by signal 9", outside=True), 8.1)
    assert [failure.agent_id for failure in machine.failures] == ["b", "a"]
    machine.handle(events.Closed("a", 0), 8.3)
    note, *_ = machine.handle(events.Closed("b", 0), 8.3)
    assert isinstance(note, events.Note) and note.text.endswith(
        "rank 1: its process has been stopped (SIGSTOP) for 5 s"
    )


def test_resumed_process_does_not_count_as_stopped():
    machine = running()
    machine.handle(stepped("b", stopped=True), 3.0)
    machine.handle(stepped("b"), 50.0)
    assert machine.handle(events.Tick(), 70.0) == []
    (note,) = machine.handle(stepped("b", stopped=True), 71.0)
    assert isinstance(note, events.Note) and machine.handle(events.Tick(), 130.9) == []


def all_idle(spec: FixedGroup, idle_s: float) -> tuple[ElasticGroupMachine, list[events.Action]]:
    """Return a group whose workers have been idle for ``idle_s`` seconds, rank 0 for a second longer."""
    machine = running(spec)
    machine.handle(stepped("a", idle_s=idle_s + 1), 1000.0)
    machine.handle(stepped("b", idle_s=idle_s), 1000.0)
    return machine, machine.handle(events.Tick(), 1000.0)


def test_idleness_of_all_workers_is_noted_once_with_possible_causes():
    machine, (note,) = all_idle(SPEC, SPEC.stalled_s)
    assert isinstance(note, events.Note) and note.text.startswith("no worker has done anything for 120 s: most likely")
    assert all(word in note.text for word in ("firewall", "http_proxy", "HOPSML_KEEPALIVE_S", "progress_timeout="))
    assert machine.handle(events.Tick(), 1001.0) == [] and machine.phase is Phase.RUNNING


@pytest.mark.parametrize("busy", ["a", "b"])
def test_no_idleness_is_noted_while_one_worker_is_active(busy: str):
    machine, actions = all_idle(SPEC, SPEC.stalled_s - 0.1)
    assert actions == []
    machine.handle(stepped(busy, idle_s=0.0), 1001.0)
    assert machine.handle(events.Tick(), 1001.0 + SPEC.stalled_s - 0.1) == []


def test_progress_timeout_ends_a_fixed_group_whose_workers_are_all_idle():
    spec = FixedGroup(size=2, progress_timeout_s=30.0)
    assert all_idle(spec, 29.9)[1] == []
    machine, _ = all_idle(spec, 30.0)
    assert machine.outcome is not None and machine.outcome.error == "worker" and machine.outcome.rank == 0
    assert machine.outcome.reason.startswith("no worker has done anything for 30 s (progress_timeout=30): most likely")


def test_progress_timeout_does_not_apply_to_a_single_remaining_worker():
    machine = running(FixedGroup(size=2, progress_timeout_s=30.0, returned_s=None))
    machine.handle(events.Finished("b", 0), 10.0)
    machine.handle(stepped("a", idle_s=500.0), 600.0)
    assert machine.handle(events.Tick(), 600.0) == []


def group_after_a_departure(exited: bool, idle_s: float, after: float) -> ElasticGroupMachine:
    """Return a group that rank 1 left at 10.0 s; rank 0 is idle for ``idle_s`` seconds, ``after`` seconds later."""
    machine = running()
    machine.handle(events.Finished("b", 0, exited), 10.0)
    machine.handle(events.Closed("b", 0), 10.0)
    machine.handle(stepped("a", idle_s=idle_s), 10.0 + after)
    machine.handle(events.Tick(), 10.0 + after)
    return machine


def test_run_fails_if_the_remaining_rank_is_idle_after_a_member_has_left():
    machine = group_after_a_departure(True, 100.0, SPEC.exited_s or 0)
    remedy = (
        "most likely waiting for it in a collective: every rank must take part in every collective, up to the last one"
    )
    reason = f"called sys.exit(0), and rank 0 has done nothing for 30 s since, {remedy}"
    assert machine.outcome == events.ConcludeRun(Phase.FAILED, "worker", reason, "b", 1)
    machine = group_after_a_departure(False, 200.0, SPEC.returned_s or 0)
    reason = f"returned, and rank 0 has done nothing for 120 s since, {remedy}"
    assert machine.outcome == events.ConcludeRun(Phase.FAILED, "worker", reason, "b", 1)


def test_departure_of_a_member_is_noted_within_seconds():
    rule = "every rank must take part in every collective, up to the last one"
    machine = running()
    machine.handle(events.Finished("b", 0, exited=True), 10.0)
    machine.handle(stepped("a"), 14.0)  # it is at work, or waits with its processor at work
    assert machine.handle(events.Tick(), 14.9) == []
    (note,) = machine.handle(events.Tick(), 15.0)
    assert note == events.Note(
        "rank 1 called sys.exit(0) while rank 0 still works; if rank 0 waits for it in a collective, the run fails after "
        f"30 s without activity: {rule}"
    )
    assert machine.handle(events.Tick(), 16.0) == []
    machine = running(FixedGroup(size=3))
    machine.handle(events.Finished("b", 0), 10.0)
    for name in ("a", "c"):
        machine.handle(stepped(name, idle_s=6.0), 19.9)
    assert machine.handle(events.Tick(), 19.9) == []
    for name in ("a", "c"):
        machine.handle(stepped(name, idle_s=16.0), 29.9)
    (note,) = machine.handle(events.Tick(), 29.9)
    assert note == events.Note(
        "rank 1 returned before ranks 0 and 2; if ranks 0 and 2 wait for it in a collective, the run fails after 120 s "
        f"without activity: {rule}"
    )
    assert machine.handle(events.Tick(), 30.0) == []


def test_return_of_a_member_is_not_noted_while_the_others_are_active():
    machine = running()
    machine.handle(events.Finished("b", 0), 10.0)
    machine.handle(stepped("a"), 100.0)
    assert machine.handle(events.Tick(), 100.0) == []


def test_idle_time_counts_from_the_first_departure():
    machine = running(FixedGroup(size=3, returned_s=30))
    machine.handle(events.Finished("b", 0), 10.0)
    machine.handle(events.Finished("a", 0), 35.0)
    machine.handle(stepped("c", idle_s=30.0), 39.0)
    machine.handle(events.Tick(), 39.9)
    assert machine.outcome is None
    machine.handle(events.Tick(), 40.0)
    assert machine.outcome is not None and machine.outcome.rank == 0


def test_all_ranks_that_wait_for_a_departed_member_are_named():
    machine = running(FixedGroup(size=3, exited_s=30))
    machine.handle(events.Finished("b", 0, exited=True), 10.0)
    for name, idle_s in (("a", 100.0), ("c", 20.0)):
        machine.handle(stepped(name, idle_s=idle_s), 30.0)
    machine.handle(events.Tick(), 39.9)
    assert machine.outcome is None  # one of them was still at work at 10.0
    machine.handle(events.Tick(), 40.0)
    assert machine.outcome is not None and machine.outcome.reason.startswith(
        "called sys.exit(0), and ranks 0 and 2 have done nothing for 30 s since, most likely"
    )


def test_member_that_is_active_again_does_not_count_as_waiting():
    machine = running()
    machine.handle(stepped("a", idle_s=50.0), 9.0)
    machine.handle(events.Finished("b", 0, exited=True), 10.0)
    machine.handle(stepped("a", idle_s=0.0), 20.0)
    machine.handle(events.Tick(), 100.0)
    assert machine.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("exited", "idle_s", "after"), [(True, 100.0, 29.9), (True, 29.9, 500.0), (True, 0.0, 500.0), (False, 119.0, 500.0)]
)
def test_active_member_continues_after_the_others_have_left(exited: bool, idle_s: float, after: float):
    assert group_after_a_departure(exited, idle_s, after).phase is Phase.RUNNING


@pytest.mark.parametrize("returns_first", [True, False])
def test_member_that_leaves_before_the_group_has_formed_fails_the_run(returns_first: bool):
    for exited, how in ((False, "returned"), (True, "called sys.exit(0)")):
        machine = running(FixedGroup(size=3))
        moves: list[events.Event] = [events.Finished("b", 0, exited=exited), events.Forming("a", 0, 3)]
        for event in moves if returns_first else moves[::-1]:
            actions = machine.handle(event, 3.0)
        assert actions == [events.StopWorkers(0, ("a", "b", "c"), machine.spec.grace_s, machine.spec.failed_flush_s)]
        reason = (
            f"{how} before its first collective operation, in which rank 0 waits for it: every rank must take part in "
            "every collective"
        )
        assert machine.outcome == events.ConcludeRun(Phase.FAILED, "worker", reason, "b", 1)


def test_member_that_has_formed_the_group_and_an_evaluator_may_return():
    machine = running(FixedGroup(size=3))
    for name in ("a", "b"):
        machine.handle(events.Forming(name, 0, 2), 3.0)
    assert machine.handle(events.Finished("c", 0), 3.1) == []  # rank 2 is not one of the two that train
    assert machine.handle(events.Finished("b", 0), 3.2) == []
    assert machine.phase is Phase.RUNNING


def test_members_without_a_group_may_return_one_by_one():
    machine = running(FixedGroup(size=3))
    assert machine.handle(events.Finished("b", 0), 3.1) == []
    assert machine.handle(events.Finished("a", 0), 3.2) == [] and machine.phase is Phase.RUNNING


def test_idle_evaluator_has_no_time_limit():
    machine = ElasticGroupMachine(FixedGroup(size=2, returned_s=None, exited_s=None))
    machine.begin(0.0)
    machine.handle(events.Granted(NAMES), 1.0)
    for name in NAMES:
        machine.handle(events.Started(name, 0), 1.0)
    machine.handle(events.Finished("a", 0), 2.0)
    machine.handle(stepped("b", idle_s=1e6), 1e6)
    assert machine.handle(events.Tick(), 1e6) == []


def test_connection_error_after_sys_exit_of_a_member_is_blamed_on_that_member():
    machine = running()
    machine.handle(events.Finished("b", 0, exited=True), 3.0)
    machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True), 3.1)  # no other member can report
    reason = "called sys.exit(0) while rank 0 still worked with it, which then met: UnavailableError"
    assert machine.outcome == events.ConcludeRun(Phase.FAILED, "worker", reason, "b", 1)
    machine = running()
    machine.handle(events.Failed("a", 0, "UnavailableError", secondary=True), 3.0)
    machine.handle(events.Finished("b", 0), 3.1)
    assert machine.outcome is not None and machine.outcome.rank == 0
    assert machine.outcome.reason == "when the function of rank 1 had returned: UnavailableError"
    for crash, expected in (
        ({}, "when the function of rank 1 had returned: killed by signal 6 (SIGABRT)"),  # as JAX ends who waits for it
        ({"outside": True}, "killed by signal 6 (SIGABRT)"),
        ({"raised": True}, "killed by signal 6 (SIGABRT)"),
    ):
        machine = running()
        machine.handle(events.Finished("b", 0), 3.0)
        machine.handle(events.Failed("a", 0, "killed by signal 6 (SIGABRT)", **crash), 3.1)
        assert machine.outcome is not None and machine.outcome.reason == expected


def test_first_failure_is_the_reason_if_more_follow():
    machine = running()
    machine.handle(events.Failed("b", 0, "first"), 3.0)
    machine.handle(events.Failed("a", 0, "second"), 3.1)
    machine.handle(events.Closed("a", 0), 3.2)
    assert conclusion(machine.handle(events.Closed("b", 0), 3.3)).reason == "first"


def test_lost_agent_ends_the_run_and_is_not_waited_for():
    machine = running()
    (stop,) = machine.handle(events.MemberLost("b", "gone"), 3.0)
    assert stop == events.StopWorkers(0, ("a",), 2, 1)
    actions = machine.handle(events.Closed("a", 0), 3.1)
    assert events.ReturnAgents(("a",)) in actions
    assert conclusion(actions) == events.ConcludeRun(Phase.FAILED, "worker", "gone", "b", 1)


def all_lost():
    machine = running()
    machine.handle(events.MemberLost("b", "gone"), 3.0)
    assert machine.handle(events.MemberLost("a", "gone, too"), 3.1) == []
    return machine


def test_loss_of_all_agents_is_explained_by_the_end_of_the_application():
    machine = all_lost()
    found = conclusion(machine.handle(events.Refused("its SparkContext was stopped", "application"), 3.4))
    assert (found.phase, found.error, found.reason) == (
        Phase.FAILED,
        "application",
        "its SparkContext was stopped",
    )
    assert machine.handle(events.Refused("again", "application"), 3.5) == []


def test_loss_of_all_agents_is_a_worker_failure_if_the_application_continues():
    machine = all_lost()
    assert machine.handle(events.Tick(), 3.1 + SPEC.settle_s - 0.01) == []
    found = conclusion(machine.handle(events.Tick(), 3.1 + SPEC.settle_s))
    assert (found.error, found.rank, found.reason) == ("worker", 1, "gone")


def test_agents_are_not_dropped_while_only_the_backends_reason_is_awaited():
    machine = running(FixedGroup(size=2, settle_s=60))
    for name in NAMES:
        machine.handle(events.MemberLost(name, "gone"), 3.0)
    assert machine.deadline is not None and machine.deadline < 62.9
    assert machine.handle(events.Tick(), 62.9) == []
    assert machine.handle(events.Tick(), 63.0)[0] == events.ReturnAgents(())


def test_end_of_the_application_does_not_replace_a_user_error_or_cancellation():
    for event, error in (
        (events.Failed("b", 0, "ValueError", raised=True), "worker"),
        (events.CancelRequested("no"), "cancelled"),
    ):
        machine = running()
        machine.handle(event, 3.0)
        machine.handle(events.Closed("b", 0), 3.1)
        machine.handle(events.Tick(), 3.0 + SPEC.settle_s)
        assert machine.handle(events.Refused("stopped", "application"), 4.2) == []
        machine.handle(events.MemberLost("b", "gone"), 4.25)
        assert conclusion(machine.handle(events.MemberLost("a", "gone"), 4.3)).error == error


def test_agent_lost_after_its_worker_closed_does_not_fail_a_finished_run():
    machine = running()
    for name in NAMES:
        machine.handle(events.Finished(name, 0), 3.0)
    machine.handle(events.Closed("a", 0), 3.1)
    machine.handle(events.MemberLost("a", "gone"), 3.2)
    assert conclusion(machine.handle(events.Closed("b", 0), 3.3)).phase is Phase.FINISHED


def test_agents_that_never_report_the_end_are_dropped_at_the_deadline():
    machine = running()
    machine.handle(events.CancelRequested("the user"), 3.0)
    assert machine.handle(events.Tick(), 7.9) == []
    actions = machine.handle(events.Tick(), 8.0)
    assert isinstance(actions[0], events.DropAgents) and actions[0].agent_ids == NAMES
    assert conclusion(actions).phase is Phase.CANCELLED


def test_events_of_another_generation_are_ignored():
    machine = running()
    assert machine.handle(events.Failed("a", 1, "from the future"), 3.0) == []
    assert machine.phase is Phase.RUNNING


def test_agents_granted_to_a_running_run_are_returned():
    machine = running()
    assert machine.handle(events.Granted(("c",)), 3.0) == [events.ReturnAgents(("c",))]


agents = st.sampled_from(["a", "b", "c", "stranger"])
generations = st.integers(0, 1)
moves = st.one_of(
    st.just(events.Granted(("a", "b", "c"))),
    st.builds(events.Refused, st.just("no")),
    st.builds(events.MemberLost, agents, st.just("gone")),
    st.builds(events.Started, agents, generations),
    st.builds(events.Forming, agents, generations, st.integers(1, 3)),
    st.builds(events.Finished, agents, generations, st.booleans()),
    st.builds(events.Failed, agents, generations, st.just("bad"), *[st.booleans()] * 4),
    st.builds(events.Stepped, agents, generations, st.just(-1), st.booleans(), idle_s=st.sampled_from([0.0, 500.0])),
    st.builds(events.Closed, agents, generations),
    st.builds(events.CancelRequested, st.just("stop")),
    st.just(events.Tick()),
)
sequences = st.lists(st.tuples(moves, st.floats(0, 5)), max_size=40)


def play(sequence: list[tuple[events.Event, float]]) -> tuple[ElasticGroupMachine, list[list[events.Action]]]:
    machine, now = ElasticGroupMachine(FixedGroup(size=3, start_timeout_s=10)), 0.0
    history = [machine.begin(now)]
    for event, pause in sequence:
        now += pause
        history.append(machine.handle(event, now))
    return machine, history


@given(sequences)
@settings(max_examples=150, deadline=None)
def test_every_event_sequence_ends_has_a_deadline_or_runs(sequence):
    machine, history = play(sequence)
    actions = [action for step in history for action in step]
    concluded = [action for action in actions if isinstance(action, events.ConcludeRun)]
    assert len(concluded) <= 1, "a run is concluded once"
    assert bool(concluded) == machine.phase.is_final
    if concluded:
        assert concluded[0].phase is Phase.FINISHED or (concluded[0].error and concluded[0].reason), "a named cause"
    if not machine.phase.is_final and machine.phase is not Phase.RUNNING:
        assert machine.deadline is not None
    starts = [action for action in actions if isinstance(action, events.StartGeneration)]
    assert len(starts) <= 1, "one generation, all members at once"
    assert all(len(set(start.agent_ids)) == 3 for start in starts)


@given(sequences)
@settings(max_examples=100, deadline=None)
def test_ticks_alone_end_every_run_that_is_not_running(sequence):
    machine, _ = play(sequence)
    if machine.phase is not Phase.RUNNING:
        for minute in range(1, 30):
            machine.handle(events.Tick(), 1e6 + 60.0 * minute)
        assert machine.phase.is_final


@given(sequences)
@settings(max_examples=60, deadline=None)
def test_same_events_give_the_same_actions(sequence):
    assert play(sequence)[1] == play(sequence)[1]


@given(sequences)
@settings(max_examples=100, deadline=None)
def test_every_granted_agent_is_returned_dropped_or_lost_at_the_end(sequence):
    machine, history = play(sequence)
    actions = [action for step in history for action in step]
    if machine.phase.is_final and any(isinstance(action, events.StartGeneration) for action in actions):
        returned = {a for action in actions if isinstance(action, events.ReturnAgents) for a in action.agent_ids}
        dropped = {a for action in actions if isinstance(action, events.DropAgents) for a in action.agent_ids}
        lost = {agent for agent, member in machine.members.items() if member.lost}
        assert set(machine.members) == (returned & set(machine.members)) | dropped | lost
