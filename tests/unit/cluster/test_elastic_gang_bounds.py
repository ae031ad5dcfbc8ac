"""Tests of elastic groups at their limits: first and last moments, minimum sizes, step 0, and messages."""

from __future__ import annotations

import pytest

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.generations import END_S
from hopsml.cluster.gang.elastic.health import UNCOMMITTED_S
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.events import ConcludeRun, Phase
from hopsml.cluster.gang.pace import AT_ONCE_S
from tests.unit.cluster.elastic_group import (
    close,
    grant,
    grown_group,
    of_kind,
    report_commit,
    report_pause,
    report_start,
    report_storage_failure,
    request_drain,
    restarting_group,
    running,
    spec,
)

pytestmark = pytest.mark.fast

KILLED = "killed by signal 9"
CRASHED = "killed by signal 11"


def notes(actions: list[events.Action]) -> list[str]:
    return [one.text for one in of_kind(actions, events.Note)]


def kill(machine: ElasticGroupMachine, name: str, now: float = 4.0) -> list[events.Action]:
    """Kill the worker from outside, and end the generation's other workers."""
    actions = machine.handle(events.Failed(name, machine.generation, KILLED, outside=True), now)
    return actions + close(machine, *machine.members, now=now)


def only_start(actions: list[events.Action]) -> events.StartGeneration:
    """The one generation that begins with these actions."""
    (start,) = of_kind(actions, events.StartGeneration)
    assert isinstance(start, events.StartGeneration)
    return start


# ---------------------------------------------------------------------------------------------------- who takes part


def test_run_with_too_few_agents_fails_at_the_start_timeout() -> None:
    machine = restarting_group(spec(size=4, min_size=3))
    machine.begin(0.0)
    grant(machine, "a")
    assert machine.handle(events.Tick(), 9.9) == []
    missing = ((1, "no agent"), (2, "no agent"))
    reason = "1 of at least 3 workers had connected after 10 s"
    assert machine.handle(events.Tick(), 10.0) == [
        events.RequestAgents(0, 0),
        events.ReturnAgents(("a",)),
        events.ReturnAgents(()),
        ConcludeRun(Phase.FAILED, "start", reason, missing=missing),
    ]


def test_waiting_group_counts_only_its_own_agents() -> None:
    machine = restarting_group(spec(size=4, min_size=3))
    machine.begin(0.0)
    grant(machine, "a", "b")
    assert machine.agent_counts(5) == (2, "at least 3")


def test_group_that_remains_too_small_fails_with_the_cause_of_the_last_generation() -> None:
    machine = running("a", "b")
    machine.handle(events.MemberLost("b", "its executor died"), 3.0)
    close(machine, "a", now=3.0)
    assert machine.handle(events.Tick(), 22.9) == []
    reason = (
        "1 of at least 2 workers were left for 20 s (min_workers_timeout); what ended the last generation: rank 1: "
        "its executor died"
    )
    (outcome,) = of_kind(machine.handle(events.Tick(), 23.0), ConcludeRun)
    assert outcome == ConcludeRun(Phase.FAILED, "minimum", reason, missing=((1, "no agent"),))


def test_granted_agent_without_details_is_not_ready_and_counts_as_its_own_host() -> None:
    machine = running("a", "b")
    assert machine.handle(events.Granted(("c", "d")), 3.0) == []
    assert machine.membership.spares == {"c": False, "d": False}
    assert machine.membership.hosts == {"a": "host-a", "b": "host-b", "c": "c", "d": "d"}


@pytest.mark.parametrize("facts", [{"hosts": ("one",)}, {"ready": (True, True, True)}])
def test_grant_with_fewer_hosts_or_states_than_agents_is_an_error(facts: dict[str, tuple[str | bool, ...]]) -> None:
    with pytest.raises(ValueError, match="zip"):
        running("a", "b").handle(events.Granted(("c", "d"), **facts), 3.0)  # type: ignore[arg-type]


def test_first_generation_takes_all_agents_and_later_ones_take_ready_agents() -> None:
    machine = restarting_group(spec(size=3))
    machine.begin(0.0)
    grant(machine, "a", "b")
    assert only_start(grant(machine, "c", ready=False)).agent_ids == ("a", "b", "c")
    enough = running("a", "b", size=4)
    grant(enough, "c", now=3.0, ready=False)
    assert only_start(kill(enough, "a")).agent_ids == ("a", "b") and enough.membership.spares == {"c": False}
    too_few = running("a", "b", size=4)
    grant(too_few, "c", now=3.0, ready=False)
    too_few.handle(events.MemberLost("b", "gone"), 4.0)
    assert set(only_start(close(too_few, "a", now=4.0)).agent_ids) == {"a", "c"}


def test_holder_of_the_state_takes_part_and_surplus_agent_is_returned() -> None:
    machine = running("a", "b", size=2)
    report_commit(machine, 0, "b")
    grant(machine, "c", now=3.0)
    assert kill(machine, "a")[1:] == [
        events.Note(f"generation 0 ended at step 0: rank 0: {KILLED}"),
        events.ReturnAgents(("a",)),
        events.StartGeneration(1, ("b", "c"), 0, ("b",), f"rank 0: {KILLED}"),
    ]
    assert machine.membership.spares == {} and machine.commits.newest_of == {"b": 0}


def test_surplus_spares_are_returned_after_a_resize() -> None:
    machine = running("a", "b", "c", size=4)
    grant(machine, "d", "e", now=3.0, ready=False)
    assert machine.handle(events.ResizeRequested(3), 4.0) == [
        events.RequestAgents(0, 3),
        events.ReturnAgents(("d", "e")),
    ]
    assert machine.membership.spares == {}
    assert machine.handle(events.ResizeRequested(3), 5.0) == [events.RequestAgents(0, 3)]
    smaller = running("a", "b", size=4)
    grant(smaller, "c", now=3.0, ready=False)
    assert smaller.handle(events.ResizeRequested(3), 4.0) == [events.RequestAgents(0, 3)]  # c is still to be admitted


def test_spares_are_retained_while_a_generation_ends() -> None:
    machine = running("a", "b", "c")
    grant(machine, "d", now=3.0)
    machine.handle(events.Failed("a", 0, KILLED, outside=True), 4.0)
    assert machine.phase is Phase.REFORMING
    assert machine.handle(events.ResizeRequested(3), 4.1) == [events.RequestAgents(0, 3)]


@pytest.mark.parametrize(("members", "newcomers", "joined"), [("ab", "c", 1), ("ab", "cd", 1), ("abc", "d", 0)])
def test_newcomers_are_admitted_up_to_the_size_of_the_group(members: str, newcomers: str, joined: int) -> None:
    machine = running(*members)
    pause = events.PauseWorkersAtCommit(0, tuple(members), f"{joined} more joined")
    assert grant(machine, *newcomers, now=3.0) == ([pause] if joined else [])


def test_newcomers_are_admitted_once_and_only_after_all_members_have_started() -> None:
    machine = restarting_group(spec(size=4))
    machine.begin(0.0)
    grant(machine, "a", "b")
    machine.handle(events.Tick(), 1.0)
    assert machine.phase is Phase.FORMING
    assert grant(machine, "c", now=1.1) == report_start(machine, "a", now=1.2) == []
    assert report_start(machine, "b", now=1.3) == [events.PauseWorkersAtCommit(0, ("a", "b"), "1 more joined")]
    assert grant(machine, "d", now=1.4) == []


def test_ranks_follow_from_the_layout() -> None:
    machine = running("a", "b")
    assert machine.handle(events.Ranked(("b", "a")), 3.0) == []
    assert [machine.rank(name) for name in ("a", "b", "stranger")] == [1, 0, -1]


def test_failed_newcomer_is_used_if_the_minimum_requires_it() -> None:
    machine = grown_group(reset_limit=None, fruitless_limit=2)
    assert only_start(kill(machine, "c", now=5.0)).agent_ids == ("a", "b")
    machine.handle(events.MemberLost("b", "gone"), 6.0)
    assert set(only_start(close(machine, "a", now=6.0)).agent_ids) == {"a", "c"}


def test_agents_that_do_not_start_in_time_are_dropped_and_the_others_continue() -> None:
    machine = running("a", "b", "c")
    kill(machine, "a", now=4.0)
    report_start(machine, "a", "c", now=5.0)
    assert machine.handle(events.Tick(), 13.9) == []
    drop, stop = machine.handle(events.Tick(), 14.0)
    assert drop == events.DropAgents(("b",), "did not start its worker within 10 s")
    assert stop == events.StopWorkers(1, ("a", "c"), 0.0, 0.0, keep=True)
    start = only_start(close(machine, "a", "c", now=14.1))
    assert start.agent_ids == ("a", "c") and start.why == "rank 1: the agent did not start its worker within 10 s"


# ---------------------------------------------------------------------------------------------------- commits


@pytest.mark.parametrize("step", [0, 1, 20])
def test_newest_commit_counts_from_step_zero_on(step: int) -> None:
    machine = running("a", "b", "c")
    report_commit(machine, step, "b")
    machine.handle(events.CommitPersisted("b", step), 3.5)  # and is not read from the store
    machine.handle(events.MemberLost("c", "its executor died"), 4.0)
    assert close(machine, "a", "b") == [
        events.Note(f"generation 0 ended at step {step}: rank 2: its executor died"),
        events.StartGeneration(1, ("b", "a"), step, ("b",), "rank 2: its executor died"),
    ]


@pytest.mark.parametrize("step", [0, 4])
def test_note_about_a_lost_commit_names_the_step_that_training_continues_from(step: int) -> None:
    machine = running("a", "b", "c")
    report_commit(machine, step, "a", "b")
    report_commit(machine, 9, "c")
    machine.handle(events.MemberLost("c", "gone"), 4.0)
    lost = "the commit of step 9 is lost with the agents that held it: the training continues from step"
    assert notes(close(machine, "a", "b"))[1:] == [f"{lost} {step}"]


def test_run_without_any_commit_or_checkpoint_restarts_with_a_note() -> None:
    machine = running("a", "b")
    report_commit(machine, 9, "a", "b")
    actions = [one for name in "ab" for one in machine.handle(events.MemberLost(name, "gone"), 4.0)]
    assert notes(actions) == [
        "generation 0 ended after step 9 or later; no agent holds a commit, so the newest checkpoint counts: rank 0: gone"
    ]
    again = grant(machine, "c", "d", "e", now=9.0)
    assert again == [
        events.Note(
            "the commit of step 9 is lost with the agents that held it: the training restarts at this run's start, "
            "since there is no checkpoint either"
        ),
        events.StartGeneration(1, ("c", "d", "e"), why="rank 0: gone"),
    ]


def test_checkpoint_is_used_if_no_agent_holds_a_commit() -> None:
    machine = running("a", "b")
    report_commit(machine, 4, "a", "b")
    machine.handle(events.CommitPersisted("a", 4), 3.5)
    actions = [one for name in "ab" for one in machine.handle(events.MemberLost(name, "gone"), 4.0)]
    assert notes(actions) == ["generation 0 ended at step 4: rank 0: gone"]
    assert grant(machine, "c", "d", "e", now=9.0) == [
        events.StartGeneration(1, ("c", "d", "e"), why="rank 0: gone", stored=4)
    ]


@pytest.mark.parametrize("step", [0, 1])
def test_note_distinguishes_the_last_step_and_the_commit_to_continue_from(step: int) -> None:
    machine = running("a", "b")
    report_commit(machine, step, "a", "b")
    machine.handle(events.Stepped("b", 0, 17), 3.5)
    continues = f"continues from the commit of step {step}"
    assert notes(kill(machine, "a"))[0] == f"generation 0 ended after step 17 or later; {continues}: rank 0: {KILLED}"


@pytest.mark.parametrize("step", [0, 1])
def test_note_names_the_older_checkpoint_if_no_agent_holds_a_commit(step: int) -> None:
    machine = running("a", "b")
    report_commit(machine, 9, "a", "b")
    machine.handle(events.CommitPersisted("a", step), 3.5)
    actions = [one for name in "ab" for one in machine.handle(events.MemberLost(name, "gone"), 4.0)]
    continues = f"continues from the checkpoint of step {step}"
    assert notes(actions) == [f"generation 0 ended after step 9 or later; {continues}: rank 0: gone"]


@pytest.mark.parametrize(("step", "reached"), [(-1, ""), (0, ""), (1, " after step 1 or later")])
def test_generation_without_a_commit_restarts_at_the_runs_start(step: int, reached: str) -> None:
    machine = running("a", "b")
    machine.handle(events.Stepped("b", 0, step), 3.5)
    again = f"generation 0 ended{reached}; nothing was committed, so the training restarts at this run's start: rank 0"
    assert notes(kill(machine, "a"))[0].startswith(again)


def test_lost_commit_of_a_paused_member_is_noted_as_lost() -> None:
    machine = running("a", "b")
    grant(machine, "c", now=3.0)
    report_pause(machine, 7, "a", now=4.0)
    machine.handle(events.MemberLost("a", "gone"), 4.1)
    assert notes(close(machine, "b")) == [
        "generation 0 ended after step 7 or later; no agent holds a commit, so the newest checkpoint counts: rank 0: gone",
        "the commit of step 7 is lost with the agents that held it: the training restarts at this run's start, since there "
        "is no checkpoint either",
    ]


def test_training_without_a_commit_is_noted_once() -> None:
    machine = running("a", "b", "c")
    assert notes(machine.handle(events.Tick(), 2.0 + UNCOMMITTED_S - 0.1)) == []
    (note,) = notes(machine.handle(events.Tick(), 2.0 + UNCOMMITTED_S))
    assert "nothing was committed" in note and "hopsml.tensorflow.callbacks()" in note
    assert machine.handle(events.Tick(), 3.0 + UNCOMMITTED_S) == []
    report_start(machine, "a", now=4.0 + UNCOMMITTED_S)  # reported again
    assert machine.handle(events.Tick(), 4.0 + 2 * UNCOMMITTED_S) == []
    waiting = running("a", "b")
    grant(waiting, "c", now=3.0)
    assert waiting.phase is Phase.PARKING, "until a commit that never comes"
    assert len(notes(waiting.handle(events.Tick(), 2.0 + UNCOMMITTED_S))) == 1
    honest = running("a", "b", "c")
    report_commit(honest, 1, "a")
    assert honest.handle(events.Tick(), 2.0 + UNCOMMITTED_S) == []
    evaluator = running("a", "b", "c", commits=False)
    assert evaluator.handle(events.Tick(), 2.0 + UNCOMMITTED_S) == []


def test_time_without_a_commit_counts_from_the_start_of_all_workers() -> None:
    machine = restarting_group(spec(size=2))
    machine.begin(0.0)
    grant(machine, "a", "b")
    assert report_start(machine, "a", now=2.0) == report_start(machine, "b", now=9.0) == []
    assert machine.handle(events.Tick(), 8.9 + UNCOMMITTED_S) == []
    assert len(notes(machine.handle(events.Tick(), 9.0 + UNCOMMITTED_S))) == 1


def test_late_report_of_an_older_commit_changes_nothing() -> None:
    machine = running("a", "b", "c")
    report_commit(machine, 20, "a")
    report_commit(machine, 10, "a")
    machine.handle(events.MemberLost("c", "gone"), 4.0)
    start = only_start(close(machine, "a", "b"))
    assert (start.step, start.holders) == (20, ("a",))


def test_commit_that_a_generation_started_from_is_not_progress() -> None:
    machine = running("a", "b", fruitless_limit=2)
    report_commit(machine, 5, "a", "b")
    kill(machine, "a")
    kill(machine, "a")
    assert machine.policy.fruitless == 1
    report_commit(machine, 5, "a", "b")
    (outcome,) = of_kind(kill(machine, "a"), ConcludeRun)
    assert outcome.reason == f"{KILLED} (2 generations in a row ended without a new commit)"
    other = running("a", "b", fruitless_limit=2)
    report_commit(other, 5, "a", "b")
    kill(other, "a")
    kill(other, "a")
    report_commit(other, 6, "a", "b")
    assert other.policy.fruitless == 0 and not of_kind(kill(other, "a"), ConcludeRun)


@pytest.mark.parametrize("how", [events.WorkerCommitted, events.PausedAtCommit])
@pytest.mark.parametrize(("step", "proves"), [(7, False), (8, True)])
def test_newcomers_count_as_members_from_the_first_new_commit_on(how: type, step: int, proves: bool) -> None:
    machine = grown_group(size=4)
    grant(machine, "d", now=4.6)
    assert machine.phase is Phase.PARKING
    machine.handle(how("b", 1, step), 5.0)
    machine.handle(events.Failed("c", 1, KILLED, outside=True), 5.1)
    assert bool(of_kind(close(machine, "a", "b", "c", now=5.2), ConcludeRun)) == proves


def test_pause_at_a_commit_counts_only_if_it_was_requested() -> None:
    machine = running("a", "b")
    assert report_pause(machine, 7, "a", now=3.0) == [] and machine.commits.newest_of == {"a": -1, "b": -1}
    grant(machine, "c", now=3.0)
    assert report_commit(machine, 6, "a", "b", now=3.1) == []  # no member is paused yet
    assert report_pause(machine, 9, "stranger", now=3.2) == [] and machine.commits.parked is None


def test_members_without_the_paused_commit_are_waited_for_up_to_agree_s() -> None:
    machine = running("a", "b")
    grant(machine, "c", now=3.0)
    assert report_pause(machine, 0, "a", now=4.0) == []  # b has no commit
    assert machine.handle(events.Tick(), 4.0 + spec().agree_s - 0.01) == []
    (stop,) = machine.handle(events.Tick(), 4.0 + spec().agree_s)
    assert stop == events.StopWorkers(0, ("a", "b"), 0.0, 0.0, keep=True)


# ---------------------------------------------------------------------------------------------------- nodes that go away


def test_draining_member_is_noted_and_an_unknown_agent_is_not() -> None:
    machine = running("a", "b")
    assert request_drain(machine, "b", time_s=40.0) == [events.Note("rank 1 is about to leave (its node goes)")]
    assert request_drain(machine, "stranger", time_s=40.0) == []


def test_unneeded_spare_is_returned_at_its_warning() -> None:
    machine = running("a", "b")
    grant(machine, "c", now=2.5, ready=False)
    assert request_drain(machine, "c", time_s=40.0) == [events.ReturnAgents(("c",), "its node goes")]
    waiting = restarting_group(spec())
    waiting.begin(0.0)
    grant(waiting, "a")
    assert request_drain(waiting, "a", time_s=40.0) == [
        events.ReturnAgents(("a",), "its node goes")
    ]  # no agent holds a commit
    for one in (machine, waiting):
        assert not one.membership.leaving and not one.commits.drains.warned, "it is remembered"


@pytest.mark.parametrize("step", [0, 1])
def test_draining_holders_wait_for_the_store_from_step_zero_on(step: int) -> None:
    machine = running("a", "b", size=2)
    request_drain(machine, "a", "b", time_s=AT_ONCE_S)
    actions = report_pause(machine, step, "a", "b", now=4.0)
    actions += close(machine, "a", "b", now=4.1)
    assert of_kind(actions, events.PersistCommit) == [events.PersistCommit("a")]
    assert not of_kind(actions, events.ReturnAgents)


def test_slow_checkpoint_makes_draining_members_pause_earlier() -> None:
    machine = running("a", "b", size=2)
    report_commit(machine, 4, "a", "b")
    machine.handle(events.CommitPersisted("a", 4, seconds=8.0), 3.0)
    request_drain(machine, "b", time_s=40.0)
    assert machine.handle(events.Tick(), 26.9) == []
    assert of_kind(machine.handle(events.Tick(), 27.0), events.PauseWorkersAtCommit)


def waiting_for_a_third(step: int = 5) -> ElasticGroupMachine:
    """Three must be there; a, which alone has a commit, waits with d for a third."""
    machine = running("a", "b", "c", min_size=3)
    report_commit(machine, step, "a")
    for name in "bc":
        machine.handle(events.MemberLost(name, "gone"), 4.0)
    close(machine, "a", now=4.0)
    grant(machine, "d", now=5.0)
    assert machine.phase is Phase.WAITING
    return machine


def test_sole_holder_remains_until_its_commit_is_stored_if_no_member_can_fetch_it() -> None:
    machine = waiting_for_a_third()
    assert request_drain(machine, "a", time_s=40.0, now=6.0) == [events.PersistCommit("a")]
    assert machine.handle(events.CommitPersisted("a", 5), 7.0) == [events.ReturnAgents(("a",), "its node goes")]


def test_sole_holder_remains_after_storing_while_members_fetch_its_commit() -> None:
    machine = running("a", "b", min_size=1)
    request_drain(machine, "b", time_s=AT_ONCE_S)
    report_pause(machine, 9, "b", now=3.5)
    machine.handle(events.Tick(), 3.5 + spec().agree_s)  # a was not there in time
    machine.handle(events.CommitPersisted("b", 9), 3.9)
    actions = close(machine, "a", "b", now=4.0)
    assert not of_kind(actions, events.ReturnAgents)
    start = only_start(actions)
    assert (start.agent_ids, start.step, start.holders, start.stored) == (("a",), 9, ("b",), -1)
    grant(machine, "c", now=4.1, ready=False)
    assert request_drain(machine, "c", time_s=40.0, now=4.2) == [
        events.ReturnAgents(("c",), "its node goes")
    ]  # b is read from
    machine.handle(events.MemberLost("a", "gone"), 4.3)
    assert machine.phase is Phase.WAITING and machine.membership.leaving == {}, "nobody is there who could fetch it"


def test_sole_holder_remains_if_a_generation_ends_before_members_have_fetched() -> None:
    machine = running("a", "b", "c")
    request_drain(machine, "c", time_s=AT_ONCE_S)
    report_pause(machine, 9, "c", now=3.5)
    machine.handle(events.Tick(), 3.5 + spec().agree_s)
    assert only_start(close(machine, "a", "b", "c", now=4.0)).holders == ("c",)
    machine.handle(events.Failed("a", 1, KILLED, outside=True), 4.5)
    assert machine.handle(events.CommitPersisted("c", 9), 4.6) == [] and machine.phase is Phase.REFORMING
    start = only_start(close(machine, "a", "b", now=4.7))
    assert (start.step, start.holders) == (9, ("c",))


def test_successors_are_awaited_if_all_members_that_fetched_the_state_drain() -> None:
    machine = running("a", "b", "c", min_size=1)
    request_drain(machine, "c", time_s=AT_ONCE_S)
    report_pause(machine, 9, "c", now=3.5)
    machine.handle(events.Tick(), 3.5 + spec().agree_s)
    close(machine, "a", "b", "c", now=4.0)
    request_drain(machine, "a", "b", time_s=40.0, now=4.1)
    grant(machine, "d", now=4.2, ready=False)
    assert report_start(machine, "a", "b", now=4.3) == [] and machine.phase is Phase.RUNNING
    assert machine.handle(events.Ready("d"), 4.4) == []
    assert of_kind(grant(machine, "e", now=4.5), events.PauseWorkersAtCommit)


def test_commit_that_is_stored_and_held_is_fetched_from_its_holder() -> None:
    """The store may be away."""
    machine = running("a", "b", min_size=1)
    request_drain(machine, "a", time_s=AT_ONCE_S)
    report_pause(machine, 6, "a", now=4.0)
    report_commit(machine, 6, "b", now=4.0)
    machine.handle(events.CommitPersisted("a", 6), 4.1)
    start = only_start(close(machine, "a", "b", now=4.2))
    assert (start.agent_ids, start.step, start.holders, start.stored) == (("b",), 6, ("b",), -1)


def test_ending_run_requests_no_further_checkpoint() -> None:
    machine = running("a", "b", size=2)
    report_commit(machine, 4, "a", "b")
    assert of_kind(request_drain(machine, "a", "b", time_s=40.0), events.PersistCommit) == [events.PersistCommit("a")]
    report_commit(machine, 6, "a", "b")
    assert machine.handle(events.CancelRequested("enough"), 5.0) == [
        events.RequestAgents(0, 0),
        events.StopWorkers(0, ("a", "b"), 2.0, 4.0),
    ]


# ---------------------------------------------------------------------------------------------------- who is to blame


def test_surest_failure_report_counts_while_the_generation_is_ending() -> None:
    machine = running("a", "b", "c")
    machine.handle(events.Failed("a", 0, CRASHED), 4.0)
    assert of_kind(machine.handle(events.Tick(), 5.0), events.StopWorkers)
    for _ in "twice":
        machine.handle(events.Failed("b", 0, KILLED, outside=True), 5.1)
    assert [one.cause for one in machine.failures] == [CRASHED, KILLED]
    machine.handle(events.Failed("stranger", 0, "who?", outside=True), 5.2)
    assert only_start(close(machine, "a", "b", "c", now=5.3)).why == f"rank 1: {KILLED}"


def test_failure_of_an_unknown_agent_is_ignored() -> None:
    machine = running("a", "b")
    assert machine.handle(events.Failed("stranger", 0, KILLED, outside=True), 3.0) == []
    assert machine.phase is Phase.RUNNING and not machine.failures


@pytest.mark.parametrize(("closed", "why"), [(False, "rank 1: gone"), (True, f"rank 0: {CRASHED}")])
def test_lost_agent_is_blamed_only_if_its_worker_had_not_ended(closed: bool, why: str) -> None:
    machine = running("a", "b", "c")
    machine.handle(events.Failed("a", 0, CRASHED), 4.0)
    machine.handle(events.Tick(), 5.0)
    close(machine, *("b" if closed else ""), now=5.1)
    assert machine.handle(events.MemberLost("b", "gone"), 5.2) == []
    assert only_start(close(machine, "a", "c", now=5.3)).why == why


def test_agent_lost_during_a_planned_change_is_not_a_failure() -> None:
    machine = running("a", "b", "c", reset_limit=0)
    machine.handle(events.ResizeRequested(2), 3.0)
    report_pause(machine, 5, "a", "b", "c", now=4.0)
    assert machine.phase is Phase.REFORMING
    assert machine.handle(events.MemberLost("c", "gone"), 4.1) == []
    actions = close(machine, "a", "b", now=4.2)
    assert notes(actions) == ["generation 0 ended at step 5: resized to 2 workers"]
    assert only_start(actions).why == "resized to 2 workers" and machine.policy.resets == 0


def test_agent_lost_after_its_worker_finished_stops_no_member() -> None:
    machine = running("a", "b")
    machine.handle(events.Finished("a", 0), 3.0)
    close(machine, "a", now=3.1)
    assert machine.handle(events.MemberLost("a", "gone"), 3.2) == [] and machine.phase is Phase.RUNNING


def test_agent_that_does_not_report_its_workers_end_is_named() -> None:
    machine = running("a", "b", "c")
    machine.handle(events.Failed("a", 0, CRASHED), 3.0)
    machine.handle(events.Tick(), 4.0)
    close(machine, "a", "b", now=4.1)
    assert machine.handle(events.Tick(), 3.9 + END_S) == []
    actions = machine.handle(events.Tick(), 4.0 + END_S)
    assert only_start(actions).why == "rank 2: the agent did not report its worker's end in time"


def test_stopped_process_is_named_before_members_that_are_behind() -> None:
    machine = running("a", "b", progress_timeout_s=2.0)
    machine.handle(events.Stepped("a", 0, 5), 3.0)
    machine.handle(events.Stepped("b", 0, 6, stopped=True), 3.0)
    assert machine.handle(events.Tick(), 5.0) == []
    assert of_kind(machine.handle(events.Tick(), 5.1), events.StopWorkers) == [
        events.StopWorkers(0, ("a", "b"), 0.0, 0.0, keep=True, dump=True)
    ]
    assert only_start(close(machine, "a", "b", now=5.2)).why == "rank 1: no step for 2 s; its process is stopped"


def test_hang_of_all_members_names_no_member_as_behind() -> None:
    machine = running("a", "b", progress_timeout_s=5.0)
    for name in "ab":
        machine.handle(events.Stepped(name, 0, 3), 3.0)
    machine.handle(events.Tick(), 8.1)
    assert only_start(close(machine, "a", "b", now=8.2)).why == "rank 0: no step for 5 s; no worker makes progress"


def test_age_of_a_step_counts_in_the_progress_timeout() -> None:
    machine = running("a", "b", progress_timeout_s=5.0)
    machine.handle(events.Stepped("a", 0, 3, age_s=2.0), 5.0)
    assert machine.handle(events.Tick(), 8.0) == []
    assert of_kind(machine.handle(events.Tick(), 8.1), events.StopWorkers)


def test_no_member_is_reported_slow_before_a_planned_pause() -> None:
    machine = running("a", "b", "c")
    machine.handle(events.ResizeRequested(2), 2.5)
    assert machine.phase is Phase.PARKING
    for second in range(20):
        for name, step in (("a", second), ("b", second - 1), ("c", second)):
            assert machine.handle(events.Stepped(name, 0, max(0, step)), 3.0 + second) == []


# ---------------------------------------------------------------------------------------------------- hosts and newcomers


def test_note_about_an_excluded_host_states_cooldown_and_failures() -> None:
    machine, texts = running("a", "b", min_size=1, host_failure_limit=2, host_cooldown_s=15), list[str]()
    for attempt in range(2):
        report_commit(machine, attempt, "a", "b")
        actions = kill(machine, "b", now=4.0 + attempt)
        texts += [text for text in notes(actions) if "aside" in text]
    assert texts == ["host host-b is set aside for 15 s: 2 failures"] and only_start(actions).agent_ids == ("a",)


@pytest.mark.parametrize(
    ("event", "again"),
    [
        (events.Failed("c", 1, KILLED, outside=True), "; it may try again in 60 s"),
        (events.MemberLost("c", KILLED), ""),
    ],
)
def test_note_about_a_failed_newcomer_names_its_host_and_the_time_of_the_retry(event: events.Event, again: str) -> None:
    machine = grown_group(host_failure_limit=1)
    machine.handle(event, 5.0)
    assert notes(close(machine, "a", "b", "c", now=5.1)) == [
        "a new worker on host-c failed before the first commit with it, and the group continues as before: "
        f"{KILLED}{again}",
        "host host-c is set aside for 60 s: 1 failures",
        f"generation 1 ended at step 7: rank 2: {KILLED}",
    ]


def test_fruitless_growth_is_noted() -> None:
    machine = grown_group(fruitless_limit=1, reset_limit=None)
    assert notes(kill(machine, "a", now=5.0))[0] == (
        "no generation with the new workers has committed, and the group continues as before; they may try "
        f"again later: {KILLED}"
    )


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"reset_limit": 0}, "the reset limit of 0 is reached"),
        ({"fruitless_limit": 1}, "1 generations in a row ended without a new commit"),
    ],
)
def test_end_by_a_limit_names_the_failed_member_and_the_limit(limits: dict[str, int], why: str) -> None:
    (outcome,) = of_kind(kill(running("a", "b", **limits), "b"), ConcludeRun)
    assert outcome == ConcludeRun(Phase.FAILED, "worker", f"{KILLED} ({why})", "b", 1)


# ---------------------------------------------------------------------------------------------------- the store, and the end


def test_permanent_outage_of_the_store_ends_the_run_with_the_storage_error() -> None:
    machine = running("a", "b", min_workers_timeout_s=100)
    away = "the store could not be read: nobody answers"
    texts = notes(report_storage_failure(machine, 3.0))
    assert texts[0] == f"the store cannot be used now; the run waits for it, at most 100 s: {away}"
    machine.handle(events.Tick(), 5.0)
    assert notes(report_storage_failure(machine, 102.9))[0].startswith("generation 1 ended"), "it is said once"
    machine.handle(events.Tick(), 103.0)
    (outcome,) = of_kind(report_storage_failure(machine, 103.0), ConcludeRun)
    reason = f"the store could not be used for 100 s (min_workers_timeout): {away}"
    assert outcome == ConcludeRun(Phase.FAILED, "storage", reason, "a", 0)


def test_second_outage_of_the_store_is_waited_for_like_the_first() -> None:
    machine = running("a", "b")
    report_storage_failure(machine, 3.0)
    machine.handle(events.Tick(), 5.0)
    report_commit(machine, 1, "a", "b", now=6.0)
    assert notes(report_storage_failure(machine, 7.0))[0].startswith("the store cannot be used now")
    assert machine.handle(events.Tick(), 8.9) == []
    assert of_kind(machine.handle(events.Tick(), 9.0), events.StartGeneration)


def test_generations_are_numbered_consecutively() -> None:
    machine = running("a", "b", fruitless_limit=9, host_failure_limit=9)
    for generation in range(3):
        actions = kill(machine, "a")
        assert notes(actions)[0].startswith(f"generation {generation} ended")
        assert only_start(actions).generation == generation + 1


def test_ending_run_requests_no_agents_and_returns_its_spares_first() -> None:
    machine = running("a", "b")
    grant(machine, "c", now=3.0, ready=False)
    stop = events.StopWorkers(0, ("a", "b"), 2.0, 4.0)
    assert machine.handle(events.CancelRequested("enough"), 4.0) == [
        events.RequestAgents(0, 0),
        events.ReturnAgents(("c",)),
        stop,
    ]
    assert machine.membership.spares == {}
    assert grant(machine, "d", now=4.1) == [events.ReturnAgents(("d",))]
    machine.handle(events.Closed("a", 0), 4.2)
    assert machine.handle(events.MemberLost("b", "gone"), 4.3) == [
        events.ReturnAgents(("a",)),
        ConcludeRun(Phase.CANCELLED, "cancelled", "enough"),
    ]
