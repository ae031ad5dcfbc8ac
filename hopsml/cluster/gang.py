"""One run's group of workers as a pure state machine: events in, actions out; no socket, thread, clock or disk.

The same events give the same actions. Every sequence of events ends in FINISHED, FAILED, CANCELLED, or in a phase with
a deadline that a later ``Tick`` enforces:

    WAITING ──granted──▶ FORMING ──all started──▶ RUNNING ──all finished──▶ STOPPING ──all closed──▶ FINISHED
       │  start deadline    │  start deadline       │  failure                │  stop deadline
       └────────────────────┴───────────┬───────────┘                         │
                                        ▼                                     ▼
                                    SETTLING ──(which failure was first?)─▶ STOPPING ──▶ FAILED | CANCELLED

A group has a fixed size here: a member that is lost ends the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    """Where a run stands."""

    WAITING = "waiting for executors"
    FORMING = "starting workers"
    RUNNING = "running"
    SETTLING = "finding out who failed first"
    STOPPING = "stopping"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether nothing comes after it."""
        return self in (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED)


@dataclass(frozen=True)
class GangSpec:
    """What was asked for. Times are in seconds."""

    run_id: str
    size: int
    start_timeout_s: float = 120.0  # from the call until every worker has begun the user's function
    settle_s: float = 1.0  # how long an echo of a failure waits for the failure itself
    grace_s: float = 2.0  # between SIGTERM and SIGKILL
    flush_s: float = 120.0  # for bringing the last files of a finished run to shared storage
    failed_flush_s: float = 4.0  # the same after a failure: its report must not wait long


# ---------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Granted:
    """Agents that belong to this run from now on, in rank order."""

    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """There will never be enough agents, or none can be had at all; ``error`` names the kind."""

    reason: str
    error: str = "slots"


@dataclass(frozen=True)
class MemberLost:
    """The agent is gone: its connection broke or its lease ran out."""

    agent_id: str
    reason: str


@dataclass(frozen=True)
class Started:
    """The worker is about to call the user's function."""

    agent_id: str
    generation: int


@dataclass(frozen=True)
class Finished:
    """The user's function returned."""

    agent_id: str
    generation: int


@dataclass(frozen=True)
class Failed:
    """The worker is lost; ``secondary`` marks the echo of another member's failure."""

    agent_id: str
    generation: int
    cause: str
    secondary: bool = False


@dataclass(frozen=True)
class Closed:
    """Nothing of the worker is left on its host."""

    agent_id: str
    generation: int


@dataclass(frozen=True)
class CancelAsked:
    """The user, an interrupt or the end of the program wants the run to end."""

    reason: str


@dataclass(frozen=True)
class Tick:
    """Time passes; deadlines are enforced here alone."""


Event = Granted | Refused | MemberLost | Started | Finished | Failed | Closed | CancelAsked | Tick


# ---------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class AskAgents:
    """The run wants this many agents."""

    count: int


@dataclass(frozen=True)
class StartGeneration:
    """Form the group and launch a worker on each member; the index in the tuple is the rank."""

    generation: int
    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class StopWorkers:
    """End these members' workers."""

    generation: int
    agent_ids: tuple[str, ...]
    grace_s: float
    flush_s: float


@dataclass(frozen=True)
class DropAgents:
    """These agents did not answer in time: cut them off, they end by their lease."""

    agent_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ReturnAgents:
    """The run needs these agents no more."""

    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class Conclude:
    """The run is over. For a failure: who failed first, and why; ``missing`` maps rank -> what was not there."""

    phase: Phase
    error: str = ""  # worker | start | slots | launcher | cancelled
    reason: str = ""
    agent_id: str = ""
    rank: int = -1
    missing: tuple[tuple[int, str], ...] = ()


Action = AskAgents | StartGeneration | StopWorkers | DropAgents | ReturnAgents | Conclude


# ---------------------------------------------------------------------------------------------------- the machine


@dataclass
class _Member:
    rank: int
    started: bool = False
    finished: bool = False
    failed: bool = False
    over: bool = False  # closed, or lost with its agent
    lost: bool = False


@dataclass
class Gang:
    """The state of one run's group; ``handle`` is the only way to change it."""

    spec: GangSpec
    phase: Phase = Phase.WAITING
    generation: int = 0
    members: dict[str, _Member] = field(default_factory=dict)
    deadline: float | None = None
    outcome: Conclude | None = None

    def begin(self, now: float) -> list[Action]:
        """The first actions; ``now`` is monotonic seconds, as everywhere."""
        self.deadline = now + self.spec.start_timeout_s
        return [AskAgents(self.spec.size)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """What follows from an event. Events for a run that is over, or of another generation, change nothing."""
        if self.phase.is_final or getattr(event, "generation", self.generation) != self.generation:
            return []
        match event:
            case Granted():
                return self._granted(event)
            case Started():
                return self._started(event)
            case Finished():
                return self._finished(event, now)
            case Failed():
                return self._failed(event, now)
            case Closed():
                return self._over(event.agent_id)
            case MemberLost():
                return self._lost(event, now)
            case Refused():
                return self._end(Conclude(Phase.FAILED, event.error, event.reason), now)
            case CancelAsked():
                return self._end(Conclude(Phase.CANCELLED, "cancelled", event.reason), now)
            case Tick():
                return self._tick(now)

    def rank(self, agent_id: str) -> int:
        """Rank of a member, -1 for a stranger."""
        member = self.members.get(agent_id)
        return member.rank if member else -1

    # -------------------------------------------------------------------------------- before the training

    def _granted(self, event: Granted) -> list[Action]:
        if self.phase is not Phase.WAITING:
            return [ReturnAgents(event.agent_ids)]
        self.members = {agent_id: _Member(rank) for rank, agent_id in enumerate(event.agent_ids)}
        self.phase = Phase.FORMING
        return [StartGeneration(self.generation, event.agent_ids)]

    def _started(self, event: Started) -> list[Action]:
        member = self.members.get(event.agent_id)
        if member is None:
            return []
        member.started = True
        if self.phase is Phase.FORMING and all(m.started for m in self.members.values()):
            self.phase, self.deadline = Phase.RUNNING, None
        return []

    # -------------------------------------------------------------------------------- ends of single workers

    def _finished(self, event: Finished, now: float) -> list[Action]:
        member = self.members.get(event.agent_id)
        if member is None or self.phase not in (Phase.FORMING, Phase.RUNNING):
            return []
        member.started = member.finished = True
        if not all(m.finished for m in self.members.values()):
            return []
        self.phase = Phase.STOPPING
        self.outcome = Conclude(Phase.FINISHED)
        self.deadline = now + self.spec.grace_s + self.spec.flush_s + 10
        return self._conclude_if_over()

    def _failed(self, event: Failed, now: float) -> list[Action]:
        member = self.members.get(event.agent_id)
        if member is None:
            return []
        member.failed = True
        blamed = Conclude(Phase.FAILED, "worker", event.cause, event.agent_id, member.rank)
        if self.phase is Phase.SETTLING and not event.secondary:
            return self._end(blamed, now)
        if self.phase not in (Phase.FORMING, Phase.RUNNING):
            return []
        if not event.secondary:
            return self._end(blamed, now)
        self.phase, self.outcome, self.deadline = Phase.SETTLING, blamed, now + self.spec.settle_s
        return []

    def _lost(self, event: MemberLost, now: float) -> list[Action]:
        member = self.members.get(event.agent_id)
        if member is None or member.lost:
            return []
        member.lost = True
        actions: list[Action] = []
        if self.phase in (Phase.FORMING, Phase.RUNNING, Phase.SETTLING) and not member.over:
            blamed = Conclude(Phase.FAILED, "worker", event.reason, event.agent_id, member.rank)
            actions = self._end(blamed, now)
        return actions + self._over(event.agent_id)

    def _over(self, agent_id: str) -> list[Action]:
        member = self.members.get(agent_id)
        if member is None:
            return []
        member.over = True
        return self._conclude_if_over()

    # -------------------------------------------------------------------------------- the end of the run

    def _end(self, outcome: Conclude, now: float) -> list[Action]:
        """Stop whoever still works, then conclude; the first failure's word stands."""
        if self.phase is Phase.STOPPING and self.outcome and self.outcome.phase is not Phase.FINISHED:
            return []
        self.phase, self.outcome = Phase.STOPPING, outcome
        self.deadline = now + self.spec.grace_s + self.spec.failed_flush_s + 2
        working = tuple(agent_id for agent_id, m in self.members.items() if not m.over and not m.lost)
        actions: list[Action] = []
        if working:
            actions.append(StopWorkers(self.generation, working, self.spec.grace_s, self.spec.failed_flush_s))
        return actions + self._conclude_if_over()

    def _conclude_if_over(self) -> list[Action]:
        if self.phase is not Phase.STOPPING or self.outcome is None:
            return []
        if not all(m.over or m.lost for m in self.members.values()):
            return []
        self.phase, self.deadline = self.outcome.phase, None
        returned = tuple(agent_id for agent_id, m in self.members.items() if not m.lost)
        return [ReturnAgents(returned), self.outcome]

    def _tick(self, now: float) -> list[Action]:
        if self.deadline is None or now < self.deadline:
            return []
        if self.phase is Phase.SETTLING and self.outcome:
            return self._end(self.outcome, now)
        if self.phase is Phase.STOPPING:
            silent = tuple(agent_id for agent_id, m in self.members.items() if not m.over and not m.lost)
            for agent_id in silent:
                self.members[agent_id].lost = True
            return [DropAgents(silent, "did not report its worker's end in time"), *self._conclude_if_over()]
        return self._end(self._start_timeout(), now)

    def _start_timeout(self) -> Conclude:
        if self.phase is Phase.WAITING:
            missing = tuple((rank, "no agent") for rank in range(self.spec.size))
        else:
            missing = tuple((m.rank, "not started") for m in self.members.values() if not m.started)
        reason = f"not all of {self.spec.size} workers were there after {self.spec.start_timeout_s:g} s"
        return Conclude(Phase.FAILED, "start", reason, missing=missing)
