"""The agents of one application and who holds each; and those that are on their way. How many there are of what is
counted as it changes: with a thousand agents that come one by one, looking through all of them at each event would be a
million looks.

Agents are of two kinds: with all that the application's slots have, and bare ones, which hold no GPU. Where slots have
none, or the cluster cannot tell kinds apart, there are no bare ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class AgentState:
    """One agent: its slot, who holds it, and whether it is going away."""

    slot: tuple[int, int]  # number of the ask, index in it
    executor_id: str
    run_id: str | None = None  # who holds it
    idle_since: float = 0.0
    leaving: str = ""  # why it is going away: another one may be asked for
    bare: bool = False  # it holds no GPU

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
        self._idle: dict[bool, set[str]] = {False: set(), True: set()}  # by whether they are bare
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
            self._idle[agent.bare].add(agent_id)
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
        if agent is not None:
            self._idle[agent.bare].discard(agent_id)
        if agent is not None and agent.run_id is not None and not agent.leaving:
            self._staying[agent.run_id] -= 1
            if not self._staying[agent.run_id]:
                del self._staying[agent.run_id]
        return agent

    @property
    def idle_count(self) -> int:
        """How many agents can be granted to a run."""
        return self.idle_of(False) + self.idle_of(True)

    def idle_of(self, bare: bool) -> int:
        """How many of one kind can be granted to a run."""
        return len(self._idle[bare])

    def idle(self, bare: bool | None = None) -> list[str]:
        """Ids of the agents that can be granted to a run, of one kind or of both, in the order in which they came."""
        found = self._idle[False] | self._idle[True] if bare is None else self._idle[bare]
        return sorted(found, key=self._came.__getitem__)

    def staying(self, run_id: str) -> int:
        """How many agents a run holds, without those that are going away."""
        return self._staying[run_id]


class Awaited(Set[tuple[int, int]]):
    """Slots that were asked for and in which no agent has connected: (number of the ask, index in it)."""

    def __init__(self) -> None:
        self._slots: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}  # by whether they are bare
        self._bare_asks: set[int] = set()

    def ask(self, ask: int, count: int, bare: bool) -> None:
        """Expect ``count`` agents of one kind by an ask."""
        if bare:
            self._bare_asks.add(ask)
        self._slots[bare] |= {(ask, index) for index in range(count)}

    def is_bare(self, ask: int) -> bool:
        """Whether the agents of an ask hold no GPU; also of one that has ended."""
        return ask in self._bare_asks

    def add(self, slot: tuple[int, int]) -> None:
        """Expect another agent in a slot that was asked for before."""
        self._slots[self.is_bare(slot[0])].add(slot)

    def discard(self, slot: tuple[int, int]) -> None:
        """Expect none in this slot."""
        self._slots[self.is_bare(slot[0])].discard(slot)

    def forget(self, ask: int) -> None:
        """Expect no more of an ask."""
        bare = self.is_bare(ask)
        self._slots[bare] = {slot for slot in self._slots[bare] if slot[0] != ask}

    def of(self, bare: bool) -> int:
        """How many are expected of one kind."""
        return len(self._slots[bare])

    def __contains__(self, slot: object) -> bool:
        return slot in self._slots[False] or slot in self._slots[True]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return chain(*self._slots.values())

    def __len__(self) -> int:
        return self.of(False) + self.of(True)
