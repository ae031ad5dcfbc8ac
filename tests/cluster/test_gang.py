"""The gang: its rules one by one, then its invariants over random sequences of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster import gang
from hopsml.cluster.gang import Gang, GangSpec, Phase

pytestmark = pytest.mark.fast

SPEC = GangSpec("run", size=2, start_timeout_s=10, settle_s=1, grace_s=2, flush_s=5, failed_flush_s=1)
NAMES = ("a", "b")


def granted(spec: GangSpec = SPEC) -> Gang:
    machine = Gang(spec)
    machine.begin(0.0)
    machine.handle(gang.Granted(NAMES[: spec.size]), 1.0)
    return machine


def running() -> Gang:
    machine = granted()
    for name in NAMES:
        machine.handle(gang.Started(name, 0), 2.0)
    return machine


def conclusion(actions: list[gang.Action]) -> gang.Conclude:
    (found,) = [action for action in actions if isinstance(action, gang.Conclude)]
    return found


def test_ranks_follow_the_order_of_the_grant():
    machine = Gang(SPEC)
    assert machine.begin(0.0) == [gang.AskAgents(2, 2)]
    assert machine.handle(gang.Granted(("x", "y")), 1.0) == [gang.StartGeneration(0, ("x", "y"))]
    assert [machine.rank(name) for name in ("x", "y", "stranger")] == [0, 1, -1]


def test_a_run_finishes_when_all_have_finished_and_closed():
    machine = running()
    assert machine.phase is Phase.RUNNING
    machine.handle(gang.Finished("a", 0), 3.0)
    machine.handle(gang.Closed("a", 0), 3.1)
    assert machine.phase is Phase.RUNNING
    machine.handle(gang.Finished("b", 0), 4.0)
    actions = machine.handle(gang.Closed("b", 0), 4.1)
    assert actions == [gang.ReturnAgents(NAMES), gang.Conclude(Phase.FINISHED)]
    assert machine.handle(gang.Tick(), 1e9) == []


def test_the_start_deadline_names_the_ranks_that_have_not_begun():
    machine = granted()
    machine.handle(gang.Started("a", 0), 2.0)
    assert machine.handle(gang.Tick(), 9.9) == []
    (stop,) = machine.handle(gang.Tick(), 10.0)
    assert stop == gang.StopWorkers(0, NAMES, 2, 1)
    machine.handle(gang.Closed("a", 0), 10.1)
    outcome = conclusion(machine.handle(gang.Closed("b", 0), 10.2))
    assert (outcome.error, outcome.missing) == ("start", ((1, "not started"),))


def test_the_start_deadline_without_any_agent_ends_at_once():
    machine = Gang(SPEC)
    machine.begin(0.0)
    outcome = conclusion(machine.handle(gang.Tick(), 10.0))
    assert outcome.error == "start" and [rank for rank, _ in outcome.missing] == [0, 1]


def test_an_echo_waits_for_the_failure_it_echoes():
    machine = running()
    assert machine.handle(gang.Failed("a", 0, "UnavailableError", secondary=True), 3.0) == []
    machine.handle(gang.Failed("b", 0, "ValueError: bad batch"), 3.2)
    machine.handle(gang.Closed("a", 0), 3.3)
    outcome = conclusion(machine.handle(gang.Closed("b", 0), 3.4))
    assert (outcome.rank, outcome.reason) == (1, "ValueError: bad batch")


def test_an_echo_without_another_failure_is_the_failure():
    machine = running()
    machine.handle(gang.Failed("a", 0, "UnavailableError", secondary=True), 3.0)
    assert machine.handle(gang.Tick(), 3.9) == []
    (stop,) = machine.handle(gang.Tick(), 4.0)
    assert isinstance(stop, gang.StopWorkers)
    machine.handle(gang.Closed("a", 0), 4.1)
    outcome = conclusion(machine.handle(gang.Closed("b", 0), 4.2))
    assert (outcome.rank, outcome.reason) == (0, "UnavailableError")


def test_the_first_failure_stands_when_more_follow():
    machine = running()
    machine.handle(gang.Failed("b", 0, "first"), 3.0)
    machine.handle(gang.Failed("a", 0, "second"), 3.1)
    machine.handle(gang.Closed("a", 0), 3.2)
    assert conclusion(machine.handle(gang.Closed("b", 0), 3.3)).reason == "first"


def test_a_lost_agent_ends_the_run_and_is_not_waited_for():
    machine = running()
    (stop,) = machine.handle(gang.MemberLost("b", "gone"), 3.0)
    assert stop == gang.StopWorkers(0, ("a",), 2, 1)
    actions = machine.handle(gang.Closed("a", 0), 3.1)
    assert gang.ReturnAgents(("a",)) in actions
    assert (conclusion(actions).rank, conclusion(actions).reason) == (1, "gone")


def test_an_agent_lost_after_its_worker_closed_does_not_fail_a_finished_run():
    machine = running()
    for name in NAMES:
        machine.handle(gang.Finished(name, 0), 3.0)
    machine.handle(gang.Closed("a", 0), 3.1)
    machine.handle(gang.MemberLost("a", "gone"), 3.2)
    assert conclusion(machine.handle(gang.Closed("b", 0), 3.3)).phase is Phase.FINISHED


def test_agents_that_never_report_the_end_are_dropped_at_the_deadline():
    machine = running()
    machine.handle(gang.CancelAsked("the user"), 3.0)
    assert machine.handle(gang.Tick(), 7.9) == []
    actions = machine.handle(gang.Tick(), 8.0)
    assert isinstance(actions[0], gang.DropAgents) and actions[0].agent_ids == NAMES
    assert conclusion(actions).phase is Phase.CANCELLED


def test_events_of_another_generation_change_nothing():
    machine = running()
    assert machine.handle(gang.Failed("a", 1, "from the future"), 3.0) == []
    assert machine.phase is Phase.RUNNING


def test_agents_granted_to_a_run_that_is_over_its_waiting_go_back():
    machine = running()
    assert machine.handle(gang.Granted(("c",)), 3.0) == [gang.ReturnAgents(("c",))]


agents = st.sampled_from(["a", "b", "c", "stranger"])
generations = st.integers(0, 1)
events = st.one_of(
    st.just(gang.Granted(("a", "b", "c"))),
    st.builds(gang.Refused, st.just("no")),
    st.builds(gang.MemberLost, agents, st.just("gone")),
    st.builds(gang.Started, agents, generations),
    st.builds(gang.Finished, agents, generations),
    st.builds(gang.Failed, agents, generations, st.just("bad"), st.booleans()),
    st.builds(gang.Closed, agents, generations),
    st.builds(gang.CancelAsked, st.just("stop")),
    st.just(gang.Tick()),
)
sequences = st.lists(st.tuples(events, st.floats(0, 5)), max_size=40)


def play(sequence: list[tuple[gang.Event, float]]) -> tuple[Gang, list[list[gang.Action]]]:
    machine, now = Gang(GangSpec("run", size=3, start_timeout_s=10)), 0.0
    history = [machine.begin(now)]
    for event, pause in sequence:
        now += pause
        history.append(machine.handle(event, now))
    return machine, history


@given(sequences)
@settings(max_examples=150, deadline=None)
def test_every_sequence_ends_or_has_a_deadline_or_runs(sequence):
    machine, history = play(sequence)
    actions = [action for step in history for action in step]
    concluded = [action for action in actions if isinstance(action, gang.Conclude)]
    assert len(concluded) <= 1, "a run is concluded once"
    assert bool(concluded) == machine.phase.is_final
    if concluded:
        assert concluded[0].phase is Phase.FINISHED or (concluded[0].error and concluded[0].reason), "a named cause"
    if not machine.phase.is_final and machine.phase is not Phase.RUNNING:
        assert machine.deadline is not None
    starts = [action for action in actions if isinstance(action, gang.StartGeneration)]
    assert len(starts) <= 1, "one generation, all members at once"
    assert all(len(set(start.agent_ids)) == 3 for start in starts)


@given(sequences)
@settings(max_examples=100, deadline=None)
def test_time_alone_ends_whatever_is_not_running(sequence):
    machine, _ = play(sequence)
    if machine.phase is not Phase.RUNNING:
        for minute in range(1, 30):
            machine.handle(gang.Tick(), 1e6 + 60.0 * minute)
        assert machine.phase.is_final


@given(sequences)
@settings(max_examples=60, deadline=None)
def test_the_same_events_give_the_same_actions(sequence):
    assert play(sequence)[1] == play(sequence)[1]


@given(sequences)
@settings(max_examples=100, deadline=None)
def test_every_agent_that_was_granted_and_lives_is_given_back_at_the_end(sequence):
    machine, history = play(sequence)
    actions = [action for step in history for action in step]
    if machine.phase.is_final and any(isinstance(action, gang.StartGeneration) for action in actions):
        returned = {a for action in actions if isinstance(action, gang.ReturnAgents) for a in action.agent_ids}
        dropped = {a for action in actions if isinstance(action, gang.DropAgents) for a in action.agent_ids}
        lost = {agent for agent, member in machine.members.items() if member.lost}
        assert set(machine.members) == (returned & set(machine.members)) | dropped | lost
