"""Groups that change: the rules one by one, then the invariants over random sequences of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster import gang
from hopsml.cluster.elastic_gang import END_S, ElasticGang
from hopsml.cluster.gang import GangSpec, Phase

pytestmark = pytest.mark.fast


def spec(**other: Any) -> GangSpec:
    given: dict[str, Any] = {"size": 3, "min_size": 2, "start_timeout_s": 10, "min_workers_timeout_s": 20}
    return GangSpec("run", **{**given, **other})


def grant(machine: ElasticGang, *names: str, now: float = 0.0, ready: bool = True) -> list[gang.Action]:
    return machine.handle(gang.Granted(names, tuple(f"host-{n}" for n in names), (ready,) * len(names)), now)


def running(*names: str, **other: Any) -> ElasticGang:
    machine = ElasticGang(spec(size=max(3, len(names)), **other))
    machine.begin(0.0)
    grant(machine, *names)
    machine.handle(gang.Tick(), 1.5)
    for name in names:
        machine.handle(gang.Started(name, 0), 2.0)
    assert machine.phase is Phase.RUNNING
    return machine


def of_kind(actions: list[gang.Action], kind: type) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def close(machine: ElasticGang, *names: str, now: float = 5.0) -> list[gang.Action]:
    generation, actions = machine.generation, list[gang.Action]()
    for name in names:
        actions += machine.handle(gang.Closed(name, generation), now)
    return actions


def test_a_group_waits_a_moment_for_more_than_its_minimum():
    machine = ElasticGang(spec())
    assert machine.begin(0.0) == [gang.AskAgents(2, 3)]
    assert grant(machine, "a", "b") == []
    assert machine.handle(gang.Tick(), 0.9) == []
    assert machine.handle(gang.Tick(), 1.0) == [gang.StartGeneration(0, ("a", "b"))]


def test_a_full_group_starts_at_once():
    machine = ElasticGang(spec())
    machine.begin(0.0)
    assert grant(machine, "a", "b", "c") == [gang.StartGeneration(0, ("a", "b", "c"))]


def test_survivors_go_on_from_the_newest_commit_that_one_of_them_holds():
    machine = running("a", "b", "c")
    machine.handle(gang.Committed("a", 0, 10), 3.0)
    machine.handle(gang.Committed("b", 0, 20), 3.0)
    machine.handle(gang.Committed("c", 0, 30), 3.0)
    (stop,) = machine.handle(gang.MemberLost("c", "its executor died"), 4.0)
    assert stop == gang.StopWorkers(0, ("a", "b"), 0.0, 0.0, keep=True)
    (start,) = of_kind(close(machine, "a", "b"), gang.StartGeneration)
    assert (start.generation, start.step, start.holders) == (1, 20, ("b",))
    assert set(start.agent_ids) == {"a", "b"}


def test_a_worker_that_dies_alone_is_started_again_on_its_agent():
    machine = running("a", "b")
    machine.handle(gang.Committed("b", 0, 4), 3.0)
    machine.handle(gang.Failed("b", 0, "killed by signal 9"), 4.0)
    (start,) = of_kind(close(machine, "b", "a"), gang.StartGeneration)
    assert set(start.agent_ids) == {"a", "b"} and start.step == 4 and "signal 9" in start.why


def test_an_error_of_the_users_code_ends_the_run_even_when_its_echo_came_first():
    machine = running("a", "b")
    machine.handle(gang.Failed("a", 0, "UnavailableError", secondary=True, raised=True), 4.0)
    machine.handle(gang.Failed("b", 0, "ValueError: bad batch", raised=True), 4.1)
    (outcome,) = of_kind(close(machine, "a", "b"), gang.Conclude)
    assert (outcome.phase, outcome.rank, outcome.reason) == (Phase.FAILED, 1, "ValueError: bad batch")


def test_a_newcomer_is_taken_in_only_when_it_has_imported_everything():
    machine = running("a", "b")
    assert grant(machine, "c", now=3.0, ready=False) == []
    (park,) = machine.handle(gang.Ready("c"), 4.0)
    assert park == gang.ParkWorkers(0, ("a", "b"), "1 more joined")


def test_a_change_waits_for_the_commits_of_all_but_not_for_ever():
    machine = running("a", "b")
    grant(machine, "c", now=3.0)
    assert machine.handle(gang.Parked("a", 0, 7), 4.0) == []
    assert of_kind(machine.handle(gang.Committed("b", 0, 7), 4.1), gang.StopWorkers)
    late = running("a", "b")
    grant(late, "c", now=3.0)
    late.handle(gang.Parked("a", 0, 7), 4.0)
    assert of_kind(late.handle(gang.Tick(), 4.0 + spec().agree_s), gang.StopWorkers)
    (start,) = of_kind(close(late, "a", "b"), gang.StartGeneration)
    assert start.step == 7 and start.holders == ("a",) and len(start.agent_ids) == 3


def test_a_draining_member_leaves_and_the_group_waits_when_it_falls_below_the_minimum():
    machine = running("a", "b")
    (park,) = machine.handle(gang.DrainAsked("b", "its node is preempted"), 3.0)
    assert "preempted" in park.why
    machine.handle(gang.Parked("a", 0, 5), 3.5)
    machine.handle(gang.Committed("b", 0, 5), 3.6)
    actions = close(machine, "a", "b", now=4.0)
    assert gang.ReturnAgents(("b",), "its node is preempted") in actions
    assert machine.phase is Phase.WAITING and not of_kind(actions, gang.StartGeneration)
    (outcome,) = of_kind(machine.handle(gang.Tick(), 24.1), gang.Conclude)
    assert outcome.error == "minimum" and outcome.missing == ((1, "no agent"),)


def test_whoever_alone_holds_the_state_leaves_only_when_it_has_been_handed_over():
    machine = running("a", "b", min_size=1)
    machine.handle(gang.DrainAsked("b", "preempted"), 3.0)
    machine.handle(gang.Parked("b", 0, 9), 3.5)
    machine.handle(gang.Tick(), 3.5 + spec().agree_s)  # a was not there in time
    actions = close(machine, "a", "b", now=4.0)
    assert not of_kind(actions, gang.ReturnAgents)
    (start,) = of_kind(actions, gang.StartGeneration)
    assert start.agent_ids == ("a",) and start.step == 9 and start.holders == ("b",)
    assert machine.handle(gang.Ready("b"), 4.5) == []
    assert machine.handle(gang.Started("a", 1), 5.0) == [gang.ReturnAgents(("b",), "preempted")]
    machine.handle(gang.Failed("a", 1, "killed"), 6.0)
    (again,) = of_kind(close(machine, "a", now=6.1), gang.StartGeneration)
    assert again.step == 9 and again.holders == ("a",)


def test_the_only_worker_waits_for_a_successor_and_hands_over():
    machine = running("a", min_size=1)
    machine.handle(gang.DrainAsked("a", "preempted"), 3.0)
    machine.handle(gang.Parked("a", 0, 4), 3.5)
    assert not of_kind(close(machine, "a", now=4.0), gang.StartGeneration) and machine.phase is Phase.WAITING
    (start,) = of_kind(grant(machine, "b", now=6.0), gang.StartGeneration)
    assert start.agent_ids == ("b",) and start.step == 4 and start.holders == ("a",)
    assert gang.ReturnAgents(("a",), "preempted") in machine.handle(gang.Started("b", 1), 7.0)


def test_a_group_of_fixed_size_says_that_it_will_lose_a_member():
    machine = gang.Gang(GangSpec("run", size=2))
    machine.begin(0.0)
    machine.handle(gang.Granted(("a", "b")), 0.0)
    (note,) = machine.handle(gang.DrainAsked("b", "decommissioned"), 1.0)
    assert "rank 1 is about to be lost (decommissioned)" in note.text and "min_workers" in note.text
    assert machine.handle(gang.DrainAsked("stranger", "decommissioned"), 1.0) == []


def test_failures_without_a_commit_in_between_end_the_run():
    machine = running("a", "b", fruitless_limit=2)
    machine.handle(gang.Failed("a", 0, "killed by signal 11"), 3.0)
    close(machine, "a", "b")
    machine.handle(gang.Failed("a", 1, "killed by signal 11"), 6.0)
    (outcome,) = of_kind(close(machine, "a", "b", now=7.0), gang.Conclude)
    assert "2 generations in a row ended without a new commit" in outcome.reason


def test_a_host_that_fails_often_is_set_aside_and_comes_back():
    machine = running("a", "b", "c", host_failure_limit=1, cooldown_s=15)
    machine.handle(gang.Committed("a", 0, 1), 3.0)
    machine.handle(gang.Failed("c", 0, "killed by signal 7"), 4.0)
    (start,) = of_kind(close(machine, "a", "b", "c", now=4.0), gang.StartGeneration)
    assert set(start.agent_ids) == {"a", "b"}
    for name in "ab":
        machine.handle(gang.Started(name, 1), 5.0)
    machine.handle(gang.Committed("a", 1, 2), 5.0)
    machine.handle(gang.MemberLost("b", "gone"), 6.0)
    assert close(machine, "a", now=6.0)[-1:] != [] and machine.phase is Phase.WAITING
    assert of_kind(machine.handle(gang.Tick(), 19.5), gang.StartGeneration)


def test_a_host_that_is_set_aside_disturbs_nobody_until_it_has_cooled_down():
    machine = running("a", "b", min_size=1, host_failure_limit=1, cooldown_s=15)
    machine.handle(gang.Committed("a", 0, 1), 3.0)
    machine.handle(gang.Failed("b", 0, "killed by signal 7"), 4.0)
    (start,) = of_kind(close(machine, "a", "b", now=4.0), gang.StartGeneration)
    assert start.agent_ids == ("a",)
    machine.handle(gang.Ready("b"), 4.5)
    assert machine.handle(gang.Started("a", 1), 5.0) == []
    assert machine.handle(gang.Tick(), 18.9) == []
    (park,) = machine.handle(gang.Tick(), 19.1)
    assert park == gang.ParkWorkers(1, ("a",), "1 more joined")


def test_a_member_that_stands_still_is_named():
    machine = running("a", "b", progress_timeout_s=5.0)
    for now, step in ((3.0, 1), (4.0, 2)):
        machine.handle(gang.Stepped("a", 0, step), now)
        machine.handle(gang.Stepped("b", 0, step, stopped=step == 2), now)
    assert machine.handle(gang.Tick(), 8.9) == []
    (stop,) = of_kind(machine.handle(gang.Tick(), 9.1), gang.StopWorkers)
    assert stop.dump
    (start,) = of_kind(close(machine, "a", "b", now=9.5), gang.StartGeneration)
    assert start.why == "rank 1: no step for 5 s; its process is stopped"


def test_a_member_that_the_others_wait_for_is_named_once():
    machine, said = running("a", "b", "c"), list[gang.Action]()
    for second in range(20):
        for name, step in (("a", second), ("b", second - 1), ("c", second)):
            said += machine.handle(gang.Stepped(name, 0, max(0, step)), 3.0 + second)
    (note,) = said
    assert note.text.startswith("rank 1 on host-b is slower than the others")
    even, nothing = running("a", "b"), list[gang.Action]()
    for second in range(20):  # one always reports half a second after the other
        nothing += even.handle(gang.Stepped("a", 0, 10 * second), 3.0 + second)
        nothing += even.handle(gang.Stepped("b", 0, 10 * second + 5), 3.5 + second)
    assert nothing == []


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("behind", [0.0, 0.24])
def test_when_members_report_does_not_matter(offset: float, behind: float) -> None:
    """Steps of 0.3 s; rank 1 makes each of them ``behind`` seconds later, and reports ``offset`` seconds later."""
    machine, said = running("a", "b"), list[gang.Action]()
    for second in range(20):
        for name, at, late in (("a", float(second), 0.0), ("b", second + offset, behind)):
            step = max(0, int((at - late) / 0.3))
            age = max(0.0, at - late - 0.3 * step)
            said += machine.handle(gang.Stepped(name, 0, step, age_s=age), 3.0 + at)
    assert len(said) == (behind > 0), said


def test_members_that_do_not_report_their_end_are_cut_off():
    machine = running("a", "b", "c")
    machine.handle(gang.Committed("a", 0, 3), 3.0)
    machine.handle(gang.Failed("a", 0, "killed"), 4.0)
    close(machine, "a", "b", now=4.1)
    actions = machine.handle(gang.Tick(), 4.0 + END_S)
    assert gang.DropAgents(("c",), "did not report its worker's end in time") in actions
    (start,) = of_kind(actions, gang.StartGeneration)
    assert set(start.agent_ids) == {"a", "b"}


# ---------------------------------------------------------------------------------------------------- invariants

_AGENTS = [f"a{number}" for number in range(6)]
_EVENTS = st.one_of(
    st.tuples(st.just("grant"), st.sampled_from(_AGENTS), st.booleans()),
    st.tuples(
        st.sampled_from(["ready", "lost", "started", "closed", "drain", "finished"]),
        st.sampled_from(_AGENTS),
        st.just(0),
    ),
    st.tuples(st.sampled_from(["committed", "parked", "stepped"]), st.sampled_from(_AGENTS), st.integers(0, 40)),
    st.tuples(st.just("failed"), st.sampled_from(_AGENTS), st.sampled_from(["died", "echo", "raised"])),
    st.tuples(st.just("resize"), st.just(""), st.integers(2, 4)),
    st.tuples(st.just("tick"), st.just(""), st.sampled_from([0.1, 1.0, 30.0])),
)
_DISTURBANCES = st.one_of(
    st.tuples(st.sampled_from(["lost", "drain"]), st.sampled_from(_AGENTS), st.just(0)),
    st.tuples(st.just("failed"), st.sampled_from(_AGENTS), st.sampled_from(["died", "echo"])),
    st.tuples(st.just("grant"), st.sampled_from(_AGENTS), st.just(True)),
    st.tuples(st.just("resize"), st.just(""), st.integers(2, 4)),
)


def _all(kind: str, value: int = 0) -> list[tuple[str, str, Any]]:
    return [("all", kind, value)]


# A generation as it usually goes, with anything in between: pure chance hardly gets beyond the first one.
_ROUNDS = st.lists(
    st.builds(
        lambda before, step, disturbance, after: [
            *before, *_all("started"), *_all("committed", step), disturbance, *after, *_all("parked", step + 1),
            *_all("closed"), ("tick", "", 1.0),
        ],
        st.lists(_EVENTS, max_size=3),
        st.integers(0, 40),
        _DISTURBANCES,
        st.lists(_EVENTS, max_size=3),
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip
_CROWD = [("grant", name, True) for name in _AGENTS[:4]]


class _World:
    """What the hands would know: which agents the run holds, which workers live."""

    def __init__(self) -> None:
        self.machine = ElasticGang(spec(size=4, reset_limit=50))
        self.now = 0.0
        self.held: set[str] = set()
        self.alive: dict[str, int] = {}  # agent -> generation of its live worker
        self.concluded = 0
        self.base = -1
        self.states: dict[str, int] = {}  # agent -> newest step that it holds
        self.do(self.machine.begin(0.0))

    def do(self, actions: list[gang.Action]) -> None:
        for action in actions:
            assert not self.concluded or isinstance(action, gang.ReturnAgents)
            match action:
                case gang.StartGeneration():
                    assert 2 <= len(set(action.agent_ids)) == len(action.agent_ids) <= 4
                    assert not self.alive, "a worker of the last generation lives"
                    assert set(action.agent_ids) | set(action.holders) <= self.held
                    self.alive = dict.fromkeys(action.agent_ids, action.generation)
                    assert action.step == max(self.states.values(), default=-1), "the newest state was given up"
                    assert action.step < 0 or all(self.states[agent_id] == action.step for agent_id in action.holders)
                    assert bool(action.holders) == (action.step >= 0)
                    self.base = action.step
                case gang.ReturnAgents():
                    assert set(action.agent_ids) <= self.held
                    assert not set(action.agent_ids) & set(self.alive)
                    self.held -= set(action.agent_ids)
                    before = max(self.states.values(), default=-1)
                    for agent_id in action.agent_ids:
                        self.states.pop(agent_id, None)
                    if action.leave:
                        assert max(self.states.values(), default=-1) == before, "the newest state went with it"
                case gang.DropAgents():
                    for agent_id in action.agent_ids:
                        self.held.discard(agent_id)
                        self.states.pop(agent_id, None)
                        self.alive.pop(agent_id, None)
                case gang.Conclude():
                    self.concluded += 1

    def apply(self, kind: str, agent: str, value: Any) -> None:
        if kind == "all":
            for one in list(self.alive):
                self.apply(agent, one, value)
            return
        self.now += 0.01 if kind != "tick" else value
        generation = self.machine.generation
        event: gang.Event
        if kind == "grant":
            if agent in self.held or self.machine.phase.is_final:
                return
            self.held.add(agent)
            event = gang.Granted((agent,), (f"h{agent}",), (value,))
        elif kind == "tick":
            event = gang.Tick()
        elif kind == "resize":
            event = gang.ResizeAsked(value)
        elif agent not in self.held:
            return
        elif kind == "lost":
            self.held.discard(agent)
            self.states.pop(agent, None)
            self.alive.pop(agent, None)
            event = gang.MemberLost(agent, "gone")
        elif kind == "ready":
            event = gang.Ready(agent)
        elif kind == "drain":
            event = gang.DrainAsked(agent, "warned")
        elif kind == "closed":
            if self.alive.pop(agent, None) is None:
                return
            event = gang.Closed(agent, generation)
        elif agent not in self.alive:
            return
        elif kind == "failed":
            event = gang.Failed(agent, generation, "died", value == "echo", value == "raised")
        else:
            made = {"started": gang.Started, "finished": gang.Finished}.get(kind)
            with_step = {"committed": gang.Committed, "parked": gang.Parked, "stepped": gang.Stepped}
            event = made(agent, generation) if made else with_step[kind](agent, generation, value)
            counts = kind == "committed" or (kind == "parked" and self.machine.phase is Phase.PARKING)
            if counts or (kind == "started" and self.base >= 0):
                self.states[agent] = max(self.states.get(agent, -1), value if counts else self.base)
        self.do(self.machine.handle(event, self.now))


@settings(max_examples=150, deadline=None)
@given(_ROUNDS)
def test_every_sequence_keeps_the_rules_and_can_be_ended(rounds: list[list[tuple[str, str, Any]]]):
    world = _World()
    for kind, agent, value in [*_CROWD, *(event for one in rounds for event in one)]:
        world.apply(kind, agent, value)
        machine = world.machine
        assert machine.phase.is_final == bool(world.concluded)
        waits = machine.phase in (Phase.WAITING, Phase.FORMING, Phase.REFORMING, Phase.STOPPING)
        assert not waits or machine.deadline is not None
    world.do(world.machine.handle(gang.CancelAsked("enough"), world.now))
    for agent in list(world.alive):
        world.apply("closed", agent, 0)
    for _ in range(3):
        world.apply("tick", "", 1000.0)
    assert world.concluded == 1 and not world.held
