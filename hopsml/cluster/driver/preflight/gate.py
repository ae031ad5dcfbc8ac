"""Pre-flight check, which decides which granted agents may take part in a run: a pure state machine, and its execution.

    granted ──(own figures there?)──▶ evaluated ──(neighbours exchanged bytes?)──▶ Pass | SetAside, and a request for others

A run with "warn" gets its agents at once, and notes findings. One with "enforce" or "strict" waits for the figures, for
at most ``FIGURES_S``: they arrive while the agents import the framework. A slot that fails is excluded, not released: its
agent continues to hold it, so that the cluster cannot offer the same slot again. With "strict" it also ends the run,
unless this has begun to train.

An evaluation compares all members of a run, so it is not repeated for each report: waiting agents are evaluated when
the last report for which they wait is there, a large group that trains already at the next tick.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hopsml.cluster.driver.active_run import ActiveRun, RunRequest
from hopsml.cluster.driver.preflight import rules
from hopsml.cluster.driver.preflight.rules import Fault, SlotLimits
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.driver.sessions import AgentSession
from hopsml.cluster.gang import events, pool
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.layout import host_key
from hopsml.cluster.shared.protocol import PeerProbed, PreflightFacts
from hopsml.cluster.shared.spec import PreflightMode

Pair = tuple[str, str]  # agent that connects, and the one it connects to
FIGURES_S = 10.0
SMALL = 64  # members; smaller groups that do not wait are evaluated at each report, so that short runs get the findings


@dataclass(frozen=True)
class AdmitAgents:
    """Admission of these agents to the run."""

    run_id: str
    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class RequestProbe:
    """Request that this agent exchanges bytes with the other one."""

    agent_id: str
    peer: str
    address: str


@dataclass(frozen=True)
class ExcludeAgents:
    """Exclusion of agents whose slots are not good enough for the run; no run may use them while it continues."""

    run_id: str
    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class ReplaceAgents:
    """Replacement of agents after some were refused: release these, and wait for ``count`` agents again."""

    run_id: str
    agent_ids: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class PublishWarning:
    """Message to be published to the observers of the run."""

    run_id: str
    text: str


@dataclass(frozen=True)
class RefuseRun:
    """End of a run before it trains: more slots were excluded than it has workers, or one with preflight="strict"."""

    run_id: str
    text: str


Action = AdmitAgents | RequestProbe | ExcludeAgents | ReplaceAgents | PublishWarning | RefuseRun


@dataclass
class _Group:
    """Agents of one run and the state of their check."""

    mode: PreflightMode
    size: int
    whole: bool  # all agents at once, or none
    connected: int  # members to which a worker has connections, itself among them
    has_begun: bool = False  # True if agents were admitted
    waiting: dict[str, None] = field(default_factory=dict)  # these three in order of arrival
    passed: dict[str, None] = field(default_factory=dict)
    aside: dict[str, None] = field(default_factory=dict)
    noted: set[tuple[str, str]] = field(default_factory=set)  # agent (or host) and rule that were noted
    deadline: float = 0.0
    silent: set[str] = field(default_factory=set)  # those of the waiting agents whose figures have not arrived
    meeting: set[Pair] = field(default_factory=set)  # exchanges that are awaited
    has_news: bool = False  # True if the next tick has to evaluate the group

    def has(self, agent_ids: Iterable[str]) -> bool:
        """Return True if one of these agents takes part in the run, or waits to."""
        return any(one in self.passed or one in self.waiting for one in agent_ids)

    def consequence(self, agent_id: str) -> str:
        """Return what happens because of a fault of this agent's slot, for messages."""
        if self.mode == "warn" or agent_id not in self.waiting:
            return "it is used nevertheless"
        return "the run is refused" if self.mode == "strict" and not self.has_begun else "it is excluded"

    def forget(self, agent_id: str) -> None:
        """Remove an agent that has disconnected."""
        for members in (self.waiting, self.passed, self.aside):
            members.pop(agent_id, None)
        self.silent.discard(agent_id)


@dataclass
class Gate:
    """State machine of the agents of one application and the runs that were granted some; each method is one event."""

    limits: SlotLimits = field(default_factory=SlotLimits)
    facts: dict[str, PreflightFacts] = field(default_factory=dict)
    own: dict[str, list[Fault]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    probes: dict[Pair, PeerProbed | None] = field(default_factory=dict)  # None: in progress
    peers: dict[str, set[str]] = field(default_factory=dict)  # agents with which there is a probe
    groups: dict[str, _Group] = field(default_factory=dict)

    # -------------------------------------------------------------------------------- events

    def add_run(self, run_id: str, mode: PreflightMode, size: int, whole: bool, connected: bool) -> None:
        """Add a run.

        Args:
            run_id: The run.
            mode: Treatment of slots that fail.
            size: Largest number of agents that it may have.
            whole: True if it needs all at once.
            connected: True if its workers have connections to each other.
        """
        if mode != "off":
            self.groups[run_id] = _Group(mode, size, whole, size if connected else 1)

    def check_granted(self, run_id: str, agent_ids: tuple[str, ...], now: float) -> list[Action]:
        """Check agents that the pool has granted to the run, and return the actions to carry out."""
        group = self.groups.get(run_id)
        if group is None:
            return [AdmitAgents(run_id, agent_ids)]
        if group.mode == "warn":
            group.passed |= dict.fromkeys(agent_ids)
            return [AdmitAgents(run_id, agent_ids), *self._news(agent_ids, now)]
        group.waiting |= dict.fromkeys(agent_ids)
        group.silent.update(one for one in agent_ids if one not in self.facts)
        group.deadline = now + FIGURES_S
        return self._advance(run_id, now)

    def facts_received(
        self, agent_id: str, place: str, facts: PreflightFacts, admitted: float, received: float, now: float
    ) -> list[Action]:
        """Process an agent's figures.

        Args:
            agent_id: The agent.
            place: Its name in messages to users.
            facts: Its figures.
            admitted: When the driver admitted it, by its clock, in seconds since the epoch.
            received: When the driver read the figures, likewise.
            now: Monotonic time in seconds.

        Returns:
            The actions to carry out.
        """
        self.facts[agent_id], self.places[agent_id] = facts, place
        self.own[agent_id] = rules.own_faults(facts, admitted, received, self.limits)
        for group in self.groups.values():
            group.silent.discard(agent_id)
        return self._news((agent_id,), now)

    def probe_ended(self, agent_id: str, result: PeerProbed, now: float) -> list[Action]:
        """Process the result of an exchange; a successful one matters only to a run that waits for it."""
        pair = (agent_id, result.agent_id)
        if pair not in self.probes:
            return []
        self.probes[pair] = result
        for group in self.groups.values():
            group.meeting.discard(pair)
        return self._news(pair, now, waited_for=not rules.exchange_failed(result, self.limits))

    def agent_left(self, agent_id: str, now: float) -> list[Action]:
        """Remove an agent that has disconnected; a group that needs all agents at once waits again for all of them."""
        for table in (self.facts, self.own, self.places):
            table.pop(agent_id, None)
        met: set[Pair] = set()
        for other in self.peers.pop(agent_id, ()):
            self.peers[other].discard(agent_id)
            met |= {(agent_id, other), (other, agent_id)}
        for pair in met:
            self.probes.pop(pair, None)
        actions: list[Action] = []
        for run_id, group in self.groups.items():
            concerned = group.has((agent_id,))
            broken = group.whole and agent_id in group.waiting
            group.forget(agent_id)
            group.meeting -= met
            if broken:
                actions.append(ReplaceAgents(run_id, tuple(group.waiting), group.size))
                group.waiting.clear()
                group.silent.clear()
                group.meeting.clear()
            if concerned:
                actions += self._evaluate_if_due(run_id, group, now)
        return actions

    def remove_run(self, run_id: str) -> tuple[str, ...]:
        """Remove a run that has ended, and return the agents that were excluded for it."""
        group = self.groups.pop(run_id, None)
        return tuple(group.aside) if group is not None else ()

    def remove_agents(self, agent_ids: Iterable[str]) -> None:
        """Remove these agents from their runs, which have released them and continue."""
        for group in self.groups.values():
            for one in agent_ids:
                group.passed.pop(one, None)

    def tick(self, now: float) -> list[Action]:
        """Evaluate groups with new reports, and those whose time for figures is up."""
        due = [
            run_id
            for run_id, group in self.groups.items()
            if group.has_news or (group.waiting and now >= group.deadline)
        ]
        return [action for run_id in due for action in self._advance(run_id, now)]

    # -------------------------------------------------------------------------------- rules

    def _news(self, agent_ids: Iterable[str], now: float, waited_for: bool = False) -> list[Action]:
        """Evaluate the groups of these agents after a report.

        ``waited_for``: only groups that still wait are concerned.
        """
        concerned = [
            (run_id, group)
            for run_id, group in self.groups.items()
            if (group.waiting or not waited_for) and group.has(agent_ids)
        ]
        return [action for run_id, group in concerned for action in self._evaluate_if_due(run_id, group, now)]

    def _evaluate_if_due(self, run_id: str, group: _Group, now: float) -> list[Action]:
        """Evaluate a group at once if it is due, else at a later report or tick."""
        if group.waiting:
            is_due = not group.silent and not group.meeting
        else:
            is_due = len(group.passed) <= SMALL
            group.has_news = True
        return self._advance(run_id, now) if is_due else []

    def _advance(self, run_id: str, now: float) -> list[Action]:
        """Evaluate a group, unless reports are missing for which it still has to wait."""
        group = self.groups[run_id]
        group.has_news = False
        members = [*group.passed, *group.waiting]
        late = now >= group.deadline
        if group.silent and not late:
            return []
        known = {one: self.facts[one] for one in members if one in self.facts}
        faults = {
            one: found
            for one, facts in known.items()
            if (found := self.own[one] + rules.group_faults(facts, group.connected, self.limits))
        }
        for one in group.waiting:
            if one not in known:
                text = f"silence: no measurements were received within {FIGURES_S:g} s; check the log of the agent"
                faults.setdefault(one, []).append(Fault("silence", text))
        compared = (rules.version_faults(known), rules.core_faults(known, self.limits))
        for one, more in [item for found in compared for item in found.items()]:
            faults.setdefault(one, []).extend(more)
        actions, pairs = self._exchange([one for one in known if one not in faults])
        group.meeting = {
            pair for pair in pairs if self.probes[pair] is None and not group.waiting.keys().isdisjoint(pair)
        }
        if group.meeting and not late:
            return actions
        done = [(asker, probe) for asker, peer in pairs if (probe := self.probes[asker, peer]) is not None]
        for one, more in rules.pair_faults(done, self._name, lambda one: self.facts[one].host, self.limits).items():
            faults.setdefault(one, []).extend(more)
        return actions + self._conclude(run_id, group, faults)

    def _exchange(self, members: list[str]) -> tuple[list[Action], list[Pair]]:
        """Return the probes to be started among these members, and all pairs of neighbours in their ring."""
        ring = sorted(members, key=lambda one: (host_key(self.facts[one].host), self.facts[one].door))
        wanted = [(one, ring[number - 1]) for number, one in enumerate(ring)] if len(ring) > 1 else []
        if len(ring) == 2:
            wanted = wanted[:1]
        actions: list[Action] = []
        pairs = []
        for one, other in wanted:
            pair = (other, one) if (other, one) in self.probes else (one, other)
            pairs.append(pair)
            if pair not in self.probes:
                self.probes[pair] = None
                self.peers.setdefault(one, set()).add(other)
                self.peers.setdefault(other, set()).add(one)
                facts = self.facts[pair[1]]
                host = f"[{facts.host}]" if ":" in facts.host else facts.host
                actions.append(RequestProbe(pair[0], pair[1], f"{host}:{facts.door}"))
        return actions, pairs

    def _conclude(self, run_id: str, group: _Group, faults: dict[str, list[Fault]]) -> list[Action]:
        """Publish the findings, and admit or exclude the waiting agents."""
        actions: list[Action] = []
        members = [self.facts[one] for one in (*group.passed, *group.waiting) if one in self.facts]
        warnings = [("driver", rules.driver_warnings(members))]
        if group.size > 1:  # a single worker starts no server
            warnings.append(("shared", rules.shared_host_warnings(members)))
        for kind, texts in warnings:
            for host, text in texts.items():
                if (host, kind) not in group.noted:
                    group.noted.add((host, kind))
                    actions.append(PublishWarning(run_id, f"preflight: {text}"))
        for one, found in faults.items():
            for fault in found:
                of_host = fault.rule == rules.CLOCK_SKEW and group.mode == "warn"  # all its slots have it
                key = (self.facts[one].host if of_host else one, fault.rule)
                if key not in group.noted:
                    group.noted.add(key)
                    end = group.consequence(one)
                    actions.append(PublishWarning(run_id, f"preflight: {self._name(one)}: {fault.text} ({end})"))
        return actions + self._decide(run_id, group, faults) if group.waiting else actions

    def _decide(self, run_id: str, group: _Group, faults: dict[str, list[Fault]]) -> list[Action]:
        """Admit or exclude the waiting agents, or refuse the run."""
        actions: list[Action] = []
        bad = tuple(one for one in group.waiting if one in faults)
        good = tuple(one for one in group.waiting if one not in faults)
        group.waiting.clear()
        group.silent.clear()
        group.meeting.clear()
        if bad:
            group.aside |= dict.fromkeys(bad)
            actions.append(ExcludeAgents(run_id, bad))
        if bad and group.mode == "strict" and not group.has_begun:
            found = "; ".join(f"{self._name(one)}: {fault.text}" for one in bad for fault in faults[one])
            failed = f"{len(bad)} of {len(bad) + len(good)} slots failed the preflight (preflight='strict')"
            actions.append(RefuseRun(run_id, f"{failed}, so nothing was trained: {found}"))
        elif bad and len(group.aside) > group.size and not group.passed and (group.whole or not good):
            why = f"{len(group.aside)} slots failed the preflight (preflight='{group.mode}'), the last one: "
            actions.append(RefuseRun(run_id, why + f"{self._name(bad[-1])}: {faults[bad[-1]][0].text}"))
        elif bad and group.whole:
            actions.append(ReplaceAgents(run_id, good, group.size))
        elif good:
            group.passed |= dict.fromkeys(good)
            group.has_begun = True
            actions.append(AdmitAgents(run_id, good))
        return actions

    def _name(self, agent_id: str) -> str:
        """Return an agent's name in messages to users."""
        return self.places.get(agent_id, agent_id)


class Inspection:
    """Pre-flight check between the pool, which grants agents, and the runs, which get those that pass.

    Used on the coordinator's event loop.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSession],
        runs: Mapping[str, ActiveRun],
        agent_pool: pool.Pool,
        carry_out: Callable[[list[pool.Action]], None],
        grant: Callable[[ActiveRun, tuple[str, ...]], None],
        tell: Callable[[str, events.Event], None],
    ) -> None:
        """Use the coordinator's tables and pool.

        Args:
            agents: Connected agents by id.
            runs: Active runs by id.
            agent_pool: The pool of agents.
            carry_out: Function that carries out actions of the pool.
            grant: Function that gives a run the agents that have passed.
            tell: Function that passes an event to a run's group.
        """
        self._agents, self._runs, self._pool = agents, runs, agent_pool
        self._carry_out, self._grant, self._tell = carry_out, grant, tell
        self._gate = Gate()

    def add_run(self, request: RunRequest) -> None:
        """Add a run that has begun."""
        spec = request.spec
        group = spec.group
        self._gate.add_run(request.run_id, spec.preflight, group.size, not group.changes, group.collective)

    def check_granted(self, run_id: str, agent_ids: tuple[str, ...]) -> None:
        """Check agents that the pool has granted to the run, which gets those that pass."""
        self._do(self._gate.check_granted(run_id, agent_ids, time.monotonic()))

    def message_received(self, session: AgentSession, message: protocol.PreflightFacts | protocol.PeerProbed) -> None:
        """Process an agent's figures, or the result of an exchange with a neighbour."""
        if isinstance(message, protocol.PreflightFacts):
            place = f"the slot of agent {session.agent_id} on {session.hello.machine} ({session.hello.executor_id})"
            received, now = time.time(), time.monotonic()
            self._do(self._gate.facts_received(session.agent_id, place, message, session.admitted, received, now))
        else:
            self._do(self._gate.probe_ended(session.agent_id, message, time.monotonic()))

    def agent_left(self, agent_id: str) -> None:
        """Remove an agent that has disconnected."""
        self._do(self._gate.agent_left(agent_id, time.monotonic()))

    def remove_agents(self, agent_ids: tuple[str, ...]) -> None:
        """Remove agents from their run, which has released them."""
        self._gate.remove_agents(agent_ids)

    def remove_run(self, run_id: str) -> None:
        """Dismiss the agents that were excluded for a run that has ended.

        Those that it held are released separately.
        """
        if aside := self._gate.remove_run(run_id):
            self._carry_out(self._pool.dismiss(aside, "its slot failed the preflight"))

    def tick(self) -> None:
        """Evaluate the groups that are due."""
        self._do(self._gate.tick(time.monotonic()))

    def _do(self, actions: list[Action]) -> None:
        """Carry out actions of the gate."""
        for action in actions:
            if isinstance(action, RequestProbe):
                if session := self._agents.get(action.agent_id):
                    session.post(protocol.ProbePeer(action.peer, action.address))
                continue
            run = self._runs.get(action.run_id)
            if run is None:
                continue
            match action:
                case AdmitAgents():
                    self._grant(run, action.agent_ids)
                case ExcludeAgents():
                    self._carry_out(self._pool.exclude_agents(run.run_id, action.agent_ids))
                case ReplaceAgents():
                    now, bare = time.monotonic(), run.request.bare
                    self._carry_out(
                        self._pool.request_replacements(run.run_id, action.count, action.agent_ids, now, bare)
                    )
                case PublishWarning():
                    run.state.publish(Change("note", text=action.text))
                case RefuseRun():
                    self._tell(run.run_id, events.Refused(action.text, "slots"))
