"""Who holds which agent: a pure state machine over the agents of one application.

Runs demand agents and get all of them or none (two half-granted runs would wait for each other for ever); demands are
served in the order they came. A run may take more than it needs: what is left over goes to such runs, one agent at a
time, while nobody waits for what it needs. Agents that no run has used for ``keep_warm_s`` are dismissed, at once when
other Spark jobs of the application wait for a slot.

Some of what a run demands may be bare: agents without a GPU (``roster.py``). The two kinds are counted apart and asked
for apart; what holds of a demand holds of both together.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field, replace

from hopsml.cluster.gang.roster import AgentState, Awaited, Roster

RETRY_MOST_S = 60.0
ASIDE = ""  # in place of a run: agents whose slots are not good enough


@dataclass(frozen=True)
class Grant:
    """These idle agents belong to the run from now on."""

    run_id: str
    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class Submit:
    """Ask the cluster for this many more agents, all of one kind; the number of the ask comes back with each of them."""

    ask: int
    count: int
    bare: bool = False  # they need no GPU


@dataclass(frozen=True)
class DismissAgents:
    """End these agents: no run needs them, or they must go."""

    agent_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class CancelAsk:
    """Take an ask back: none of its agents has come, and no run wants one any more."""

    ask: int


Action = Grant | Submit | DismissAgents | CancelAsk


@dataclass
class Pool:
    """The agents of one application and the runs that want some; each method is one event."""

    keep_warm_s: float = 10.0
    agents: Roster = field(default_factory=Roster)
    demands: dict[str, int] = field(default_factory=dict)  # run -> wanted, besides bare ones; its order is the queue
    bare: dict[str, int] = field(default_factory=dict)  # run in that queue -> bare ones wanted
    most: dict[str, int] = field(default_factory=dict)  # run -> how many it takes, for runs that may grow
    refused: Counter[str] = field(default_factory=Counter)  # run -> agents that were set aside for it
    expected: Awaited = field(default_factory=Awaited)  # asked for and not connected
    asks: int = 0
    going: dict[int, bool] = field(default_factory=dict)  # asks that have not ended -> whether an agent of it has come
    singly: bool = False  # whether agents may stay away for long, because the cluster has to grow for them
    failures: int = 0  # asks in a row that ended without an agent
    retry_at: float | None = None
    limit: int | None = (
        None  # agents, at most, that are asked for; those that are there beyond it stay while they are used
    )

    # -------------------------------------------------------------------------------- events

    def demand(self, run_id: str, count: int, most: int | None = None, bare: int = 0) -> list[Action]:
        """Queue a run that wants ``count`` agents at once (0: none), ``bare`` ones among them, and takes up to ``most``,
        whenever they come.
        """
        if count:
            self.demands[run_id], self.bare[run_id] = count - bare, bare
        if most is not None:
            self.most[run_id] = most
        return self.serve() + self._cancel_surplus()

    def limited(self, count: int) -> list[Action]:
        """Ask for no more agents than so many in all from now on; runs wait for what is beyond."""
        self.limit = count
        return self.serve() + self._cancel_surplus()

    def withdraw(self, run_id: str, now: float) -> list[Action]:
        """Forget a run that is over: it wants no more, and the agents that it still holds are idle from now on."""
        self.demands.pop(run_id, None)
        self.bare.pop(run_id, None)
        self.most.pop(run_id, None)
        self.refused.pop(run_id, None)
        held = tuple(agent_id for agent_id, agent in self.agents.items() if agent.run_id == run_id)
        return self.returned(held, now) + self._cancel_surplus()

    def connected(self, agent_id: str, slot: tuple[int, int], executor_id: str, now: float) -> list[Action]:
        """Add an agent that has connected. ``slot``: (ask, index); where Spark retries a lost one, that of the lost one."""
        self.expected.discard(slot)
        if slot[0] in self.going:
            self.going[slot[0]] = True
        self.failures, self.retry_at = 0, None
        self.agents.put(agent_id, AgentState(slot, executor_id, idle_since=now, bare=self.expected.is_bare(slot[0])))
        return self.serve()

    def lost(self, agent_id: str, returns: bool) -> None:
        """An agent is gone; ``returns``: the cluster starts it again by itself, unless its ask has ended.

        ``serve`` says what follows, once its run knows: one that ends by it must not give it back, nor one that has not
        heard of it be granted another.
        """
        agent = self.agents.pop(agent_id)
        if agent is not None and returns and agent.slot[0] in self.going:
            self.expected.add(agent.slot)

    def retired(self, slot: tuple[int, int], failed_at: float | None = None) -> list[Action]:
        """Nobody else comes for this slot: its agents were lost so often that the cluster would give the whole ask up, or
        nothing starts them again. ``failed_at``: when, where it failed as of ``ask_ended``.
        """
        self.expected.discard(slot)
        if failed_at is not None:
            self._failed(failed_at)
        return self.serve()

    def ask_ended(self, ask: int, now: float, failed: bool = False) -> list[Action]:
        """Expect no more agents of this ask. After one that ``failed``, growth is asked for later and later again."""
        self.expected.forget(ask)
        self.going.pop(ask, None)
        if failed:
            self._failed(now)
        return self.serve()

    def _failed(self, now: float) -> None:
        self.failures += 1
        self.retry_at = now + min(RETRY_MOST_S, 2.0**self.failures)

    def returned(self, agent_ids: tuple[str, ...], now: float) -> list[Action]:
        """A run gives these agents back. Those that are going away are dismissed, the others are idle."""
        gone: list[Action] = []
        for agent_id in agent_ids:
            agent = self.agents.get(agent_id)
            if agent is not None:
                self.agents.put(agent_id, replace(agent, run_id=None, idle_since=now))
                gone += self.dismiss((agent_id,), agent.leaving) if agent.leaving else []
        return gone + self.serve()

    def leaves(self, agent_id: str, reason: str) -> None:
        """Mark an agent that a run holds as going away; ``serve`` finds a successor for it, once the run knows."""
        if agent := self.agents.get(agent_id):
            self.agents.put(agent_id, replace(agent, leaving=reason))

    def dismiss(self, agent_ids: tuple[str, ...], reason: str) -> list[Action]:
        """Remove these agents and have them ended, for instance because their node goes away."""
        known = tuple(agent_id for agent_id in agent_ids if self.agents.pop(agent_id) is not None)
        return [DismissAgents(known, reason)] if known else []

    def set_aside(self, run_id: str, agent_ids: tuple[str, ...]) -> list[Action]:
        """Keep these agents, which a run refuses, from all runs. Were they ended, the cluster would offer the same slots."""
        for agent_id in agent_ids:
            if agent := self.agents.get(agent_id):
                self.agents.put(agent_id, replace(agent, run_id=ASIDE))
        self.refused[run_id] += len(agent_ids)
        return self.serve()

    def ask_again(self, run_id: str, count: int, agent_ids: tuple[str, ...], now: float, bare: int = 0) -> list[Action]:
        """Let a run that was granted agents give these back and wait for as many anew, as of ``demand``, before all other
        runs.
        """
        self.demands = {run_id: count - bare, **self.demands}
        self.bare[run_id] = bare
        return self.returned(agent_ids, now)

    def tick(self, now: float, others_wait: bool = False) -> list[Action]:
        """Ask again after failures, dismiss idle agents. ``others_wait``: another job of the application lacks a slot."""
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
            if actions := self.serve():
                return actions
        if self.demands:
            return []
        patience = 0.0 if others_wait else self.keep_warm_s
        tired = tuple(one for one in self.idle() if now - self.agents[one].idle_since >= patience)
        if not tired:
            return []
        for agent_id in tired:
            self.agents.pop(agent_id)
        reason = "another job waits for the slot" if others_wait else f"idle for {self.keep_warm_s:g} s"
        return [DismissAgents(tired, reason)]

    # -------------------------------------------------------------------------------- rules

    def idle(self) -> list[str]:
        """Ids of the agents that no run holds and that stay, in the order in which they came."""
        return self.agents.idle()

    def serve(self) -> list[Action]:
        """Grant idle agents to the runs that wait, in the order of their demands; ask the cluster for those that lack."""
        actions: list[Action] = []
        for run_id, wanted in list(self.demands.items()):
            if self.agents.idle_of(False) < wanted or self.agents.idle_of(True) < self.bare[run_id]:
                break  # strict order: a small run that overtook for ever would starve a large one
            del self.demands[run_id]
            actions.append(self._grant(run_id, max(wanted, self._room(run_id)), self.bare.pop(run_id)))
        if not self.demands:
            actions += self._serve_growth()
        return [*actions, *self._make_room(), *self._ask(), *self._ask_bare()]

    def _ask(self) -> list[Action]:
        missing = -self.agents.idle_of(False) - self.expected.of(False)
        room = self._unasked()
        needed = min(room, sum(self.demands.values()) + missing)
        wanted = min(room, self._wanted() + missing) if self.retry_at is None else needed
        if not self.singly:  # all in one ask: Spark then spreads them over its executors
            return [self._submit(wanted)] if wanted > 0 else []
        # Those that may never come are asked for one by one, so that Spark can be told to forget them.
        whole = [self._submit(needed)] if needed > 0 else []
        return [*whole, *(self._submit(1) for _ in range(wanted - max(0, needed)))]

    def _ask_bare(self) -> list[Action]:
        """Behind the others: the cluster serves the older ask first, and more slots are good enough for a bare agent."""
        missing = sum(self.bare.values()) - self.agents.idle_of(True) - self.expected.of(True)
        missing = min(missing, self._unasked())
        return [self._submit(missing, bare=True)] if missing > 0 else []

    def _unasked(self) -> int:
        """How many more agents may be asked for."""
        return sys.maxsize if self.limit is None else max(0, self.limit - len(self.agents) - len(self.expected))

    def _make_room(self) -> list[Action]:
        """Dismiss idle agents that no run waits for, as many as are missing of the other kind: they may hold its cores."""
        surplus = {kind: self.agents.idle_of(kind) - self._waited_for(kind) for kind in (False, True)}
        actions: list[Action] = []
        for kind in (False, True):
            if (going := min(surplus[kind], -surplus[not kind])) > 0:
                actions += self.dismiss(
                    tuple(self.agents.idle(kind)[:going]), "a run waits for agents of the other kind"
                )
        return actions

    def _waited_for(self, bare: bool) -> int:
        return sum((self.bare if bare else self.demands).values())

    def _serve_growth(self) -> list[Action]:
        grants: list[Action] = []
        for run_id in self.most:
            if self.agents.idle_of(False) and (room := self._room(run_id)):
                grants.append(self._grant(run_id, room))
        return grants

    def _grant(self, run_id: str, most: int, bare: int = 0) -> Grant:
        agent_ids = self._spread(self.agents.idle(False))[:most]
        if bare:
            agent_ids += self._spread(self.agents.idle(True))[:bare]
        for agent_id in agent_ids:
            self.agents.put(agent_id, replace(self.agents[agent_id], run_id=run_id))
        return Grant(run_id, tuple(agent_ids))

    def _room(self, run_id: str) -> int:
        """How many more agents a run would take."""
        most, held = self.most.get(run_id, 0), self.agents.staying(run_id)
        # After as many refusals as it has workers others will hardly be better: not asked for without end.
        return max(0, most - held - max(0, self.refused[run_id] - most))

    def _wanted(self) -> int:
        """Agents that runs wait for or would take, besides bare ones."""
        return sum(self.demands.values()) + sum(
            max(0, self._room(run_id) - self.demands.get(run_id, 0)) for run_id in self.most
        )

    def _submit(self, count: int, bare: bool = False) -> Submit:
        self.asks += 1
        self.going[self.asks] = False
        self.expected.ask(self.asks, count, bare)
        return Submit(self.asks, count, bare)

    def _cancel_surplus(self) -> list[Action]:
        """Asks that nobody wants and of which no agent has come; one that has come is dismissed when idle."""
        wanted = {False: self._wanted(), True: self._waited_for(True)}
        surplus = {
            kind: self.expected.of(kind) - max(0, wanted[kind] - self.agents.idle_of(kind)) for kind in (False, True)
        }
        alive = {agent.slot[0] for agent in self.agents.values()}
        cancelled: list[Action] = []
        for ask in sorted({ask for ask, _ in self.expected} - alive, reverse=True):
            size, kind = sum(slot[0] == ask for slot in self.expected), self.expected.is_bare(ask)
            if size <= surplus[kind]:
                surplus[kind] -= size
                self.expected.forget(ask)
                self.going.pop(ask, None)
                cancelled.append(CancelAsk(ask))
        return cancelled

    def _spread(self, agent_ids: list[str]) -> list[str]:
        """The same agents, one of each executor before a second of any: a worker wants an executor of its own."""
        seen: Counter[str] = Counter()
        place: dict[str, int] = {}  # among those of its executor
        for agent_id in agent_ids:
            executor = self.agents[agent_id].executor_id
            place[agent_id] = seen[executor]
            seen[executor] += 1
        return sorted(agent_ids, key=place.__getitem__)
