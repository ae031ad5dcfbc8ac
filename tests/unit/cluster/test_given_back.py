"""Tests that an ended run has released everything: pool and gangs over random sequences of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.driver.active_run import machine_for
from hopsml.cluster.gang import events, pool
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.pool import Pool
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, FixedGroup, IndependentGroup, Roles, ServerGroup

pytestmark = pytest.mark.fast

KEEP_WARM_S = 10.0
KINDS: dict[str, AnyGroup] = {
    "fixed": FixedGroup(size=2, start_timeout_s=20),
    "elastic": ElasticGroup(size=4, min_size=2, start_timeout_s=20, min_workers_timeout_s=20),
    "independent": IndependentGroup(size=3, start_timeout_s=20),
    "servers": ServerGroup(size=4, start_timeout_s=20),
}


class World:
    """Simulation of successive runs of all kinds on one pool; agents and workers obey their messages."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pool = Pool(keep_warm_s=KEEP_WARM_S)
        self.requested_slots: list[tuple[int, int]] = []
        self.agents: dict[str, int | None] = {}  # -> generation of its worker, None: it has none
        self.count = 0
        self.gang: ElasticGroupMachine
        self.run_id = ""
        self.outcome: events.ConcludeRun | None = None

    def begin(self, kind: str) -> None:
        self.run_id, self.outcome = f"{kind}-{self.count}", None
        self.gang = machine_for(KINDS[kind], Roles(1) if kind == "servers" else Roles())
        self.apply_actions(self.gang.begin(self.now))

    def send_event(self, event: events.Event) -> None:
        self.apply_actions(self.gang.handle(event, self.now))

    def apply_actions(self, actions: list[events.Action]) -> None:
        for action in actions:
            match action:
                case events.RequestAgents():
                    most = action.most if self.gang.spec.changes else None
                    self.serve(self.pool.add_run(self.run_id, action.count, most))
                case events.StartGeneration():
                    if isinstance(self.gang, ElasticGroupMachine):
                        self.send_event(events.Ranked(action.agent_ids))
                    for agent_id in action.agent_ids:
                        self.agents[agent_id] = action.generation
                case events.DropAgents():
                    for agent_id in action.agent_ids:
                        self.lose_agent(agent_id)
                case events.ReturnAgents():
                    assert not [agent_id for agent_id in action.agent_ids if self.agents[agent_id] is not None]
                    if action.leave:
                        self.serve(self.pool.dismiss(action.agent_ids, action.leave))
                    else:
                        self.serve(self.pool.take_back_agents(action.agent_ids, self.now))
                case events.ConcludeRun():
                    assert self.outcome is None
                    self.outcome = action
                    assert not self.held(), "the gang has not given these back by itself"
                    self.serve(self.pool.remove_run(self.run_id, self.now))

    def serve(self, actions: list[pool.Action]) -> None:
        for action in actions:
            match action:
                case pool.SubmitAgentRequest():
                    self.requested_slots += [(action.request_id, index) for index in range(action.count)]
                case pool.Grant():
                    ready = tuple(int(agent_id[1:]) % 3 > 0 for agent_id in action.agent_ids)
                    hosts = tuple(f"host-{int(agent_id[1:]) % 2}" for agent_id in action.agent_ids)
                    self.send_event(events.Granted(action.agent_ids, hosts, ready))
                case pool.DismissAgents():
                    for agent_id in action.agent_ids:
                        del self.agents[agent_id]
                case pool.CancelAgentRequest():
                    self.requested_slots = [slot for slot in self.requested_slots if slot[0] != action.request_id]

    def held(self) -> list[str]:
        return [agent_id for agent_id, holder in self.pool.agents.items() if holder.run_id == self.run_id]

    def connect_agent(self) -> None:
        if self.requested_slots:
            agent_id, self.count = f"a{self.count}", self.count + 1
            self.agents[agent_id] = None
            self.serve(self.pool.add_agent(agent_id, self.requested_slots.pop(0), agent_id, self.now))

    def lose_agent(self, agent_id: str) -> None:
        if agent_id in self.agents:
            del self.agents[agent_id]
            self.pool.remove_agent(agent_id, False)
            self.send_event(events.MemberLost(agent_id, "its executor died"))
            self.serve(self.pool.grant_idle_agents())

    def drain(self, agent_id: str) -> None:
        if self.pool.agents[agent_id].run_id is None:
            self.serve(self.pool.dismiss((agent_id,), "its node goes"))
        else:
            self.pool.mark_leaving(agent_id, "its node goes")
            self.send_event(events.DrainRequested(agent_id, "its node goes"))
            self.serve(self.pool.grant_idle_agents())

    def close(self, agent_id: str) -> None:
        generation, self.agents[agent_id] = self.agents[agent_id], None
        assert generation is not None
        self.send_event(events.Closed(agent_id, generation))

    def apply_event(self, what: str, which: int) -> None:
        self.now += 0.5
        if what == "come":
            self.connect_agent()
        elif what == "tick":
            self.now += which % 15
            self.serve(self.pool.tick(self.now))
            self.send_event(events.Tick())
        elif what == "resize":
            self.send_event(events.ResizeRequested(which % 5))
        elif what == "refuse":
            self.send_event(events.Refused("the application ends", "application"))
        elif what == "cancel":
            self.send_event(events.CancelRequested("enough", complete=which % 2 == 0))
        elif self.agents:
            agent_id = list(self.agents)[which % len(self.agents)]
            self.apply_worker_event(what, agent_id, self.agents[agent_id], which)

    def apply_worker_event(self, what: str, agent_id: str, generation: int | None, which: int) -> None:
        if what == "lose":
            self.lose_agent(agent_id)
        elif what == "drain":
            self.drain(agent_id)
        elif what == "ready":
            self.send_event(events.Ready(agent_id))
        elif generation is not None:
            match what:
                case "start":
                    self.send_event(events.Started(agent_id, generation))
                case "commit":
                    self.send_event(events.WorkerCommitted(agent_id, generation, which))
                case "park":
                    self.send_event(events.PausedAtCommit(agent_id, generation, which))
                case "finish":
                    self.send_event(events.Finished(agent_id, generation))
                    self.close(agent_id)
                case "fail":
                    self.send_event(events.Failed(agent_id, generation, "died", which % 3 == 0, which % 5 == 0))
                    self.close(agent_id)

    def end(self) -> None:
        """End the run, by a cancellation if needed; stopped workers end."""
        for _ in range(200):
            if self.gang.phase.is_final:
                return
            if self.gang.phase is not Phase.STOPPING:
                self.send_event(events.CancelRequested("that is all"))
            for agent_id in [agent_id for agent_id, lane in self.agents.items() if lane is not None]:
                if self.agents.get(agent_id) is not None:
                    self.close(agent_id)
            self.apply_event("tick", 3)

    def check_released(self) -> None:
        assert self.outcome is not None and not self.held()
        assert not self.pool.demands and not self.pool.most and not self.pool.refused
        assert not [agent_id for agent_id, generation in self.agents.items() if generation is not None]
        assert set(self.agents) == set(self.pool.idle()), "somebody is reserved for nobody"


EVENTS = (
    *("come", "come", "come", "start", "start", "ready", "commit", "park", "finish", "fail", "fail", "lose", "drain"),
    *("resize", "tick", "tick", "cancel", "refuse"),
)
SEQUENCES = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 60)), max_size=50)
RUNS = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), SEQUENCES), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(RUNS)
def test_ended_run_holds_no_agent_and_idle_agents_are_dismissed(runs: list[tuple[str, list[tuple[str, int]]]]):
    world = World()
    for kind, moves in runs:
        world.begin(kind)
        for what, which in moves:
            world.apply_event(what, which)
        world.end()
        world.check_released()
        for what, which in moves[:5]:  # late events change nothing
            world.apply_event(what, which)
        world.check_released()
    world.now += KEEP_WARM_S
    world.serve(world.pool.tick(world.now))
    assert not world.agents and not world.pool.agents, "idle for longer than they are kept warm"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_successive_runs_use_the_same_agents(kind: str) -> None:
    world = World()
    for _ in range(5):
        world.begin(kind)
        for _ in range(4):
            world.apply_event("come", 0)
        world.apply_event("tick", 2)
        world.end()
    assert world.count == KINDS[kind].size, "agents were asked for although those of the run before are idle"


def test_spares_are_returned_at_once_when_a_group_is_made_smaller() -> None:
    world = World()
    world.begin("elastic")
    for _ in range(2):
        world.connect_agent()
    world.apply_event("tick", 2)
    for agent_id in ("a0", "a1"):
        world.send_event(events.Started(agent_id, 0))
    world.connect_agent()  # a2 would join at the next commit
    assert world.held() == ["a0", "a1", "a2"] or world.gang.phase is Phase.PARKING
    world.send_event(events.ResizeRequested(2))
    assert world.held() == ["a0", "a1"]
