"""Who holds which agent: a pure state machine over the agents of one application.

Runs demand agents and get all of them or none (two half-granted runs would wait for each other for ever); demands are
served in the order they came. Agents that no run has used for ``keep_warm_s`` are dismissed, at once when other Spark
jobs of the application wait for a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Grant:
    """These agents belong to the run now."""

    run_id: str
    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class Submit:
    """Ask the cluster for this many more agents; the number of the ask comes back with each of them."""

    ask: int
    count: int


@dataclass(frozen=True)
class DismissAgents:
    """Nobody needs these agents."""

    agent_ids: tuple[str, ...]
    reason: str


Action = Grant | Submit | DismissAgents


@dataclass
class _Agent:
    slot: tuple[int, int]
    executor_id: str
    run_id: str | None = None
    idle_since: float = 0.0


@dataclass
class Pool:
    """The agents of one application and the runs that want some; each method is one event."""

    keep_warm_s: float = 10.0
    agents: dict[str, _Agent] = field(default_factory=dict)
    demands: dict[str, int] = field(default_factory=dict)  # run -> wanted; insertion order is the queue
    expected: set[tuple[int, int]] = field(default_factory=set)  # asked for and not connected
    asks: int = 0

    # -------------------------------------------------------------------------------- events

    def demand(self, run_id: str, count: int, now: float) -> list[Action]:
        """A run wants ``count`` agents."""
        self.demands[run_id] = count
        return self._serve(now)

    def withdraw(self, run_id: str, now: float) -> list[Action]:
        """The run waits no more."""
        self.demands.pop(run_id, None)
        return self._serve(now)

    def connected(self, agent_id: str, slot: tuple[int, int], executor_id: str, now: float) -> list[Action]:
        """An agent is there. ``slot`` is (ask, index): a Spark retry of a lost agent comes with the old one's."""
        self.expected.discard(slot)
        self.agents[agent_id] = _Agent(slot, executor_id, idle_since=now)
        return self._serve(now)

    def disconnected(self, agent_id: str, returns: bool, now: float) -> list[Action]:
        """An agent is gone; ``returns``: the cluster starts it again by itself."""
        agent = self.agents.pop(agent_id, None)
        if agent is not None and returns:
            self.expected.add(agent.slot)
        return self._serve(now)

    def ask_ended(self, ask: int, now: float) -> list[Action]:
        """No more agents come from this ask."""
        self.expected = {slot for slot in self.expected if slot[0] != ask}
        return self._serve(now)

    def returned(self, agent_ids: tuple[str, ...], now: float) -> list[Action]:
        """A run is done with these."""
        for agent_id in agent_ids:
            agent = self.agents.get(agent_id)
            if agent is not None:
                agent.run_id, agent.idle_since = None, now
        return self._serve(now)

    def tick(self, now: float, others_wait: bool = False) -> list[Action]:
        """Time passes; ``others_wait``: another job of the application finds no free slot."""
        if self.demands:
            return []
        patience = 0.0 if others_wait else self.keep_warm_s
        tired = tuple(
            agent_id
            for agent_id, agent in self.agents.items()
            if self._idle(agent) and now - agent.idle_since >= patience
        )
        if not tired:
            return []
        for agent_id in tired:
            del self.agents[agent_id]
        reason = "another job waits for the slot" if others_wait else f"idle for {self.keep_warm_s:g} s"
        return [DismissAgents(tired, reason)]

    # -------------------------------------------------------------------------------- rules

    @staticmethod
    def _idle(agent: _Agent) -> bool:
        return agent.run_id is None

    def idle(self) -> list[str]:
        """Agents that no run holds."""
        return [agent_id for agent_id, agent in self.agents.items() if self._idle(agent)]

    def _serve(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for run_id, wanted in list(self.demands.items()):
            idle = self._spread(self.idle())
            if len(idle) < wanted:
                break  # strict order: a small run that overtook for ever would starve a large one
            chosen = tuple(idle[:wanted])
            for agent_id in chosen:
                self.agents[agent_id].run_id = run_id
            del self.demands[run_id]
            actions.append(Grant(run_id, chosen))
        lacking = sum(self.demands.values()) - len(self.idle()) - len(self.expected)
        if lacking > 0:
            self.asks += 1
            self.expected |= {(self.asks, index) for index in range(lacking)}
            actions.append(Submit(self.asks, lacking))
        return actions

    def _spread(self, agent_ids: list[str]) -> list[str]:
        """The same agents, one of each executor before a second of any: a worker wants an executor of its own."""
        seen: dict[str, int] = {}
        keyed: list[tuple[int, int, str]] = []
        for agent_id in agent_ids:
            executor = self.agents[agent_id].executor_id
            seen[executor] = seen.get(executor, 0) + 1
            keyed.append((seen[executor], len(keyed), agent_id))
        return [agent_id for _, _, agent_id in sorted(keyed)]
