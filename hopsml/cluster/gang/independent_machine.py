"""State machine of a group of independent members: trial slots (lanes), each of which runs one trial after another.

    WAITING ──an agent──▶ FORMING ──a lane began──▶ RUNNING ──all done─▶ STOPPING ──▶ FINISHED | CANCELLED
       ▲                                              │ the last one is lost
       └──────────────────────────────────────────────┘     deadline: FAILED

An agent that is granted gets its worker at once, and another one when that one dies; the loss of a worker affects no
other. Every start of a worker is a new trial slot (lane): its number, which only grows, is its rank and its generation.
A host on which workers die repeatedly without having sent a message is excluded for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.gang import events
from hopsml.cluster.gang.events import Action, ConcludeRun, Phase
from hopsml.cluster.gang.machine import COMMON, LIVE, Exclusions, GroupMachine, MemberState, Table, table
from hopsml.cluster.shared.spec import IndependentGroup

FRUITLESS_LIMIT = 5  # workers in a row that died on a host without having sent a message


@dataclass
class LaneMember(MemberState):
    """State of one trial slot (lane), that is of one start of a worker; its rank is the lane's number."""

    born: float = 0.0
    cause: str = ""  # what it died of
    leave: str | None = None  # "": released by the search; a text: why its agent is about to end; None: it stays


@dataclass
class IndependentGroupMachine(GroupMachine):
    """State machine of a group of trial slots (lanes), of which ``target`` are wanted."""

    spec: IndependentGroup
    members: dict[str, LaneMember] = field(default_factory=dict)  # agent -> its lane
    target: int = 0
    lanes: int = 0  # number of lanes so far, the next one's number
    hosts: dict[str, str] = field(default_factory=dict)
    resting: list[str] = field(default_factory=list)  # agents on excluded hosts
    last_cause: str = ""
    exclusions: Exclusions = field(default_factory=lambda: Exclusions(0, 0.0))

    def begin(self, now: float) -> list[Action]:
        """Request the group's agents, of which one is needed, and return the first actions.

        Args:
            now: Monotonic time in seconds.
        """
        self.target = self.spec.size
        self.exclusions = Exclusions(FRUITLESS_LIMIT, self.spec.host_cooldown_s)
        self.deadline = now + self.spec.start_timeout_s
        return [events.RequestAgents(min(1, self.target), self.target)]

    def agent_counts(self, idle: int) -> tuple[int, str]:
        """Return how many agents a waiting group has, and as text how many it needs: one trial slot is enough.

        Args:
            idle: Number of idle agents.
        """
        return idle, "1 or more"

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Return True if the agent's worker is the lane with this number, which lanes have instead of a generation."""
        lane = self.members.get(agent_id)
        return lane is not None and lane.rank == generation

    @property
    def table(self) -> Table:
        """Transition table of the machine."""
        return _TABLE

    def _active(self, event: events.WorkerActive, now: float) -> list[Action]:
        """Record a message of a lane's worker, which proves that workers can start on its host."""
        self.exclusions.failures.pop(self.hosts[event.agent_id], None)
        return []

    def _release(self, event: events.ReleaseRequested, now: float) -> list[Action]:
        """End a lane and release its agent."""
        agent_id = self.agent_of(event.rank)
        if agent_id is None:
            return []
        return self._break_off(agent_id) if event.at_once else self._let_go(agent_id, "")

    def _resize(self, event: events.ResizeRequested, now: float) -> list[Action]:
        """Set the number of wanted lanes; agents on excluded hosts are released first, then the search chooses lanes."""
        target = self.target = max(0, event.size)
        surplus = max(0, self._count() - target)
        going, self.resting = tuple(self.resting[:surplus]), self.resting[surplus:]
        self._watch_for_agents(now)
        return [events.RequestAgents(0, target), *([events.ReturnAgents(going)] if going else [])]

    # -------------------------------------------------------------------------------- start of lanes

    def _granted(self, event: events.Granted, now: float) -> list[Action]:
        """Start a lane on each granted agent, and release surplus ones."""
        self.hosts |= dict(zip(event.agent_ids, event.hosts or event.agent_ids, strict=True))
        actions: list[Action] = []
        for agent_id in event.agent_ids:
            if self.phase is Phase.STOPPING or self._count() >= self.target:
                actions.append(events.ReturnAgents((agent_id,)))
            else:
                actions += self._start_or_rest(agent_id, now)
        return actions

    def _count(self) -> int:
        """Return the number of lanes and of agents on excluded hosts, without those that are about to end.

        A lane that is about to end finishes its trial while its successor is granted.
        """
        return sum(not lane.leave for lane in self.members.values()) + len(self.resting)

    def _start_or_rest(self, agent_id: str, now: float) -> list[Action]:
        """Start a lane on an agent, unless its host is excluded."""
        if self.exclusions.is_excluded(self.hosts[agent_id], now):
            self.resting.append(agent_id)
            self._watch_for_agents(now)
            return []
        number, self.lanes = self.lanes, self.lanes + 1
        self.members[agent_id] = LaneMember(number, born=now)
        if self.phase is Phase.WAITING:
            self.phase, self.deadline = Phase.FORMING, None
        return [events.StartGeneration(number, (agent_id,))]

    def _started(self, event: events.Started, now: float) -> list[Action]:
        """Announce a lane whose worker has started."""
        lane = self.members[event.agent_id]
        if lane.started:
            return []
        lane.started = True
        if self.phase is Phase.FORMING:
            self.phase = Phase.RUNNING
        return [events.Announce("joined", lane.rank, self.hosts[event.agent_id])]

    # -------------------------------------------------------------------------------- end of lanes

    def _let_go(self, agent_id: str, leave: str) -> list[Action]:
        """Ask the lane's worker to finish its present trial and return; ``leave``: as in ``LaneMember``."""
        lane = self.members[agent_id]
        if self.phase is Phase.STOPPING or lane.leave is not None:
            return []
        lane.leave = leave
        return [events.PauseWorkersAtCommit(lane.rank, (agent_id,), leave)]

    def _break_off(self, agent_id: str) -> list[Action]:
        """Stop the lane's worker without waiting for its trial; its agent is released."""
        lane = self.members[agent_id]
        if self.phase is Phase.STOPPING:
            return []
        lane.leave = lane.leave or ""
        return [events.StopWorkers(lane.rank, (agent_id,), self.spec.grace_s, self.spec.failed_flush_s)]

    def _drain(self, event: events.DrainRequested, now: float) -> list[Action]:
        """Record that an agent will end: release it, or let its lane finish."""
        if event.agent_id in self.resting:
            self.resting.remove(event.agent_id)
            return [events.ReturnAgents((event.agent_id,), event.reason)]
        return self._let_go(event.agent_id, event.reason) if event.agent_id in self.members else []

    def _failed(self, event: events.Failed, now: float) -> list[Action]:
        """Announce the end of a lane whose worker has failed."""
        lane = self.members[event.agent_id]
        lane.cause = event.cause
        return self._left(lane, event.cause)

    def _left(self, lane: LaneMember, reason: str) -> list[Action]:
        """Announce a lane's end at its first sign, unless the lane never started and so was never announced."""
        if not lane.started or lane.over:
            return []
        lane.over = True
        return [events.Announce("left", lane.rank, reason)]

    def _lost(self, event: events.MemberLost, now: float) -> list[Action]:
        """Announce the end of a lane whose agent is lost."""
        if event.agent_id in self.resting:
            self.resting.remove(event.agent_id)
        lane = self.members.pop(event.agent_id, None)
        if lane is None:
            return []
        self.last_cause = event.reason
        actions = self._left(lane, event.reason)
        self._watch_for_agents(now)
        return actions + self.conclude()

    def _closed(self, event: events.Closed, now: float) -> list[Action]:
        """Release the agent whose worker has ended, or start another lane on it."""
        agent_id, lane = event.agent_id, self.members.pop(event.agent_id)
        actions = self._left(lane, lane.leave or (events.RELEASED if lane.leave == "" else events.RETURNED))
        if self.phase is Phase.STOPPING:
            return [*actions, events.ReturnAgents((agent_id,)), *self.conclude()]
        if lane.leave is not None:
            actions.append(events.ReturnAgents((agent_id,), lane.leave))
        else:
            actions += self._after_a_death(agent_id, lane, now)
        self._watch_for_agents(now)
        return actions

    def _after_a_death(self, agent_id: str, lane: LaneMember, now: float) -> list[Action]:
        """Count a death against its host, and start another lane on the agent if one is wanted."""
        actions: list[Action] = []
        host = self.hosts[agent_id]
        self.last_cause = f"lane {lane.rank} on {host}: {lane.cause or events.RETURNED}"
        length = self.exclusions.record_failure(host, now)
        if length is not None:
            failed = self.exclusions.failures[host]
            text = f"host {host} is set aside for {length:g} s: {failed} workers in a row died there, the last of "
            actions.append(events.Note(text + (lane.cause or "a return")))
        if self._count() >= self.target:
            return [*actions, events.ReturnAgents((agent_id,))]
        return actions + self._start_or_rest(agent_id, now)

    # -------------------------------------------------------------------------------- deadlines and the end

    def _watch_for_agents(self, now: float) -> None:
        """Set the deadline for the next agent, which applies while lanes are wanted and none exists."""
        if self.phase is Phase.STOPPING:
            return
        if self.members or not self.target:
            if self.phase is Phase.WAITING:
                self.deadline = None
            return
        if self.phase is not Phase.WAITING or self.deadline is None:
            self.phase, self.deadline = Phase.WAITING, now + self.spec.start_timeout_s

    def _tick(self, event: events.Tick, now: float) -> list[Action]:
        """Enforce deadlines, and start lanes on hosts whose exclusion has ended."""
        actions: list[Action] = []
        resting, self.resting = self.resting, []
        for agent_id in resting:
            actions += self._start_or_rest(agent_id, now)
        late = tuple(a for a, m in self.members.items() if not m.started and now - m.born > self.spec.start_timeout_s)
        if late:
            actions.append(events.DropAgents(late, f"did not start its worker within {self.spec.start_timeout_s:g} s"))
        if self.phase is Phase.WAITING and self.deadline is not None and now >= self.deadline:
            return actions + self.end(self._start_timeout(), now)
        return actions

    def _start_timeout(self) -> ConcludeRun:
        """Return the outcome of a run for which no usable agent connected in time."""
        reason = f"no agent was connected for {self.spec.start_timeout_s:g} s"
        if self.resting:
            reason = f"all {len(self.resting)} agents are on hosts that are set aside"
        if self.last_cause:
            reason += f"; what ended the last lane: {self.last_cause}"
        return ConcludeRun(Phase.FAILED, "start", reason, missing=((self.lanes, "no agent"),))

    def _cancel(self, event: events.CancelRequested, now: float) -> list[Action]:
        """End the run as CANCELLED, or as FINISHED once all lanes have left if its work is done (``complete``)."""
        if not event.complete:
            return self.end(ConcludeRun(Phase.CANCELLED, "cancelled", event.reason), now)
        self.phase, self.outcome = Phase.STOPPING, ConcludeRun(Phase.FINISHED, reason=event.reason)
        self.deadline = now + self.spec.grace_s
        actions = self._take_no_more()
        actions += [events.PauseWorkersAtCommit(lane.rank, (agent_id,), "") for agent_id, lane in self.members.items()]
        return actions + self.conclude()

    def end(self, outcome: ConcludeRun, now: float) -> list[Action]:
        """Stop all lanes; the run concludes when they have ended."""
        self.phase, self.outcome = Phase.STOPPING, outcome
        return self._take_no_more() + self._stop_all(self.spec.failed_flush_s, now) + self.conclude()

    def _stop_late(self, event: events.Tick, now: float) -> list[Action]:
        """At the deadline, stop the lanes that have not left, then disconnect agents that have not reported the end."""
        if self.deadline is None or now < self.deadline:
            return []
        if self.outcome is not None and self.outcome.phase is Phase.FINISHED and not self._all_stop_requested():
            return self._stop_all(self.spec.flush_s, now)
        silent = tuple(self.members)
        self.members = {}
        return [events.DropAgents(silent, "did not report its worker's end in time"), *self.conclude()]

    def _all_stop_requested(self) -> bool:
        """Return True if all lanes have been requested to stop."""
        return all(lane.lost for lane in self.members.values())

    def _stop_all(self, flush_s: float, now: float) -> list[Action]:
        """Stop the workers of all lanes."""
        self.deadline = now + self.spec.grace_s + flush_s + 2
        actions: list[Action] = []
        for agent_id, lane in self.members.items():
            lane.lost = True  # for this run: it has been requested to stop
            actions.append(events.StopWorkers(lane.rank, (agent_id,), self.spec.grace_s, flush_s))
        return actions

    def _take_no_more(self) -> list[Action]:
        """Withdraw the request for agents before any is released, as it would be granted again."""
        resting, self.resting = tuple(self.resting), []
        return [events.RequestAgents(0, 0), *([events.ReturnAgents(resting)] if resting else [])]

    def conclude(self) -> list[Action]:
        """Conclude the run once no lane remains."""
        if self.outcome is None or self.members:
            return []
        self.phase, self.deadline = self.outcome.phase, None
        return [self.outcome]


_OPEN = tuple(phase for phase in LIVE if phase is not Phase.STOPPING)
_TABLE = table(
    *COMMON,
    (events.Granted, LIVE, IndependentGroupMachine._granted),
    (events.Started, LIVE, IndependentGroupMachine._started),
    (events.WorkerActive, LIVE, IndependentGroupMachine._active),
    (events.Failed, LIVE, IndependentGroupMachine._failed),
    (events.Closed, LIVE, IndependentGroupMachine._closed),
    (events.MemberLost, LIVE, IndependentGroupMachine._lost),
    (events.ReleaseRequested, LIVE, IndependentGroupMachine._release),
    (events.DrainRequested, LIVE, IndependentGroupMachine._drain),
    (events.ResizeRequested, _OPEN, IndependentGroupMachine._resize),
    (events.CancelRequested, _OPEN, IndependentGroupMachine._cancel),
    (events.Tick, _OPEN, IndependentGroupMachine._tick),
    (events.Tick, (Phase.STOPPING,), IndependentGroupMachine._stop_late),
)
