"""Tests of a chief and its servers: single rules, then invariants over random sequences of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.gang import events
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.server_machine import ServerGroupMachine
from hopsml.cluster.shared.spec import Roles, ServerGroup

pytestmark = pytest.mark.fast

NAMES = ("chief", "worker0", "worker1", "ps0", "evaluator")
FAILED, ENDED = "signal 9 (SIGKILL)", "its node died"


def granted(**other: Any) -> ServerGroupMachine:
    machine = ServerGroupMachine(
        ServerGroup(**{"size": 5, "start_timeout_s": 10, **other}), roles=Roles(1, evaluator=True)
    )
    assert machine.begin(0.0) == [events.RequestAgents(5, 5)]
    assert machine.handle(events.Granted(NAMES), 1.0) == [events.StartGeneration(0, NAMES)]
    return machine


def running(**other: Any) -> ServerGroupMachine:
    machine = granted(**other)
    for name in NAMES:
        assert machine.handle(events.Started(name, 0), 2.0) == []
    assert machine.phase is Phase.RUNNING
    return machine


def fail_worker(machine: ServerGroupMachine, name: str, now: float, **how: Any) -> list[events.Action]:
    number = machine.members[name].generation
    failure = events.Failed(name, number, FAILED, **{"outside": True, **how})
    return machine.handle(failure, now) + machine.handle(events.Closed(name, number), now)


def of_kind(actions: list[events.Action], kind: type) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def conclusion(machine: ServerGroupMachine, actions: list[events.Action]) -> events.ConcludeRun:
    """Return the outcome of the run after all stopped workers have ended."""
    for stop in of_kind(actions, events.StopWorkers):
        for name in stop.agent_ids:
            actions = actions + machine.handle(events.Closed(name, stop.generation), 100.0)
    (found,) = of_kind(actions, events.ConcludeRun)
    return found


def test_roles_follow_from_the_layout() -> None:
    assert [member.role for member in granted().members.values()] == ["chief", "worker", "worker", "ps", "evaluator"]


@pytest.mark.parametrize(
    ("name", "rank", "role"), [("worker1", 2, "worker"), ("ps0", 3, "ps"), ("evaluator", 4, "evaluator")]
)
def test_killed_server_is_restarted_on_its_agent_and_the_others_continue(name: str, rank: int, role: str) -> None:
    machine = running()
    assert fail_worker(machine, name, 3.0) == [
        events.Note(f"rank {rank} ({role}) was lost ({FAILED}); it is started again at its address"),
        events.StartGeneration(1, (name,)),
    ]
    assert machine.handle(events.Closed(name, 0), 3.1) == []  # a late event of the killed worker
    assert machine.handle(events.Started(name, 1), 3.2) == [events.Note(f"rank {rank} ({role}) is running again")]
    assert fail_worker(machine, "worker0", 4.0)[-1] == events.StartGeneration(2, ("worker0",))
    assert machine.phase is Phase.RUNNING


def test_end_of_the_chief_ends_the_run_and_stops_servers_by_generation() -> None:
    machine = running()
    fail_worker(machine, "ps0", 3.0)
    machine.handle(events.Started("ps0", 1), 3.2)
    machine.handle(events.Finished("evaluator", 0), 4.0)
    machine.handle(events.Closed("evaluator", 0), 4.0)
    assert machine.phase is Phase.RUNNING
    actions = machine.handle(events.Finished("chief", 0), 5.0)
    stop_actions = [(one.agent_ids, one.generation, one.keep) for one in of_kind(actions, events.StopWorkers)]
    assert stop_actions == [(("worker0",), 0, False), (("worker1",), 0, False), (("ps0",), 1, False)]
    assert machine.handle(events.Closed("chief", 0), 5.1) == []
    assert conclusion(machine, actions) == events.ConcludeRun(Phase.FINISHED)


def test_evaluator_finishes_by_itself_or_is_stopped_at_its_time_limit() -> None:
    for name_of_end in ("its own", "the limit"):
        machine = running(evaluator_s=30)
        actions = machine.handle(events.Finished("chief", 0), 5.0)
        for name in NAMES[:4]:
            assert not of_kind(machine.handle(events.Closed(name, 0), 6.0), events.ConcludeRun)
        assert machine.handle(events.Tick(), 34.9) == []
        if name_of_end == "its own":
            assert machine.handle(events.Finished("evaluator", 0), 34.9) == []
            assert of_kind(machine.handle(events.Closed("evaluator", 0), 34.9), events.ConcludeRun)
            continue
        note, stop = machine.handle(events.Tick(), 35.0)
        assert note == events.Note("the evaluator is stopped, since the chief ended 30 s ago")
        assert conclusion(machine, [stop]) == events.ConcludeRun(Phase.FINISHED)
        assert not of_kind(actions, events.ConcludeRun)


def test_run_continues_without_a_lost_worker_agent_until_the_last_one() -> None:
    machine = running()
    (note,) = machine.handle(events.MemberLost("worker0", ENDED), 3.0)
    assert note == events.Note(
        f"the run continues with 1 worker: rank 1 (worker) was lost and is not restarted: {ENDED}"
    )
    found = conclusion(machine, machine.handle(events.MemberLost("worker1", ENDED), 4.0))
    assert (found.phase, found.rank) == (Phase.FAILED, 2)
    assert found.reason.startswith(f"rank 2 (worker), the last worker, was lost: {ENDED}; experiment.resume continues")


def test_loss_of_the_agent_of_a_parameter_server_or_chief_ends_the_run() -> None:
    for name, rank, words in (("ps0", 3, "rank 3 (ps) was lost"), ("chief", 0, "the chief was lost")):
        machine = running()
        found = conclusion(machine, machine.handle(events.MemberLost(name, ENDED), 3.0))
        assert (found.rank, found.agent_id) == (rank, name) and found.reason.startswith(
            f"{words}: {ENDED}; experiment.resume"
        )


def test_loss_of_the_evaluator_does_not_end_the_run() -> None:
    machine = running()
    (note,) = machine.handle(events.MemberLost("evaluator", ENDED), 3.0)
    assert note == events.Note(f"the run continues without its evaluator (rank 4), which was lost: {ENDED}")
    assert machine.handle(events.Tick(), 100.0) == [] and machine.phase is Phase.RUNNING


def test_server_that_fails_repeatedly_is_not_restarted() -> None:
    machine = running(fruitless_limit=3)
    for number in (1, 2):
        assert fail_worker(machine, "worker1", 3.0)[-1] == events.StartGeneration(number, ("worker1",))
    (note,) = fail_worker(machine, "worker1", 4.0)
    assert note.text.startswith(
        "the run continues with 1 worker: rank 2 (worker) was lost and is not restarted: 3 times in a row"
    )
    for number in (3, 4):
        assert fail_worker(machine, "ps0", 5.0)[-1] == events.StartGeneration(number, ("ps0",))
    assert conclusion(machine, fail_worker(machine, "ps0", 5.0)).rank == 3


def test_failures_after_a_steady_time_are_not_counted_together() -> None:
    machine = running(fruitless_limit=2, steady_s=30)
    now = 2.0
    for number in range(1, 8):
        now += 30.0
        assert fail_worker(machine, "ps0", now)[-1] == events.StartGeneration(number, ("ps0",))
        machine.handle(events.Started("ps0", number), now)


def test_stopped_server_is_killed_and_restarted() -> None:
    machine = running(stopped_s=5)
    (note,) = machine.handle(events.Stepped("worker0", 0, -1, stopped=True), 3.0)
    assert "rank 1 (worker) is stopped (SIGSTOP); if it is not resumed within 5 s, it is replaced" in note.text
    assert machine.handle(events.Stepped("worker0", 0, -1, stopped=True), 4.0) == []
    assert machine.handle(events.Tick(), 7.9) == []
    assert machine.handle(events.Tick(), 8.0) == [events.StopWorkers(0, ("worker0",), 0.0, 0.0, keep=True)]
    assert machine.handle(events.Stepped("worker0", 0, -1, stopped=True), 8.5) == []
    assert machine.handle(events.Closed("worker0", 0), 9.0)[-1] == events.StartGeneration(1, ("worker0",))


def test_resumed_server_is_not_replaced_and_the_chief_has_a_longer_limit() -> None:
    machine = running(stopped_s=5, chief_stopped_s=60)
    machine.handle(events.Stepped("ps0", 0, -1, stopped=True), 3.0)
    machine.handle(events.Stepped("ps0", 0, -1), 7.0)
    machine.handle(events.Stepped("chief", 0, -1, stopped=True), 3.0)
    assert machine.handle(events.Tick(), 62.9) == []
    found = conclusion(machine, machine.handle(events.Tick(), 63.0))
    assert (found.agent_id, found.rank) == ("chief", 0) and found.reason.startswith(
        "its process has been stopped (SIGSTOP) for 60 s; experiment.resume"
    )


def test_secondary_error_of_the_chief_names_the_lost_server() -> None:
    lost_before, lost_after = running(), running()
    lost_before.handle(events.Failed("ps0", 0, FAILED, outside=True), 3.0)
    secondary = events.Failed("chief", 0, "UnavailableError: socket closed", secondary=True, raised=True)
    first = conclusion(lost_before, lost_before.handle(secondary, 3.1))
    assert lost_after.handle(secondary, 3.0) == [] and lost_after.phase is Phase.SETTLING
    later = conclusion(lost_after, lost_after.handle(events.Failed("ps0", 0, FAILED, outside=True), 3.2))
    assert first.reason == later.reason and first.rank == 0
    assert "UnavailableError: socket closed; rank 3 (ps) was lost just before (signal 9 (SIGKILL))" in first.reason


def test_error_of_the_chief_without_a_lost_server_ends_the_run_unchanged() -> None:
    machine = running(settle_s=3)
    assert machine.handle(events.Failed("chief", 0, "UnavailableError", secondary=True), 3.0) == []
    assert machine.handle(events.Tick(), 5.9) == []
    assert conclusion(machine, machine.handle(events.Tick(), 6.0)).reason == "UnavailableError"
    machine = running()
    assert (
        conclusion(machine, machine.handle(events.Failed("chief", 0, "KeyError", raised=True), 3.0)).reason
        == "KeyError"
    )


@pytest.mark.parametrize("begun", [False, True])
def test_chief_that_ends_without_a_report_ends_the_run(begun: bool) -> None:
    machine = running() if begun else granted()
    found = conclusion(machine, machine.handle(events.Closed("chief", 0), 3.0))
    assert (found.phase, found.rank) == (Phase.FAILED, 0)
    assert found.reason.startswith("its process ended without a report; experiment.resume")


def test_error_at_start_ends_the_run_but_a_killed_server_is_restarted() -> None:
    machine = granted()
    found = conclusion(machine, machine.handle(events.Failed("ps0", 0, "ImportError", raised=True), 1.5))
    assert (found.rank, found.reason) == (3, "ImportError")
    machine = granted()
    assert fail_worker(machine, "ps0", 1.5)[-1] == events.StartGeneration(1, ("ps0",))
    assert fail_worker(machine, "evaluator", 1.5, outside=False, raised=True)[-1] == events.StartGeneration(
        2, ("evaluator",)
    )
    for name in NAMES:
        machine.handle(events.Started(name, machine.members[name].generation), 2.0)
    assert machine.phase is Phase.RUNNING


def test_group_starts_without_a_worker_whose_agent_was_lost() -> None:
    machine = granted()
    for name in NAMES[1:]:
        machine.handle(events.Started(name, 0), 2.0)
    machine.handle(events.Started("chief", 0), 2.0)
    machine = granted()
    for name in ("chief", "worker0", "ps0", "evaluator"):
        machine.handle(events.Started(name, 0), 2.0)
    machine.handle(events.MemberLost("worker1", ENDED), 3.0)
    assert machine.phase is Phase.RUNNING and machine.handle(events.Tick(), 100.0) == []


def test_start_timeout_ends_the_run_and_a_restart_timeout_drops_the_agent() -> None:
    machine = granted()
    found = conclusion(machine, machine.handle(events.Tick(), 10.0))
    assert found.error == "start" and dict(found.missing).keys() == {0, 1, 2, 3, 4}
    machine = running(start_timeout_s=10)
    fail_worker(machine, "worker0", 3.0)
    assert machine.handle(events.Tick(), 13.0) == []
    assert machine.handle(events.Tick(), 13.5) == [
        events.DropAgents(("worker0",), "did not start its worker again within 10 s")
    ]


def test_server_that_returns_counts_as_lost() -> None:
    machine = running()
    assert machine.handle(events.Finished("ps0", 0), 3.0) == []
    note, start = machine.handle(events.Closed("ps0", 0), 3.0)
    assert "(its server has returned)" in note.text and start == events.StartGeneration(1, ("ps0",))


def test_loss_of_all_agents_is_explained_by_the_backend() -> None:
    machine = running()
    actions = [one for name in NAMES for one in machine.handle(events.MemberLost(name, ENDED), 3.0)]
    assert not of_kind(actions, events.ConcludeRun)
    (found,) = of_kind(machine.handle(events.Refused("Spark is gone", "application"), 3.5), events.ConcludeRun)
    assert found == events.ConcludeRun(Phase.FAILED, "application", "Spark is gone")


# ------------------------------------------------------------------------------------------ bounds, words, late events


def stop_actions(names: tuple[str, ...], grace_s: float, flush_s: float, generation: int = 0) -> list[events.Action]:
    return [events.StopWorkers(generation, (name,), grace_s, flush_s) for name in names]


def test_agents_granted_to_a_complete_group_are_returned() -> None:
    assert running().handle(events.Granted(("late", "later")), 3.0) == [events.ReturnAgents(("late", "later"))]


def test_group_is_running_once_its_last_member_has_started() -> None:
    machine = granted()
    for name in NAMES[:4]:
        machine.handle(events.Started(name, 0), 2.0)
        assert machine.phase is Phase.FORMING
    machine.handle(events.Started("evaluator", 0), 2.0)
    assert machine.phase is Phase.RUNNING and machine.deadline is None


@pytest.mark.parametrize(
    ("evaluates", "end", "dropped"),
    [(False, 20.0, NAMES[:4]), (True, 50.0, NAMES)],
    ids=["evaluator finished", "evaluator running"],
)
def test_servers_are_dropped_after_their_time_to_end(evaluates: bool, end: float, dropped: tuple[str, ...]) -> None:
    machine = running(grace_s=2, flush_s=3, evaluator_s=30)
    if not evaluates:
        machine.handle(events.Finished("evaluator", 0), 4.0)
        machine.handle(events.Closed("evaluator", 0), 4.0)
    assert machine.handle(events.Finished("chief", 0), 5.0) == stop_actions(("worker0", "worker1", "ps0"), 2, 3)
    if evaluates:
        assert machine.handle(events.Tick(), 35.0)[1:] == stop_actions(("evaluator",), 2, 3)
    assert machine.handle(events.Tick(), end - 0.1) == []
    actions = machine.handle(events.Tick(), end)
    assert actions[0] == events.DropAgents(dropped, "did not report its worker's end in time")
    assert actions[-1] == events.ConcludeRun(Phase.FINISHED)


def test_evaluator_that_has_finished_is_not_reported_as_late() -> None:
    machine = running(grace_s=2, flush_s=3, evaluator_s=30)
    machine.handle(events.Finished("chief", 0), 5.0)
    machine.handle(events.Finished("evaluator", 0), 34.0)
    assert machine.handle(events.Tick(), 35.0) == stop_actions(("evaluator",), 2, 3)


def test_abandoned_server_is_not_stopped_at_the_end() -> None:
    machine = running(fruitless_limit=1)
    fail_worker(machine, "worker1", 3.0)
    stops_at_end = of_kind(machine.handle(events.Finished("chief", 0), 5.0), events.StopWorkers)
    assert [one.agent_ids for one in stops_at_end] == [("worker0",), ("ps0",)]


def test_cancelled_run_ends_all_members_within_a_limit_with_the_first_reason() -> None:
    machine = running(grace_s=2, failed_flush_s=4)
    assert machine.handle(events.CancelRequested("enough"), 3.0) == stop_actions(NAMES, 2, 4)
    assert machine.handle(events.CancelRequested("once more"), 3.5) == []
    assert machine.handle(events.Failed("chief", 0, "KeyError", raised=True), 3.6) == []
    assert machine.handle(events.Tick(), 10.9) == []
    actions = machine.handle(events.Tick(), 11.0)
    assert of_kind(actions, events.DropAgents)[0].agent_ids == NAMES
    assert actions[-1] == events.ConcludeRun(Phase.CANCELLED, "cancelled", "enough")


def test_run_that_waits_for_its_evaluator_can_be_cancelled() -> None:
    machine = running(grace_s=2, failed_flush_s=4, evaluator_s=30)
    ended = machine.handle(events.Finished("chief", 0), 5.0)
    actions = machine.handle(events.CancelRequested("enough"), 6.0)
    assert actions == stop_actions(NAMES, 2, 4)
    assert machine.handle(events.Tick(), 11.9) == []
    assert conclusion(machine, [*ended, *actions]) == events.ConcludeRun(Phase.CANCELLED, "cancelled", "enough")


def test_second_error_of_the_chief_does_not_extend_the_settling_time() -> None:
    machine = running(settle_s=3)
    machine.handle(events.Failed("chief", 0, "UnavailableError", secondary=True), 3.0)
    machine.handle(events.Failed("chief", 0, "AbortedError", secondary=True), 5.0)
    assert machine.handle(events.Tick(), 5.9) == []
    assert conclusion(machine, machine.handle(events.Tick(), 6.0)).reason == "UnavailableError"


SECONDARY_ERROR = events.Failed("chief", 0, "UnavailableError", secondary=True)


@pytest.mark.parametrize(
    ("before", "named"),
    [
        ([events.Finished("ps0", 0)], "rank 3 (ps) was lost just before (its server has returned)"),
        (
            [events.Failed("worker0", 0, FAILED, outside=True), events.Failed("ps0", 0, ENDED, outside=True)],
            "rank 3 (ps) was lost just before (its node died)",
        ),
        (
            [events.Failed("worker1", 0, ENDED, outside=True), events.Failed("worker0", 0, FAILED, outside=True)],
            "rank 1 (worker) was lost just before (signal 9 (SIGKILL))",
        ),
    ],
    ids=["returned server", "parameter server before worker", "first of two workers by rank"],
)
def test_secondary_error_of_the_chief_names_one_server_and_the_remedy(before: list[events.Event], named: str) -> None:
    machine = running()
    for event in before:
        machine.handle(event, 3.0)
    assert conclusion(machine, machine.handle(SECONDARY_ERROR, 3.1)) == events.ConcludeRun(
        Phase.FAILED,
        "worker",
        f"UnavailableError; {named}, from which a loop of one's own has to recover: hopsml.tensorflow.ServerLoop does",
        "chief",
        0,
    )


def test_secondary_error_of_the_chief_is_explained_by_a_later_agent_loss() -> None:
    machine = running()
    assert machine.handle(SECONDARY_ERROR, 3.0) == []
    found = conclusion(machine, machine.handle(events.MemberLost("ps0", ENDED), 3.2))
    assert found.reason.startswith(f"UnavailableError; rank 3 (ps) was lost just before ({ENDED})")


def test_server_that_ends_without_a_known_cause_is_restarted() -> None:
    machine = running()
    text = "rank 3 (ps) was lost ({}); it is started again at its address"
    assert fail_worker(machine, "ps0", 3.0)[0] == events.Note(text.format(FAILED))
    machine.handle(events.Started("ps0", 1), 4.0)
    assert machine.handle(events.Closed("ps0", 1), 5.0) == [
        events.Note(text.format("its process ended")),
        events.StartGeneration(2, ("ps0",)),
    ]


@pytest.mark.parametrize(("started_at", "died_at"), [(10.0, 39.9), (None, 99.0)], ids=["too short", "never started"])
def test_server_that_fails_twice_without_a_steady_time_ends_the_run(started_at: float | None, died_at: float) -> None:
    machine = running(fruitless_limit=2, steady_s=30)
    fail_worker(machine, "ps0", 3.0)
    if started_at is not None:
        machine.handle(events.Started("ps0", 1), started_at)
    found = conclusion(machine, fail_worker(machine, "ps0", died_at))
    assert (found.agent_id, found.rank) == ("ps0", 3)
    assert found.reason == (
        f"rank 3 (ps) was lost: 2 times in a row, the last of: {FAILED}; "
        "experiment.resume continues from its last checkpoint"
    )


def test_stopped_process_is_noted_again_after_a_restart() -> None:
    machine = running(stopped_s=5)
    machine.handle(events.Stepped("ps0", 0, -1, stopped=True), 3.0)
    fail_worker(machine, "ps0", 4.0)
    machine.handle(events.Started("ps0", 1), 5.0)
    assert of_kind(machine.handle(events.Stepped("ps0", 1, -1, stopped=True), 6.0), events.Note)
    assert machine.handle(events.Tick(), 10.9) == []
    assert machine.handle(events.Tick(), 11.0) == [events.StopWorkers(1, ("ps0",), 0.0, 0.0, keep=True)]


def test_loss_without_consequences_is_not_noted() -> None:
    machine = running(fruitless_limit=1)
    assert machine.handle(events.MemberLost("stranger", ENDED), 3.0) == []
    fail_worker(machine, "worker1", 3.0)
    assert machine.handle(events.MemberLost("worker1", ENDED), 3.1) == [], "it was given up before"
    machine.handle(events.Finished("evaluator", 0), 4.0)
    machine.handle(events.Closed("evaluator", 0), 4.0)
    assert machine.handle(events.MemberLost("evaluator", ENDED), 4.1) == [], "it had come to its end"
    machine.handle(events.Finished("chief", 0), 5.0)
    assert machine.handle(events.MemberLost("worker0", ENDED), 5.1) == [], "the run ends"
    assert machine.handle(events.MemberLost("ps0", ENDED), 5.1) == []
    assert machine.handle(events.MemberLost("ps0", ENDED), 5.2) == [], "it was told before"


def test_run_of_three_workers_continues_with_two() -> None:
    machine = ServerGroupMachine(ServerGroup(size=4))
    machine.begin(0.0)
    machine.handle(events.Granted(("chief", "w0", "w1", "w2")), 1.0)
    (note,) = machine.handle(events.MemberLost("w1", ENDED), 2.0)
    assert note == events.Note(
        f"the run continues with 2 workers: rank 2 (worker) was lost and is not restarted: {ENDED}"
    )


def test_loss_of_all_agents_is_blamed_on_the_chief_after_the_settling_time() -> None:
    machine = running(settle_s=3)
    for name in NAMES:
        machine.handle(events.MemberLost(name, ENDED), 3.0)
    assert machine.handle(events.Tick(), 5.9) == []
    (found,) = of_kind(machine.handle(events.Tick(), 6.0), events.ConcludeRun)
    assert (found.error, found.rank) == ("worker", 0) and found.reason.startswith(f"the chief was lost: {ENDED}")


@pytest.mark.parametrize(
    ("name", "who", "follows"),
    [
        ("chief", "rank 0 (chief)", "the run ends with it; experiment.resume continues from its last checkpoint"),
        ("worker1", "rank 2 (worker)", "the others go on without it"),
        ("ps0", "rank 3 (ps)", "the run ends with it; experiment.resume continues from its last checkpoint"),
        ("evaluator", "rank 4 (evaluator)", "the others go on without it"),
    ],
)
def test_drain_note_states_the_consequence_for_each_role(name: str, who: str, follows: str) -> None:
    assert running().handle(events.DrainRequested(name, "its node goes"), 3.0) == [
        events.Note(f"{who} is about to be lost (its node goes): {follows}")
    ]


def test_drain_of_an_unknown_agent_is_not_noted() -> None:
    assert running().handle(events.DrainRequested("stranger", "its node goes"), 3.0) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chief", "rank 0 (chief) is stopped (SIGSTOP); if it is not resumed within 60 s, it counts as lost"),
        ("ps0", "rank 3 (ps) is stopped (SIGSTOP); if it is not resumed within 5 s, it is replaced"),
    ],
)
def test_stopped_process_is_noted_with_its_time_limit(name: str, text: str) -> None:
    machine = running(stopped_s=5, chief_stopped_s=60)
    assert machine.handle(events.Stepped(name, 0, -1, stopped=True), 3.0) == [events.Note(f"the process of {text}")]


def test_stopped_server_is_replaced_after_a_lower_rank_was_lost() -> None:
    machine = running(stopped_s=5, chief_stopped_s=60)
    machine.handle(events.MemberLost("worker0", ENDED), 3.0)
    machine.handle(events.Stepped("ps0", 0, -1, stopped=True), 3.0)
    assert machine.handle(events.Tick(), 8.0) == [events.StopWorkers(0, ("ps0",), 0.0, 0.0, keep=True)]


def test_agent_that_does_not_restart_its_worker_is_dropped_once_per_timeout() -> None:
    machine = running(start_timeout_s=10)
    fail_worker(machine, "worker0", 3.0)
    assert of_kind(machine.handle(events.Tick(), 13.5), events.DropAgents)
    assert machine.handle(events.Tick(), 23.5) == []
    assert of_kind(machine.handle(events.Tick(), 23.6), events.DropAgents)


# ------------------------------------------------------------------------------------------ any sequence of events

KINDS = (
    "started",
    "finished",
    "failed",
    "killed",
    "echo",
    "closed",
    "stopped",
    "goes on",
    "lost",
    "drain",
    "tick",
    "cancel",
)
MOVES = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES), st.integers(0, 2)), max_size=60)


def event_of(machine: ServerGroupMachine, kind: str, name: str, behind: int) -> events.Event:
    number = machine.members[name].generation - (behind == 2)  # sometimes a late event of an earlier start
    return {
        "started": events.Started(name, number),
        "finished": events.Finished(name, number),
        "failed": events.Failed(name, number, "KeyError", raised=True),
        "killed": events.Failed(name, number, FAILED, outside=True),
        "echo": events.Failed(name, number, "UnavailableError", secondary=True),
        "closed": events.Closed(name, number),
        "stopped": events.Stepped(name, number, -1, stopped=True),
        "goes on": events.Stepped(name, number, -1),
        "lost": events.MemberLost(name, ENDED),
        "drain": events.DrainRequested(name, ENDED),
        "tick": events.Tick(),
        "cancel": events.CancelRequested("enough"),
    }[kind]


@settings(max_examples=300)
@given(MOVES)
def test_no_member_runs_twice_and_every_event_sequence_ends(moves: list[tuple[str, str, int]]) -> None:
    machine = granted()
    alive, now, newest, outcome = dict.fromkeys(NAMES, True), 1.0, 0, []
    for kind, name, behind in [*moves, *([("tick", "chief", 0)] * 40)]:
        now += 40.0 if kind == "tick" else 0.5
        event = event_of(machine, kind, name, behind)
        if isinstance(event, events.OfWorker) and event.generation != machine.members[name].generation:
            assert machine.handle(event, now) == []
            continue
        if kind in ("closed", "lost"):
            alive[name] = False
        final = machine.phase.is_final
        actions = machine.handle(event, now)
        assert not (final and actions)
        for action in actions:
            if isinstance(action, events.StartGeneration):
                (again,) = action.agent_ids
                assert not alive[again] and action.generation > newest
                assert not machine.members[again].lost, "started again on an agent that is gone"
                alive[again], newest = True, action.generation
        outcome += of_kind(actions, events.ConcludeRun)
        assert machine.phase.is_final or machine.phase is Phase.RUNNING or machine.deadline is not None
    assert len(outcome) == int(machine.phase.is_final)
    assert machine.phase.is_final or machine.phase is Phase.RUNNING
