"""One run's group of workers as a pure state machine: events in, actions out; no socket, thread, clock or disk.

The same events give the same actions. Every sequence of events ends in FINISHED, FAILED, CANCELLED, or in a phase with
a deadline that a later ``Tick`` enforces:

    WAITING ──granted──▶ FORMING ──all started──▶ RUNNING ──all finished──▶ STOPPING ──all closed──▶ FINISHED
       │  start deadline    │  start deadline       │  failure                │  stop deadline
       └────────────────────┴───────────┬───────────┘                         │
                                        ▼                                     ▼
                                    SETTLING ──(which failure was first?)─▶ STOPPING ──▶ FAILED | CANCELLED

A group has a fixed size here: a member that is lost ends the run. ``elastic_gang`` goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.gang_types import (
    Action,
    Announce,
    AskAgents,
    CancelAsked,
    Closed,
    Committed,
    Conclude,
    DrainAsked,
    DropAgents,
    Event,
    Failed,
    Finished,
    GangSpec,
    Granted,
    Heard,
    MemberLost,
    Note,
    Parked,
    ParkWorkers,
    Phase,
    Ready,
    Refused,
    ReleaseAsked,
    ResizeAsked,
    ReturnAgents,
    Started,
    StartGeneration,
    Stepped,
    StopWorkers,
    Tick,
)

__all__ = [
    "Action",
    "Announce",
    "AskAgents",
    "CancelAsked",
    "Closed",
    "Committed",
    "Conclude",
    "DrainAsked",
    "DropAgents",
    "Event",
    "Failed",
    "Finished",
    "Gang",
    "GangSpec",
    "Granted",
    "Heard",
    "Member",
    "MemberLost",
    "Note",
    "ParkWorkers",
    "Parked",
    "Phase",
    "Ready",
    "Refused",
    "ReleaseAsked",
    "ResizeAsked",
    "ReturnAgents",
    "StartGeneration",
    "Started",
    "Stepped",
    "StopWorkers",
    "Tick",
]


@dataclass
class Member:
    """One worker of the present generation."""

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
    members: dict[str, Member] = field(default_factory=dict)
    deadline: float | None = None
    outcome: Conclude | None = None

    @property
    def training(self) -> tuple[Phase, ...]:
        """Phases in which workers are at work."""
        return (Phase.FORMING, Phase.RUNNING)

    def begin(self, now: float) -> list[Action]:
        """The first actions; ``now`` is monotonic seconds, as everywhere."""
        self.deadline = now + self.spec.start_timeout_s
        return [AskAgents(self.spec.size, self.spec.size)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """What follows from an event. Events for a run that is over, or of another generation, change nothing."""
        generation: int | None = getattr(event, "generation", None)
        if self.phase.is_final or (generation is not None and not self.is_current(_agent(event), generation)):
            return []
        match event:
            case Granted():
                return self._granted(event, now)
            case Started():
                return self._started(event, now)
            case Finished():
                return self._finished(event, now)
            case Failed():
                return self._failed(event, now)
            case Closed():
                return self._over(event.agent_id, now)
            case MemberLost():
                return self._lost(event, now)
            case Refused():
                if self.phase is Phase.STOPPING:  # its end stands already
                    return []
                return self._end(Conclude(Phase.FAILED, event.error, event.reason), now)
            case CancelAsked():
                return self.cancel(event, now)
            case Tick():
                return self._tick(now)
            case _:
                return self._other(event, now)

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Whether what the agent says of this generation counts."""
        return generation == self.generation

    def cancel(self, event: CancelAsked, now: float) -> list[Action]:
        """Somebody wants the run to end."""
        return self._end(Conclude(Phase.CANCELLED, "cancelled", event.reason), now)

    def rank(self, agent_id: str) -> int:
        """Rank of a member, -1 for a stranger."""
        member = self.members.get(agent_id)
        return member.rank if member else -1

    def agent_of(self, rank: int) -> str | None:
        """The agent whose worker has this rank now."""
        return next((agent_id for agent_id, member in self.members.items() if member.rank == rank), None)

    # -------------------------------------------------------------------------------- before the training

    def _other(self, event: Event, now: float) -> list[Action]:
        """What concerns groups that may change."""
        if isinstance(event, DrainAsked) and (rank := self.rank(event.agent_id)) >= 0:
            return [
                Note(
                    f"rank {rank} is about to be lost ({event.reason}), and a group of fixed size ends with it; with "
                    "min_workers= instead of num_workers= it would go on"
                )
            ]
        return []

    def _granted(self, event: Granted, now: float) -> list[Action]:
        if self.phase is not Phase.WAITING:
            return [ReturnAgents(event.agent_ids)]
        self.members = {agent_id: Member(rank) for rank, agent_id in enumerate(event.agent_ids)}
        self.phase = Phase.FORMING
        return [StartGeneration(self.generation, event.agent_ids)]

    def _started(self, event: Started, now: float) -> list[Action]:
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
        if member is None or self.phase not in self.training:
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
        if self.phase not in self.training:
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
        if self.phase in (*self.training, Phase.SETTLING) and not member.over:
            blamed = Conclude(Phase.FAILED, "worker", event.reason, event.agent_id, member.rank)
            actions = self._end(blamed, now)
        return actions + self._over(event.agent_id, now)

    def _over(self, agent_id: str, now: float) -> list[Action]:
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


def _agent(event: Event) -> str:
    agent_id: str = getattr(event, "agent_id", "")
    return agent_id
