"""Tables of the agents of one application: the connected ones with the run that holds each, and the expected ones.

Counts are maintained as agents change: with a thousand agents that connect one by one, counting all of them at each
event would take a million steps.

Agents are of two kinds: those with everything that the application's slots have, and bare ones, which hold no GPU. If
slots have no GPU, or the cluster cannot distinguish the kinds, no agent is bare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class AgentState:
    """State of one agent: its slot, the run that holds it, and why it is about to end, if it is."""

    slot: tuple[int, int]  # number of the agent request (ask), index in it
    executor_id: str
    run_id: str | None = None  # run that holds it; None: it is idle
    idle_since: float = 0.0
    leaving: str = ""  # why it is about to end; a successor may be requested
    bare: bool = False  # True if it holds no GPU

    @property
    def is_idle(self) -> bool:
        """True if it can be granted to a run."""
        return self.run_id is None and not self.leaving


class Roster(Mapping[str, AgentState]):
    """Mapping of agent ids to their states, in order of connection, with counts of idle and held agents."""

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
        """Add an agent, or replace its state."""
        if not self._forget(agent_id):
            self._arrivals += 1
            self._came[agent_id] = self._arrivals
        self._agents[agent_id] = agent
        if agent.is_idle:
            self._idle[agent.bare].add(agent_id)
        elif agent.run_id is not None and not agent.leaving:
            self._staying[agent.run_id] += 1

    def pop(self, agent_id: str) -> AgentState | None:
        """Remove an agent and return its state; None if it is not in the roster."""
        agent = self._forget(agent_id)
        if agent is not None:
            del self._agents[agent_id], self._came[agent_id]
        return agent

    def _forget(self, agent_id: str) -> AgentState | None:
        """Remove an agent from the counts and return its state; None if it is not in the roster."""
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
        """Number of agents that can be granted to a run."""
        return self.idle_count_of(False) + self.idle_count_of(True)

    def idle_count_of(self, bare: bool) -> int:
        """Return the number of agents of one kind that can be granted to a run."""
        return len(self._idle[bare])

    def idle(self, bare: bool | None = None) -> list[str]:
        """Return the ids of idle agents in order of connection; ``bare`` selects one kind, None both."""
        found = self._idle[False] | self._idle[True] if bare is None else self._idle[bare]
        return sorted(found, key=self._came.__getitem__)

    def staying_count(self, run_id: str) -> int:
        """Return the number of agents that a run holds, without those that are about to end."""
        return self._staying[run_id]


class AwaitedSlots(Set[tuple[int, int]]):
    """Set of slots, as (number of the agent request, index in it), that wait for a requested agent to connect."""

    def __init__(self) -> None:
        self._slots: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}  # by whether they are bare
        self._bare_requests: set[int] = set()

    def add_slots(self, request_id: int, count: int, bare: bool) -> None:
        """Add the slots of a new agent request for ``count`` agents of one kind."""
        if bare:
            self._bare_requests.add(request_id)
        self._slots[bare] |= {(request_id, index) for index in range(count)}

    def is_bare(self, request_id: int) -> bool:
        """Return True if the agents of an agent request (ask) hold no GPU; also valid after the request has ended."""
        return request_id in self._bare_requests

    def add(self, slot: tuple[int, int]) -> None:
        """Expect another agent in a slot that was requested before."""
        self._slots[self.is_bare(slot[0])].add(slot)

    def discard(self, slot: tuple[int, int]) -> None:
        """Remove a slot: no agent is expected in it any more."""
        self._slots[self.is_bare(slot[0])].discard(slot)

    def forget(self, request_id: int) -> None:
        """Remove all slots of an agent request (ask)."""
        bare = self.is_bare(request_id)
        self._slots[bare] = {slot for slot in self._slots[bare] if slot[0] != request_id}

    def count_of(self, bare: bool) -> int:
        """Return the number of expected agents of one kind."""
        return len(self._slots[bare])

    def __contains__(self, slot: object) -> bool:
        return slot in self._slots[False] or slot in self._slots[True]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return chain(*self._slots.values())

    def __len__(self) -> int:
        return self.count_of(False) + self.count_of(True)
