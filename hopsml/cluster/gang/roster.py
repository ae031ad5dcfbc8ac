"""The agents of one application and who holds each. How many are idle, or with a run, is counted as it changes.

With a thousand agents that come one by one, looking through all of them at each event would be a million looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class AgentState:
    """One agent: its slot, who holds it, and whether it is going away."""

    slot: tuple[int, int]  # number of the ask, index in it
    executor_id: str
    run_id: str | None = None  # who holds it
    idle_since: float = 0.0
    leaving: str = ""  # why it is going away: another one may be asked for

    @property
    def is_idle(self) -> bool:
        """Whether it can be granted to a run."""
        return self.run_id is None and not self.leaving


class Roster(Mapping[str, AgentState]):
    """The agents by id, in the order in which they came."""

    def __init__(self) -> None:
        self._agents: dict[str, AgentState] = {}
        self._came: dict[str, int] = {}
        self._arrivals = 0
        self._idle: set[str] = set()
        self._staying: Counter[str] = Counter()

    def __getitem__(self, agent_id: str) -> AgentState:
        return self._agents[agent_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def put(self, agent_id: str, agent: AgentState) -> None:
        """Add an agent, or replace what is known of it."""
        if not self._forget(agent_id):
            self._arrivals += 1
            self._came[agent_id] = self._arrivals
        self._agents[agent_id] = agent
        if agent.is_idle:
            self._idle.add(agent_id)
        elif agent.run_id is not None and not agent.leaving:
            self._staying[agent.run_id] += 1

    def pop(self, agent_id: str) -> AgentState | None:
        """Remove an agent. Returns what was known of it; None where it is not there."""
        agent = self._forget(agent_id)
        if agent is not None:
            del self._agents[agent_id], self._came[agent_id]
        return agent

    def _forget(self, agent_id: str) -> AgentState | None:
        """Count it no more."""
        agent = self._agents.get(agent_id)
        self._idle.discard(agent_id)
        if agent is not None and agent.run_id is not None and not agent.leaving:
            self._staying[agent.run_id] -= 1
            if not self._staying[agent.run_id]:
                del self._staying[agent.run_id]
        return agent

    @property
    def idle_count(self) -> int:
        """How many agents can be granted to a run."""
        return len(self._idle)

    def idle(self) -> list[str]:
        """Ids of the agents that can be granted to a run, in the order in which they came."""
        return sorted(self._idle, key=self._came.__getitem__)

    def staying(self, run_id: str) -> int:
        """How many agents a run holds, without those that are going away."""
        return self._staying[run_id]
