"""Assignment of agents to runs: a pure state machine over the agents of one application.

A run demands agents and gets all of them or none, since two runs that each hold a part would wait for each other for
ever; demands are served in order of arrival. A run may accept more agents than it needs: surplus agents are granted to
such runs while no run waits for agents that it needs. Agents that no run has used for ``keep_warm_s`` are dismissed, or
at once when other Spark jobs of the application wait for a slot.

A part of a demand may be bare: agents without a GPU (``roster.py``). The two kinds are counted and requested
separately; a demand is met when both are available.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hopsml.cluster.gang.roster import AgentState, AwaitedSlots, Roster
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, IndependentGroup


@dataclass(frozen=True, slots=True)
class SlotDemand:
    """Smallest number of slots with which a run can work, and the number that it requests."""

    fewest: int
    most: int


def slot_demand(group: AnyGroup, asked: int) -> SlotDemand:
    """Return the slot demand of a run with this group that requests ``asked`` workers now."""
    if isinstance(group, ElasticGroup):
        return SlotDemand(min(group.minimum, asked), asked)
    return (
        SlotDemand(min(1, asked), asked) if isinstance(group, IndependentGroup) else SlotDemand(group.size, group.size)
    )


def shares(slots: int, demands: Sequence[SlotDemand]) -> list[int]:
    """Return for each run how many workers it may have.

    While enough slots remain, each run gets its smallest number, in order; then the earlier runs get more. A run for
    which not enough remain gets its smallest number as well: it waits for these slots.

    Args:
        slots: Slots of all runs together.
        demands: Demands of the runs in the order in which they began.
    """
    left, found = slots, []
    for one in demands:
        found.append(one.fewest if one.fewest <= left else -1)
        left -= max(0, found[-1])
    for number, one in enumerate(demands):
        if found[number] >= 0:
            more = min(one.most - one.fewest, left)
            found[number], left = found[number] + more, left - more
        else:
            found[number] = one.fewest
    return found


RETRY_MOST_S = 60.0
ASIDE = ""  # run id of agents whose slots failed the pre-flight check of a run, and which no run may use


@dataclass(frozen=True)
class Grant:
    """Assignment of these idle agents to a run."""

    run_id: str
    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class SubmitAgentRequest:
    """Request for ``count`` more agents of one kind; each agent reports the request's number (``request_id``)."""

    request_id: int
    count: int
    bare: bool = False  # True if they need no GPU


@dataclass(frozen=True)
class DismissAgents:
    """Dismissal of agents that no run needs, or that have to end."""

    agent_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class CancelAgentRequest:
    """Cancellation of an agent request of which no agent has connected and which no run needs any more."""

    request_id: int


Action = Grant | SubmitAgentRequest | DismissAgents | CancelAgentRequest


@dataclass
class Pool:
    """State machine of the agents of one application and the runs that need some; each method is one event."""

    keep_warm_s: float = 10.0
    agents: Roster = field(default_factory=Roster)
    demands: dict[str, int] = field(default_factory=dict)  # run -> wanted, without bare ones; its order is the queue
    bare: dict[str, int] = field(default_factory=dict)  # run in that queue -> bare ones wanted
    most: dict[str, int] = field(default_factory=dict)  # run -> how many it accepts, for runs that may grow
    refused: Counter[str] = field(default_factory=Counter)  # run -> agents that were excluded for it
    expected: AwaitedSlots = field(default_factory=AwaitedSlots)  # requested and not connected
    requests_sent: int = 0
    # agent requests that have not ended -> True if an agent of it has connected
    going: dict[int, bool] = field(default_factory=dict)
    closed: set[tuple[int, int]] = field(default_factory=set)  # slots of these requests without a further agent
    singly: bool = False  # True if agents may take long to connect, because the cluster has to grow for them
    failures: int = 0  # agent requests in a row that ended without an agent
    retry_at: float | None = None
    limit: int | None = None  # largest number of agents that is requested; those beyond it stay while they are used

    # -------------------------------------------------------------------------------- events

    def add_run(self, run_id: str, count: int, most: int | None = None, bare: int = 0) -> list[Action]:
        """Queue a run that needs agents.

        Args:
            run_id: The run.
            count: Agents that it needs, granted all together; 0: none, only ``most`` changes.
            most: Largest number of agents that it accepts, whenever they connect; None: unchanged.
            bare: How many of ``count`` need no GPU.

        Returns:
            The actions to carry out.
        """
        if count:
            self.demands[run_id], self.bare[run_id] = count - bare, bare
        if most is not None:
            self.most[run_id] = most
        return self.grant_idle_agents() + self._cancel_surplus()

    def limit_agents(self, count: int) -> list[Action]:
        """Limit the total number of agents that are requested from now on; runs wait for agents beyond it."""
        self.limit = count
        return self.grant_idle_agents() + self._cancel_surplus()

    def remove_run(self, run_id: str, now: float) -> list[Action]:
        """Remove a run that has ended: it needs no agents, and those that it still holds become idle."""
        self.demands.pop(run_id, None)
        self.bare.pop(run_id, None)
        self.most.pop(run_id, None)
        self.refused.pop(run_id, None)
        held = tuple(agent_id for agent_id, agent in self.agents.items() if agent.run_id == run_id)
        return self.take_back_agents(held, now) + self._cancel_surplus()

    def add_agent(self, agent_id: str, slot: tuple[int, int], executor_id: str, now: float) -> list[Action]:
        """Add an agent that has connected.

        Args:
            agent_id: The agent.
            slot: (number of the agent request, index in it); if Spark retries a lost agent, that of the lost one.
            executor_id: The executor on which it runs.
            now: Monotonic time in seconds.

        Returns:
            The actions to carry out.
        """
        self.expected.discard(slot)
        if slot[0] in self.going:
            self.going[slot[0]] = True
        self.failures, self.retry_at = 0, None
        self.agents.put(agent_id, AgentState(slot, executor_id, idle_since=now, bare=self.expected.is_bare(slot[0])))
        return self.grant_idle_agents()

    def remove_agent(self, agent_id: str, returns: bool) -> None:
        """Remove an agent that has disconnected.

        The caller calls ``grant_idle_agents`` only after the agent's run has processed the loss: a run that ends because of
        it must not release the lost agent, and a run that has not processed it must not be granted another.

        Args:
            agent_id: The agent.
            returns: True if the cluster starts it again by itself, unless its agent request has ended.
        """
        agent = self.agents.pop(agent_id)
        if agent is not None and returns and agent.slot[0] in self.going and agent.slot not in self.closed:
            self.expected.add(agent.slot)

    def close_slot(self, slot: tuple[int, int]) -> None:
        """Expect no further agent in this slot once the connected one has ended."""
        if slot[0] in self.going:
            self.closed.add(slot)

    def retire_slot(self, slot: tuple[int, int], failed_at: float | None = None) -> list[Action]:
        """Expect no further agent in this slot.

        Its agents were lost so often that the cluster would cancel the whole agent request, or nothing starts them
        again.

        Args:
            slot: (number of the agent request, index in it).
            failed_at: Monotonic time of the failure, if it counts as one as in ``request_ended``.

        Returns:
            The actions to carry out.
        """
        self.expected.discard(slot)
        if failed_at is not None:
            self._failed(failed_at)
        return self.grant_idle_agents()

    def request_ended(self, request_id: int, now: float, failed: bool = False) -> list[Action]:
        """Expect no more agents of this request; after one that ``failed``, growth is requested with a delay.

        The delay doubles with each failure in a row, up to ``RETRY_MOST_S``.
        """
        self.expected.forget(request_id)
        self.going.pop(request_id, None)
        self.closed = {slot for slot in self.closed if slot[0] != request_id}
        if failed:
            self._failed(now)
        return self.grant_idle_agents()

    def _failed(self, now: float) -> None:
        """Count a failed request, and set the time of the next one for growth."""
        self.failures += 1
        self.retry_at = now + min(RETRY_MOST_S, 2.0**self.failures)

    def take_back_agents(self, agent_ids: tuple[str, ...], now: float) -> list[Action]:
        """Take these agents back from a run: those that are about to end are dismissed, the others become idle."""
        gone: list[Action] = []
        for agent_id in agent_ids:
            agent = self.agents.get(agent_id)
            if agent is not None:
                self.agents.put(agent_id, replace(agent, run_id=None, idle_since=now))
                gone += self.dismiss((agent_id,), agent.leaving) if agent.leaving else []
        return gone + self.grant_idle_agents()

    def mark_leaving(self, agent_id: str, reason: str) -> None:
        """Mark an agent that a run holds as about to end.

        The next ``grant_idle_agents`` finds a successor for it; call that after the run has processed the warning.
        """
        if agent := self.agents.get(agent_id):
            self.agents.put(agent_id, replace(agent, leaving=reason))

    def dismiss(self, agent_ids: tuple[str, ...], reason: str) -> list[Action]:
        """Remove these agents and dismiss them, for instance because their node goes away."""
        known = tuple(agent_id for agent_id in agent_ids if self.agents.pop(agent_id) is not None)
        return [DismissAgents(known, reason)] if known else []

    def exclude_agents(self, run_id: str, agent_ids: tuple[str, ...]) -> list[Action]:
        """Exclude these agents, which a run has refused, from all runs.

        If they were ended, the cluster would offer the same slots again.
        """
        for agent_id in agent_ids:
            if agent := self.agents.get(agent_id):
                self.agents.put(agent_id, replace(agent, run_id=ASIDE))
        self.refused[run_id] += len(agent_ids)
        return self.grant_idle_agents()

    def request_replacements(
        self, run_id: str, count: int, agent_ids: tuple[str, ...], now: float, bare: int = 0
    ) -> list[Action]:
        """Take back the agents that were granted to a run, and queue its demand again before those of all other runs.

        Args:
            run_id: The run.
            count: Agents that it needs, as in ``add_run``.
            agent_ids: Agents that were granted to it.
            now: Monotonic time in seconds.
            bare: How many of ``count`` need no GPU.

        Returns:
            The actions to carry out.
        """
        self.demands = {run_id: count - bare, **self.demands}
        self.bare[run_id] = bare
        return self.take_back_agents(agent_ids, now)

    def tick(self, now: float, is_contended: bool = False) -> list[Action]:
        """Repeat agent requests after failures, and dismiss idle agents.

        Args:
            now: Monotonic time in seconds.
            is_contended: True if another job of the application lacks a slot.

        Returns:
            The actions to carry out.
        """
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
            if actions := self.grant_idle_agents():
                return actions
        if self.demands:
            return []
        patience = 0.0 if is_contended else self.keep_warm_s
        tired = tuple(one for one in self.idle() if now - self.agents[one].idle_since >= patience)
        if not tired:
            return []
        for agent_id in tired:
            self.agents.pop(agent_id)
        reason = "another job waits for the slot" if is_contended else f"idle for {self.keep_warm_s:g} s"
        return [DismissAgents(tired, reason)]

    # -------------------------------------------------------------------------------- rules

    def idle(self) -> list[str]:
        """Return the ids of the agents that no run holds and that stay, in order of connection."""
        return self.agents.idle()

    def grant_idle_agents(self) -> list[Action]:
        """Grant idle agents to waiting runs in the order of their demands, and request missing ones."""
        actions: list[Action] = []
        for run_id, wanted in list(self.demands.items()):
            if self.agents.idle_count_of(False) < wanted or self.agents.idle_count_of(True) < self.bare[run_id]:
                break  # strict order: a small run that overtook for ever would starve a large one
            del self.demands[run_id]
            actions.append(self._grant(run_id, max(wanted, self._room(run_id)), self.bare.pop(run_id)))
        if not self.demands:
            actions += self._serve_growth()
        return [*actions, *self._make_room(), *self._request_agents(), *self._request_bare_agents()]

    def _request_agents(self) -> list[Action]:
        """Request the agents, other than bare ones, that waiting and growing runs lack."""
        missing = -self.agents.idle_count_of(False) - self.expected.count_of(False)
        room = self._unasked()
        needed = min(room, sum(self.demands.values()) + missing)
        wanted = min(room, self._wanted() + missing) if self.retry_at is None else needed
        if not self.singly:  # all in one request: Spark then spreads them over its executors
            return [self._submit(wanted)] if wanted > 0 else []
        # Agents that may never come are requested one by one, so that Spark can cancel each request.
        indivisible = [self._submit(needed)] if needed > 0 else []
        return [*indivisible, *(self._submit(1) for _ in range(wanted - max(0, needed)))]

    def _request_bare_agents(self) -> list[Action]:
        """Request missing bare agents.

        After the others: the cluster serves the older request first, and more slots are good enough for a bare agent.
        """
        missing = sum(self.bare.values()) - self.agents.idle_count_of(True) - self.expected.count_of(True)
        missing = min(missing, self._unasked())
        return [self._submit(missing, bare=True)] if missing > 0 else []

    def _unasked(self) -> int:
        """Return how many more agents may be requested."""
        return sys.maxsize if self.limit is None else max(0, self.limit - len(self.agents) - len(self.expected))

    def _make_room(self) -> list[Action]:
        """Dismiss surplus idle agents of one kind if the other kind is short: they may hold its cores."""
        surplus = {kind: self.agents.idle_count_of(kind) - self._waited_for(kind) for kind in (False, True)}
        actions: list[Action] = []
        for kind in (False, True):
            if (going := min(surplus[kind], -surplus[not kind])) > 0:
                actions += self.dismiss(
                    tuple(self.agents.idle(kind)[:going]), "a run waits for agents of the other kind"
                )
        return actions

    def _waited_for(self, bare: bool) -> int:
        """Return how many agents of one kind the queued runs need."""
        return sum((self.bare if bare else self.demands).values())

    def _serve_growth(self) -> list[Action]:
        """Grant idle agents to runs that may grow."""
        grants: list[Action] = []
        for run_id in self.most:
            if self.agents.idle_count_of(False) and (room := self._room(run_id)):
                grants.append(self._grant(run_id, room))
        return grants

    def _grant(self, run_id: str, most: int, bare: int = 0) -> Grant:
        """Grant up to ``most`` idle agents with GPUs and ``bare`` idle ones without to a run."""
        agent_ids = self._spread(self.agents.idle(False))[:most]
        if bare:
            agent_ids += self._spread(self.agents.idle(True))[:bare]
        for agent_id in agent_ids:
            self.agents.put(agent_id, replace(self.agents[agent_id], run_id=run_id))
        return Grant(run_id, tuple(agent_ids))

    def _room(self, run_id: str) -> int:
        """Return how many more agents a run would accept."""
        most, held = self.most.get(run_id, 0), self.agents.staying_count(run_id)
        # After as many refusals as it has workers, further agents will hardly be better: stop requesting.
        return max(0, most - held - max(0, self.refused[run_id] - most))

    def _wanted(self) -> int:
        """Return how many agents, other than bare ones, runs wait for or would accept."""
        return sum(self.demands.values()) + sum(
            max(0, self._room(run_id) - self.demands.get(run_id, 0)) for run_id in self.most
        )

    def _submit(self, count: int, bare: bool = False) -> SubmitAgentRequest:
        """Register a new agent request, and return its action."""
        self.requests_sent += 1
        self.going[self.requests_sent] = False
        self.expected.add_slots(self.requests_sent, count, bare)
        return SubmitAgentRequest(self.requests_sent, count, bare)

    def _cancel_surplus(self) -> list[Action]:
        """Cancel surplus agent requests without a connected agent; connected ones are dismissed when idle."""
        wanted = {False: self._wanted(), True: self._waited_for(True)}
        surplus = {
            kind: self.expected.count_of(kind) - max(0, wanted[kind] - self.agents.idle_count_of(kind))
            for kind in (False, True)
        }
        alive = {agent.slot[0] for agent in self.agents.values()}
        cancelled: list[Action] = []
        for request_id in sorted({request_id for request_id, _ in self.expected} - alive, reverse=True):
            size, kind = sum(slot[0] == request_id for slot in self.expected), self.expected.is_bare(request_id)
            if size <= surplus[kind]:
                surplus[kind] -= size
                self.expected.forget(request_id)
                self.going.pop(request_id, None)
                cancelled.append(CancelAgentRequest(request_id))
        return cancelled

    def _spread(self, agent_ids: list[str]) -> list[str]:
        """Return the same agents, one of each executor before a second of any, as workers should not share one."""
        seen: Counter[str] = Counter()
        place: dict[str, int] = {}  # index among those of its executor
        for agent_id in agent_ids:
            executor = self.agents[agent_id].executor_id
            place[agent_id] = seen[executor]
            seen[executor] += 1
        return sorted(agent_ids, key=place.__getitem__)
