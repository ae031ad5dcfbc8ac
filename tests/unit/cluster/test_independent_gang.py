"""Tests of groups of lanes: single rules, then invariants over random sequences of events, with the real pool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.gang import events, pool
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.independent_machine import FRUITLESS_LIMIT, IndependentGroupMachine
from hopsml.cluster.gang.pool import Pool
from hopsml.cluster.shared.spec import IndependentGroup

pytestmark = pytest.mark.fast


def spec(**other: Any) -> IndependentGroup:
    return IndependentGroup(**{"size": 3, "start_timeout_s": 10, "host_cooldown_s": 5, **other})


def grant(machine: IndependentGroupMachine, *names: str, host: str = "", now: float = 0.0) -> list[events.Action]:
    return machine.handle(events.Granted(names, tuple(host or f"host-{n}" for n in names)), now)


def running(*names: str, host: str = "", **other: Any) -> IndependentGroupMachine:
    machine = IndependentGroupMachine(spec(**other))
    machine.begin(0.0)
    grant(machine, *names, host=host)
    for number, name in enumerate(names):
        machine.handle(events.Started(name, number), 1.0)
    assert machine.phase is Phase.RUNNING
    return machine


def of_kind(actions: list[events.Action], kind: type) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def fail_worker(machine: IndependentGroupMachine, name: str, now: float) -> list[events.Action]:
    lane = machine.members[name].rank
    return machine.handle(events.Failed(name, lane, "signal 9"), now) + machine.handle(events.Closed(name, lane), now)


def group_with_excluded_host(*names: str, at_work: tuple[str, ...] = (), **other: Any) -> IndependentGroupMachine:
    """Agents ``names`` of a host that is set aside from 6 s to 11 s, with others at work elsewhere."""
    machine = running(names[0], host="one", **{"size": len(names) + len(at_work), **other})
    for count in range(FRUITLESS_LIMIT):
        fail_worker(machine, names[0], 2.0 + count)
    grant(machine, *names[1:], host="one", now=6.0)
    grant(machine, *at_work, now=6.0)
    for name in at_work:
        machine.handle(events.Started(name, machine.members[name].rank), 6.0)
    assert machine.resting == list(names) and list(machine.members) == list(at_work)
    return machine


def test_each_granted_agent_gets_a_lane_at_once():
    machine = IndependentGroupMachine(spec())
    assert machine.begin(0.0) == [events.RequestAgents(1, 3)]
    assert grant(machine, "a") == [events.StartGeneration(0, ("a",))]
    assert machine.handle(events.Started("a", 0), 1.0) == [events.Announce("joined", 0, "host-a")]
    assert grant(machine, "b", "c") == [events.StartGeneration(1, ("b",)), events.StartGeneration(2, ("c",))]
    assert machine.phase is Phase.RUNNING


def test_waiting_search_counts_all_agents_and_needs_one():
    assert [IndependentGroupMachine(spec()).agent_counts(idle) for idle in (0, 9)] == [
        (0, "1 or more"),
        (9, "1 or more"),
    ]


def test_failed_worker_is_replaced_by_a_new_lane_on_its_agent():
    machine = running("a", "b")
    assert machine.handle(events.Failed("a", 0, "signal 9"), 2.0) == [events.Announce("left", 0, "signal 9")]
    assert machine.handle(events.Closed("a", 0), 2.1) == [events.StartGeneration(2, ("a",))]
    assert machine.handle(events.Started("a", 0), 2.2) == []  # a late event of the killed worker
    assert machine.handle(events.Started("a", 2), 2.2) == [events.Announce("joined", 2, "host-a")]


def test_loss_of_the_last_agent_starts_a_wait_that_ends_with_its_reason():
    machine = running("a", "b")
    assert machine.handle(events.MemberLost("b", "its executor died"), 2.0) == [
        events.Announce("left", 1, "its executor died")
    ]
    machine.handle(events.MemberLost("a", "that one too"), 3.0)
    assert machine.phase is Phase.WAITING
    assert machine.handle(events.Tick(), 12.9) == []
    (outcome,) = of_kind(machine.handle(events.Tick(), 13.0), events.ConcludeRun)
    reason = "no agent was connected for 10 s; what ended the last lane: that one too"
    assert outcome == events.ConcludeRun(Phase.FAILED, "start", reason, missing=((2, "no agent"),))


def test_search_without_any_agent_fails_at_the_start_timeout():
    machine = IndependentGroupMachine(spec())
    machine.begin(5.0)
    assert machine.handle(events.Tick(), 14.9) == []
    ask, outcome = machine.handle(events.Tick(), 15.0)
    reason = "no agent was connected for 10 s"
    assert ask == events.RequestAgents(0, 0)
    assert outcome == events.ConcludeRun(Phase.FAILED, "start", reason, missing=((0, "no agent"),))


def test_search_fails_if_all_agents_are_on_excluded_hosts():
    machine = group_with_excluded_host("a", "b", host_cooldown_s=60)
    assert machine.phase is Phase.WAITING and machine.handle(events.Tick(), 15.9) == []
    ask, back, outcome = machine.handle(events.Tick(), 16.0)
    assert (ask, back) == (events.RequestAgents(0, 0), events.ReturnAgents(("a", "b")))
    reason = "all 2 agents are on hosts that are set aside; what ended the last lane: lane 4 on one: signal 9"
    assert outcome == events.ConcludeRun(Phase.FAILED, "start", reason, missing=((5, "no agent"),))


def test_wait_for_agents_ends_with_the_next_grant():
    machine = running("a")
    machine.handle(events.MemberLost("a", "gone"), 2.0)
    assert grant(machine, "b", now=11.0) == [events.StartGeneration(1, ("b",))]
    assert machine.handle(events.Tick(), 15.0) == [] and machine.phase is Phase.FORMING


def test_host_with_successive_worker_failures_is_excluded_and_retried_later():
    machine = running("a", host="one")
    for count in range(1, FRUITLESS_LIMIT):
        assert of_kind(fail_worker(machine, "a", float(count)), events.StartGeneration)
    actions = fail_worker(machine, "a", 6.0)
    text = "host one is set aside for 5 s: 5 workers in a row died there, the last of signal 9"
    assert of_kind(actions, events.Note) == [events.Note(text)] and not of_kind(actions, events.StartGeneration)
    assert grant(machine, "b", host="one", now=7.0) == []
    assert grant(machine, "c", host="two", now=7.0) == [events.StartGeneration(5, ("c",))]
    assert machine.handle(events.Tick(), 10.9) == []
    starts = of_kind(machine.handle(events.Tick(), 11.0), events.StartGeneration)
    assert [start.agent_ids for start in starts] == [("a",), ("b",)]


def test_message_of_a_worker_resets_the_failures_of_its_host():
    machine = running("a", host="one")
    for count in range(3 * FRUITLESS_LIMIT):
        lane = machine.members["a"].rank
        machine.handle(events.Started("a", lane), float(count))
        machine.handle(events.WorkerActive("a", lane), float(count))
        assert of_kind(fail_worker(machine, "a", float(count)), events.StartGeneration)


def test_worker_that_returns_without_a_request_counts_as_failed():
    machine = running("a", host="one")
    for lane in range(FRUITLESS_LIMIT):
        machine.handle(events.Started("a", lane), 1.0)
        assert machine.handle(events.Finished("a", lane), 2.0) == []
        left, *rest = machine.handle(events.Closed("a", lane), 2.0)
        assert left == events.Announce("left", lane, "its worker returned")
    assert rest == [events.Note("host one is set aside for 5 s: 5 workers in a row died there, the last of a return")]
    machine.handle(events.ResizeRequested(0), 3.0)
    assert machine.last_cause == "lane 4 on one: its worker returned"


def test_agents_on_excluded_hosts_count_as_present_and_may_leave():
    machine = group_with_excluded_host("a", "b", at_work=("c",))
    assert grant(machine, "d", now=7.0) == [events.ReturnAgents(("d",))]
    assert machine.handle(events.DrainRequested("a", "its node goes"), 7.0) == [
        events.ReturnAgents(("a",), "its node goes")
    ]
    assert machine.handle(events.DrainRequested("stranger", "its node goes"), 7.0) == []
    assert machine.handle(events.MemberLost("b", "its executor died"), 8.0) == []
    assert machine.resting == [] and machine.handle(events.Tick(), 11.0) == []
    assert grant(machine, "d", now=12.0) == [events.StartGeneration(6, ("d",))]


def test_hosts_cool_down_independently():
    machine = group_with_excluded_host("a", at_work=("b",), size=3, host_cooldown_s=3)  # host one: from 6 s to 9 s
    for count in range(FRUITLESS_LIMIT):
        fail_worker(machine, "b", 7.0 + count / 4)  # its own host: from 8 s to 11 s
    assert machine.resting == ["a", "b"] and machine.handle(events.Tick(), 8.9) == []
    assert machine.handle(events.Tick(), 9.0) == [events.StartGeneration(10, ("a",))]
    assert machine.handle(events.Tick(), 10.9) == []
    assert machine.handle(events.Tick(), 11.0) == [events.StartGeneration(11, ("b",))]


def test_resize_requests_more_lanes_or_returns_excluded_agents_first():
    machine = group_with_excluded_host("a", "b", at_work=("c", "d"))
    assert machine.handle(events.ResizeRequested(6), 7.0) == [events.RequestAgents(0, 6)]
    assert machine.handle(events.ResizeRequested(4), 7.0) == [events.RequestAgents(0, 4)]
    assert machine.handle(events.ResizeRequested(3), 7.0) == [events.RequestAgents(0, 3), events.ReturnAgents(("a",))]
    assert machine.handle(events.ResizeRequested(1), 7.0) == [events.RequestAgents(0, 1), events.ReturnAgents(("b",))]
    assert list(machine.members) == ["c", "d"]  # the search chooses which lane ends
    died = fail_worker(machine, "c", 8.0)
    assert died == [events.Announce("left", 5, "signal 9"), events.ReturnAgents(("c",))]
    assert fail_worker(machine, "d", 8.0)[-1] == events.StartGeneration(7, ("d",))
    assert machine.handle(events.ResizeRequested(-1), 9.0) == [events.RequestAgents(0, 0)]


def test_search_without_requested_lanes_has_no_deadline():
    machine = running("a")
    machine.handle(events.MemberLost("a", "gone"), 2.0)
    assert machine.phase is Phase.WAITING and machine.deadline == 12.0
    assert machine.handle(events.ResizeRequested(0), 3.0) == [events.RequestAgents(0, 0)]
    assert machine.handle(events.Tick(), 1000.0) == []
    assert machine.handle(events.ResizeRequested(2), 1000.0) == [events.RequestAgents(0, 2)]
    assert machine.handle(events.ResizeRequested(3), 1005.0) == [
        events.RequestAgents(0, 3)
    ]  # does not extend the deadline
    assert machine.handle(events.Tick(), 1009.9) == []
    assert of_kind(machine.handle(events.Tick(), 1010.0), events.ConcludeRun)


def test_grant_names_the_host_of_each_agent_or_none():
    machine = IndependentGroupMachine(spec())
    machine.begin(0.0)
    with pytest.raises(ValueError, match="shorter"):
        machine.handle(events.Granted(("a", "b"), ("one",)), 0.0)
    assert machine.handle(events.Granted(("c",)), 0.0) == [events.StartGeneration(0, ("c",))]
    assert machine.handle(events.Started("c", 0), 0.0) == [events.Announce("joined", 0, "c")]


def test_drained_and_released_lanes_finish_and_their_agents_are_returned():
    machine = running("a", "b")
    assert machine.handle(events.DrainRequested("a", "its node goes"), 2.0) == [
        events.PauseWorkersAtCommit(0, ("a",), "its node goes")
    ]
    assert machine.handle(events.DrainRequested("a", "its node goes"), 2.0) == []
    assert machine.handle(events.ReleaseRequested(1), 2.0) == [events.PauseWorkersAtCommit(1, ("b",), "")]
    assert machine.handle(events.ReleaseRequested(7), 2.0) == []
    machine.handle(events.Finished("a", 0), 3.0)
    assert machine.handle(events.Closed("a", 0), 3.0) == [
        events.Announce("left", 0, "its node goes"),
        events.ReturnAgents(("a",), "its node goes"),
    ]
    assert machine.handle(events.Closed("b", 1), 3.0) == [
        events.Announce("left", 1, "released"),
        events.ReturnAgents(("b",)),
    ]


def test_immediate_release_stops_a_lane_that_was_asked_to_finish():
    machine = running("a", "b")
    machine.handle(events.ReleaseRequested(0), 2.0)
    (stop,) = machine.handle(events.ReleaseRequested(0, at_once=True), 3.0)
    assert isinstance(stop, events.StopWorkers) and stop.agent_ids == ("a",)
    assert machine.handle(events.Closed("a", 0), 4.0) == [
        events.Announce("left", 0, "released"),
        events.ReturnAgents(("a",)),
    ]
    assert machine.handle(events.ReleaseRequested(0, at_once=True), 5.0) == []


def test_successor_of_a_draining_lane_starts_before_that_lane_has_ended():
    machine = running("a", "b", "c")
    machine.handle(events.DrainRequested("a", "its node goes"), 2.0)
    assert grant(machine, "d", now=2.0) == [
        events.StartGeneration(3, ("d",))
    ]  # returned to the pool, it would be granted again
    assert grant(machine, "e", now=2.0) == [events.ReturnAgents(("e",))]


def test_ending_search_accepts_no_more_agents():
    machine = running("a")
    machine.handle(events.CancelRequested("enough"), 2.0)
    assert machine.handle(events.ResizeRequested(3), 2.1) == []
    assert grant(machine, "b", now=2.2) == [events.ReturnAgents(("b",))]


def test_agent_that_does_not_start_its_worker_is_dropped():
    machine = IndependentGroupMachine(spec())
    machine.begin(0.0)
    grant(machine, "a", "b")
    machine.handle(events.Started("a", 0), 1.0)
    assert machine.handle(events.Tick(), 10.0) == []
    (drop,) = machine.handle(events.Tick(), 10.1)
    assert drop == events.DropAgents(("b",), "did not start its worker within 10 s")
    assert machine.handle(events.MemberLost("b", drop.reason), 10.5) == []  # it had not been announced


def test_complete_search_lets_lanes_finish_and_stops_late_ones():
    machine = running("a", "b")
    assert machine.handle(events.CancelRequested("all trials are done", complete=True), 2.0) == [
        events.RequestAgents(0, 0),
        events.PauseWorkersAtCommit(0, ("a",), ""),
        events.PauseWorkersAtCommit(1, ("b",), ""),
    ]
    assert machine.handle(events.Closed("a", 0), 2.1)[-1] == events.ReturnAgents(("a",))
    assert machine.handle(events.Tick(), 3.9) == []
    (stop,) = machine.handle(events.Tick(), 2.0 + machine.spec.grace_s)
    assert stop == events.StopWorkers(1, ("b",), machine.spec.grace_s, machine.spec.flush_s)
    *_, outcome = machine.handle(events.Closed("b", 1), 5.0)
    assert outcome == events.ConcludeRun(Phase.FINISHED, reason="all trials are done")


def test_complete_search_has_a_time_limit_to_store_its_files():
    machine = running("a", grace_s=2, flush_s=100)
    machine.handle(events.CancelRequested("all trials are done", complete=True), 10.0)
    assert of_kind(machine.handle(events.Tick(), 12.0), events.StopWorkers)
    assert machine.handle(events.Tick(), 12.0 + 2 + 100 + 1.9) == []
    drop, outcome = machine.handle(events.Tick(), 12.0 + 2 + 100 + 2)
    assert drop == events.DropAgents(("a",), "did not report its worker's end in time")
    assert outcome == events.ConcludeRun(Phase.FINISHED, reason="all trials are done")


def test_unresponsive_lane_is_dropped_at_the_end():
    machine = group_with_excluded_host("b", at_work=("a",))
    assert machine.handle(events.CancelRequested("enough"), 20.0) == [
        events.RequestAgents(0, 0),
        events.ReturnAgents(("b",)),
        events.StopWorkers(5, ("a",), machine.spec.grace_s, machine.spec.failed_flush_s),
    ]
    limit = 20.0 + machine.spec.grace_s + machine.spec.failed_flush_s + 2
    assert machine.handle(events.CancelRequested("again"), 21.0) == [] == machine.handle(events.Tick(), limit - 0.1)
    drop, outcome = machine.handle(events.Tick(), limit)
    assert drop == events.DropAgents(("a",), "did not report its worker's end in time")
    assert outcome == events.ConcludeRun(Phase.CANCELLED, "cancelled", "enough")
    assert machine.handle(events.Tick(), limit + 1) == [] and machine.agent_of(5) is None


# ---------------------------------------------------------------------------------------------- invariants


class World:
    """Simulation of agents and workers around the real pool; agents connect on request, workers obey the gang."""

    def __init__(self, size: int) -> None:
        self.now = 0.0
        self.pool = Pool()
        self.gang = IndependentGroupMachine(spec(size=size))
        self.coming: list[tuple[int, int]] = []
        self.agents: dict[str, int | None] = {}  # -> lane that its worker is, None: it has none
        self.stopping: set[int] = set()  # lanes that will end
        self.joined: set[int] = set()
        self.left: set[int] = set()
        self.lanes: list[int] = []
        self.outcome: events.ConcludeRun | None = None
        self.count = 0
        self.apply_actions(self.gang.begin(self.now))

    def send_event(self, event: events.Event) -> None:
        self.apply_actions(self.gang.handle(event, self.now))

    def apply_actions(self, actions: list[events.Action]) -> None:
        for action in actions:
            match action:
                case events.RequestAgents():
                    self.serve(self.pool.add_run("run", action.count, action.most))
                case events.StartGeneration(number, (agent_id,)):
                    assert self.agents[agent_id] is None, "two workers on one agent"
                    assert not self.lanes or number > self.lanes[-1], "numbers only grow"
                    self.lanes.append(number)
                    self.agents[agent_id] = number
                case events.PauseWorkersAtCommit(number, (agent_id,)) | events.StopWorkers(number, (agent_id,)):
                    assert self.agents[agent_id] == number
                    self.stopping.add(number)
                case events.DropAgents():
                    for agent_id in action.agent_ids:
                        self.lose_agent(agent_id)
                case events.ReturnAgents():
                    for agent_id in action.agent_ids:
                        assert self.agents[agent_id] is None, "returned at work"
                    if action.leave:
                        self.serve(self.pool.dismiss(action.agent_ids, action.leave))
                    else:
                        self.serve(self.pool.take_back_agents(action.agent_ids, self.now))
                case events.Announce("joined"):
                    assert action.rank not in self.joined
                    self.joined.add(action.rank)
                case events.Announce("left"):
                    assert action.rank in self.joined and action.rank not in self.left
                    self.left.add(action.rank)
                case events.ConcludeRun():
                    assert self.outcome is None
                    self.outcome = action
                    self.serve(self.pool.remove_run("run", self.now))

    def serve(self, actions: list[pool.Action]) -> None:
        for action in actions:
            match action:
                case pool.SubmitAgentRequest():
                    self.coming += [(action.request_id, index) for index in range(action.count)]
                case pool.Grant():
                    hosts = tuple(f"host-{int(agent_id[1:]) % 2}" for agent_id in action.agent_ids)
                    self.send_event(events.Granted(action.agent_ids, hosts))
                case pool.DismissAgents():
                    for agent_id in action.agent_ids:
                        del self.agents[agent_id]
                case pool.CancelAgentRequest():
                    self.coming = [slot for slot in self.coming if slot[0] != action.request_id]

    # -------------------------------------------------------------------------------- what may happen

    def connect_agent(self, which: int) -> None:
        if self.coming:
            slot = self.coming.pop(which % len(self.coming))
            agent_id, self.count = f"a{self.count}", self.count + 1
            self.agents[agent_id] = None
            self.serve(self.pool.add_agent(agent_id, slot, agent_id, self.now))

    def lose_agent(self, agent_id: str) -> None:
        if agent_id in self.agents:
            del self.agents[agent_id]
            self.pool.remove_agent(agent_id, False)
            self.send_event(events.MemberLost(agent_id, "its executor died"))
            self.serve(self.pool.grant_idle_agents())

    def end_worker(self, agent_id: str, dies: bool) -> None:
        lane = self.agents[agent_id]
        assert lane is not None
        self.send_event(events.Failed(agent_id, lane, "signal 9") if dies else events.Finished(agent_id, lane))
        self.agents[agent_id] = None
        self.send_event(events.Closed(agent_id, lane))

    def apply_event(self, what: str, which: int) -> None:
        self.now += 0.5
        at_work = [agent_id for agent_id, lane in self.agents.items() if lane is not None]
        chosen = at_work[which % len(at_work)] if at_work else None
        if what == "come":
            self.connect_agent(which)
        elif what == "tick":
            self.now += which % 9
            self.serve(self.pool.tick(self.now))
            self.send_event(events.Tick())
        elif what == "resize":
            self.send_event(events.ResizeRequested(which % 5))
        elif what == "lose" and self.agents:
            self.lose_agent(list(self.agents)[which % len(self.agents)])
        elif what == "drain" and self.agents:
            self.send_event(events.DrainRequested(list(self.agents)[which % len(self.agents)], "its node goes"))
        elif chosen is not None:
            lane = self.agents[chosen]
            assert lane is not None
            if what == "start":
                self.send_event(events.Started(chosen, lane))
            elif what == "say":
                self.send_event(events.WorkerActive(chosen, lane))
            elif what == "release":
                self.send_event(events.ReleaseRequested(lane, at_once=which % 3 == 0))
            elif what == "end":
                self.end_worker(chosen, dies=lane not in self.stopping)

    def check(self) -> None:
        working = {agent_id for agent_id, lane in self.agents.items() if lane is not None}
        assert set(self.gang.members) == working or self.gang.phase.is_final
        if self.outcome is not None and self.outcome.phase is Phase.FAILED:
            assert not working, "it failed although somebody was there"


EVENTS = ("come", "come", "start", "start", "say", "end", "end", "lose", "drain", "release", "resize", "tick")
SEQUENCES = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 100)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), SEQUENCES, st.booleans())
def test_every_event_sequence_counts_lanes_once_and_ends(
    size: int, moves: list[tuple[str, int]], complete: bool
) -> None:
    world = World(size)
    for what, which in moves:
        world.apply_event(what, which)
        world.check()
    world.send_event(events.CancelRequested("that is all", complete))
    for _ in range(200):
        if world.outcome is not None:
            break
        for agent_id in [a for a, lane in world.agents.items() if lane in world.stopping]:
            world.end_worker(agent_id, dies=False)
        world.apply_event("tick", 1)
    assert world.gang.phase.is_final and world.outcome is not None
    assert world.joined == world.left or any(world.agents.values())
    assert not [a for a, holder in world.pool.agents.items() if holder.run_id == "run"], "an agent that nobody has back"
