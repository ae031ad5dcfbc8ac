"""State machine of a chief with its servers: only the chief calls the function; the others compute or hold variables.

    WAITING ──granted──▶ FORMING ──all started──▶ RUNNING ──the chief finished──▶ STOPPING ──all closed──▶ FINISHED
                                                    │ ▲                              ▲
                                    a server is lost│ │on its agent, at its address  │ the chief is lost, or all
                                    workers, or
                                                    ▼ │                              │ a parameter server for good:
                                                    FAILED
                                                 started again ──────────────────────┘

The chief's strategy addresses the other members for its whole lifetime, so a lost one comes back as the same task at
the same address: as another process on the same agent. The chief has to repeat or restore what was lost with it. Each
start of a member is a generation, whose number only grows. A member that dies repeatedly soon after its start is given
up: the group continues without a worker or the evaluator, and the run ends without a parameter server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hopsml.cluster.gang import events
from hopsml.cluster.gang.events import Action, ConcludeRun, Phase
from hopsml.cluster.gang.machine import (
    COMMON,
    LIVE,
    UNREPORTED,
    Failure,
    GroupMachine,
    MemberState,
    Table,
    cancel,
    failure_of,
    return_granted,
    table,
)
from hopsml.cluster.shared.layout import CHIEF, EVALUATOR, PS, WORKER
from hopsml.cluster.shared.spec import Roles, ServerGroup

TRAINING = (Phase.FORMING, Phase.RUNNING)
_RESUME = "experiment.resume continues from its last checkpoint"


@dataclass
class ServerMember(MemberState):
    """State of one member; the inherited fields are those of its newest start."""

    role: str = WORKER
    generation: int = 0
    born: float = 0.0  # when its process began, or was told to begin again
    deaths: int = 0  # in a row, each soon after its start
    cause: str = ""  # what the newest start died of
    is_given_up: bool = False  # True if it is not started again

    @property
    def is_gone(self) -> bool:
        """True if it is lost or given up, and so will not come back."""
        return self.lost or self.is_given_up


@dataclass
class ServerGroupMachine(GroupMachine):
    """State machine of a chief and its servers; ``roles`` has the number of members of each role."""

    spec: ServerGroup
    roles: Roles = field(default_factory=Roles)
    members: dict[str, ServerMember] = field(default_factory=dict)
    starts: int = 0  # the newest generation
    evaluator_until: float | None = None  # once the chief has finished: until when the evaluator may continue

    @property
    def table(self) -> Table:
        """Transition table of the machine."""
        return _TABLE

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Return True if ``generation`` is the newest start of the agent's member."""
        member = self.members.get(agent_id)
        return member is not None and member.generation == generation

    # -------------------------------------------------------------------------------- start

    def _granted(self, event: events.Granted, now: float) -> list[Action]:
        """Assign ranks and roles to the granted agents and start all members."""
        self.members = {
            agent_id: ServerMember(rank, role=self._role(rank, len(event.agent_ids)))
            for rank, agent_id in enumerate(event.agent_ids)
        }
        self.phase = Phase.FORMING
        return [events.StartGeneration(0, event.agent_ids)]

    def _role(self, rank: int, size: int) -> str:
        """Return the role of a rank, in the layout's order: the chief, workers, parameter servers, the evaluator."""
        servers_begin = size - self.roles.parameter_servers - int(self.roles.evaluator)
        if rank == 0:
            return CHIEF
        if rank < servers_begin:
            return WORKER
        return EVALUATOR if self.roles.evaluator and rank == size - 1 else PS

    def _started(self, event: events.Started, now: float) -> list[Action]:
        """Record that a member has started, and report one that had been lost."""
        member = self.members[event.agent_id]
        comes_back = member.generation and not member.started
        member.started, member.born = True, now
        self._run_if_all_started()
        return [events.Note(f"{_name(member)} is running again", joined=1)] if comes_back else []

    def _forming(self, event: events.Forming, now: float) -> list[Action]:
        """Record that a member waits in its first collective operation."""
        self.members[event.agent_id].forms = event.size
        return []

    def _run_if_all_started(self) -> None:
        """Let the run begin once every member that is not lost has started."""
        if self.phase is Phase.FORMING and all(m.started or m.is_gone for m in self.members.values()):
            self.phase, self.deadline = Phase.RUNNING, None

    # -------------------------------------------------------------------------------- ends of members

    def _finished(self, event: events.Finished, now: float) -> list[Action]:
        """Record that a member has returned: the chief's end is the run's; a server that returns has failed."""
        member = self.members[event.agent_id]
        if member.role in (WORKER, PS):
            member.failed, member.cause = True, "its server has returned"
            return []
        member.started = member.finished = True
        if member.role == EVALUATOR or self.phase is Phase.STOPPING:
            return []
        self.phase, self.outcome = Phase.STOPPING, ConcludeRun(Phase.FINISHED)
        return self._stop_servers(now) + self.conclude()

    def _stop_servers(self, now: float) -> list[Action]:
        """Stop the servers; the evaluator may finish, as the last checkpoint is only just written."""
        evaluates = any(m.role == EVALUATOR and not m.is_end_known for m in self.members.values())
        self.evaluator_until = now + self.spec.evaluator_s if evaluates else None
        self.deadline = (self.evaluator_until or now) + self.spec.grace_s + self.spec.flush_s + 10
        return self._stop((WORKER, PS), self.spec.flush_s)

    def _stop(self, roles: Iterable[str], flush_s: float) -> list[Action]:
        """Stop the members of these roles."""
        return [
            events.StopWorkers(member.generation, (agent_id,), self.spec.grace_s, flush_s)
            for agent_id, member in self.members.items()
            if member.role in roles and not (member.over or member.lost)
        ]

    def _failed(self, event: events.Failed, now: float) -> list[Action]:
        """Record a member's failure, which ends the run only if it is the chief's or prevents the start."""
        member = self.members[event.agent_id]
        if member.failed:
            return []
        member.failed, member.cause = True, event.cause
        cannot_begin = self.phase is Phase.FORMING and not event.outside and not member.generation
        if member.role == CHIEF or (cannot_begin and member.role != EVALUATOR):
            self.failures.append(failure_of(event, member))
            return self._settle(now)
        # A chief's secondary failure was waiting for this one.
        return self._settled(now) if self.phase is Phase.SETTLING else []

    def _settle(self, now: float) -> list[Action]:
        """Wait a moment for the loss that explains the chief's secondary failure; conclude other failures at once."""
        if not self.failures[-1].echo or self._dead_server() is not None:
            return self._settled(now)
        self.phase, self.deadline = Phase.SETTLING, now + self.spec.settle_s
        return []

    def _settled(self, now: float) -> list[Action]:
        """End the run because of the failures that are known, without a further wait."""
        return self.end(self._blamed(), now)

    def _dead_server(self) -> ServerMember | None:
        """Return a server that has failed and not been restarted, parameter servers first; None if all are alive."""
        dead = [m for m in self.members.values() if m.role in (WORKER, PS) and (m.failed or m.lost)]
        return min(dead, key=lambda m: (m.role != PS, m.rank), default=None)

    def _blamed(self) -> ConcludeRun:
        """Return the outcome for the chief's failure or a failed start, with the loss that caused it, if known."""
        failure, dead = self.failures[-1], self._dead_server()
        reason = failure.cause
        if failure.echo and dead is not None:
            reason = (
                f"{failure.cause}; {_name(dead)} was lost just before ({dead.cause}), from which a loop of one's own has to "
                "recover: hopsml.tensorflow.ServerLoop does"
            )
        return ConcludeRun(Phase.FAILED, "worker", reason, failure.agent_id, failure.rank)

    def _closed(self, event: events.Closed, now: float) -> list[Action]:
        """Start a member again if it is still needed, as no process of it remains."""
        agent_id, member = event.agent_id, self.members[event.agent_id]
        member.over = True
        if self.phase in TRAINING and member.role == CHIEF and not member.lost:
            self.failures.append(Failure(agent_id, member.rank, f"{UNREPORTED}; {_RESUME}"))
            return self._settled(now)
        if self.phase not in TRAINING or member.finished or member.lost:
            return self.conclude()
        return self._start_again(agent_id, member, now)

    def _start_again(self, agent_id: str, member: ServerMember, now: float) -> list[Action]:
        """Start a member again on its agent, or give it up after too many deaths in a row."""
        cause = member.cause or "its process ended"
        member.deaths = 1 if member.started and now - member.born >= self.spec.steady_s else member.deaths + 1
        if member.deaths >= self.spec.fruitless_limit:
            member.is_given_up = True
            return self._without(agent_id, member, f"{member.deaths} times in a row, the last of: {cause}", now)
        self.starts += 1
        member.generation, member.born = self.starts, now
        member.started = member.failed = member.over = False
        member.cause = ""
        self.liveness.remove_agent(agent_id)
        return [
            events.Note(
                f"{_name(member)} was lost ({cause}); it is started again at its address", ((member.rank, cause),)
            ),
            events.StartGeneration(self.starts, (agent_id,)),
        ]

    def _lost(self, event: events.MemberLost, now: float) -> list[Action]:
        """Record the loss of an agent; its member cannot be started again."""
        member = self.members.get(event.agent_id)
        if member is None or member.lost:
            return []
        member.lost, member.cause = True, event.reason
        if all(one.lost for one in self.members.values()):
            self.explained_by = now + self.spec.settle_s
        if self.finishes() and not member.over and member.role in (CHIEF, EVALUATOR):
            return [self.unstored(event.agent_id, event.reason), *self.conclude()]
        if self.phase is Phase.SETTLING:
            return self._settled(now)
        if self.phase not in TRAINING or member.is_given_up or (member.over and member.role == EVALUATOR):
            return self.conclude()
        return self._without(event.agent_id, member, event.reason, now)

    def _without(self, agent_id: str, member: ServerMember, reason: str, now: float) -> list[Action]:
        """Continue the run without a member that does not come back, or end it if the member is indispensable."""
        self._run_if_all_started()
        if member.role == EVALUATOR:
            return [
                events.Note(f"the run continues without its evaluator (rank {member.rank}), which was lost: {reason}")
            ]
        left = sum(m.role == WORKER and not m.is_gone for m in self.members.values())
        if member.role == WORKER and left:
            plural = "s" if left > 1 else ""
            return [
                events.Note(
                    f"the run continues with {left} worker{plural}: {_name(member)} was lost and is not restarted: {reason}"
                )
            ]
        what = {CHIEF: "the chief", PS: _name(member), WORKER: f"{_name(member)}, the last worker,"}[member.role]
        self.failures.append(Failure(agent_id, member.rank, f"{what} was lost: {reason}; {_RESUME}"))
        return self._settled(now)

    # -------------------------------------------------------------------------------- deadlines

    def _drain(self, event: events.DrainRequested, now: float) -> list[Action]:
        """Report that an agent will end, and what follows."""
        if (member := self.members.get(event.agent_id)) is None:
            return []
        follows = f"the run ends with it; {_RESUME}" if member.role in (CHIEF, PS) else "the others go on without it"
        return [events.Note(f"{_name(member)} is about to be lost ({event.reason}): {follows}")]

    def _stepped(self, event: events.Stepped, now: float) -> list[Action]:
        """Process a heartbeat; report a stopped process, which blocks all members while TensorFlow reports nothing."""
        member = self.members[event.agent_id]
        if member.failed:
            return []
        was_stopped = event.agent_id in self.liveness.stopped
        self.liveness.record_heartbeat(event.agent_id, event.stopped, 0.0, now)
        if self.phase not in TRAINING or was_stopped or not event.stopped:
            return []
        then = "it counts as lost" if member.role == CHIEF else "it is replaced"
        limit = f"if it is not resumed within {self._stopped_limit(member):g} s, {then}"
        return [events.Note(f"the process of {_name(member)} is stopped (SIGSTOP); {limit}")]

    def _stopped_limit(self, member: ServerMember) -> float:
        """Return for how many seconds a member's process may be stopped before it counts as lost."""
        return self.spec.chief_stopped_s if member.role == CHIEF else self.spec.stopped_s

    def _check_members(self, now: float) -> list[Action]:
        """At each tick, end processes that are stopped for too long, and agents that do not restart their worker."""
        actions: list[Action] = []
        late: list[str] = []
        for agent_id, member in self.members.items():
            if member.over or member.lost or member.is_given_up:
                continue
            limit_s = self._stopped_limit(member)
            if now - self.liveness.stopped.get(agent_id, now) >= limit_s:
                cause = f"its process has been stopped (SIGSTOP) for {limit_s:g} s"
                if member.role == CHIEF:
                    self.failures.append(Failure(agent_id, 0, f"{cause}; {_RESUME}"))
                    return actions + self._settled(now)
                self.liveness.remove_agent(agent_id)
                member.failed, member.cause = True, cause
                actions.append(events.StopWorkers(member.generation, (agent_id,), 0.0, 0.0, keep=True))
            elif self.phase is Phase.RUNNING and not member.started and now - member.born > self.spec.start_timeout_s:
                late.append(agent_id)
                member.born = now
        if late:
            reason = f"did not start its worker again within {self.spec.start_timeout_s:g} s"
            actions.append(events.DropAgents(tuple(late), reason))
        return actions

    def _tick(self, event: events.Tick, now: float) -> list[Action]:
        """Enforce the deadlines of the evaluator, of silent members and of the phase."""
        if self.evaluator_until is not None and now >= self.evaluator_until:
            self.evaluator_until = None
            late = [m for m in self.members.values() if m.role == EVALUATOR and not m.is_end_known]
            note = f"the evaluator is stopped, since the chief ended {self.spec.evaluator_s:g} s ago"
            return [events.Note(note)] * bool(late) + self._stop((EVALUATOR,), self.spec.flush_s)
        if self.phase in TRAINING and (actions := self._check_members(now)):
            return actions
        if self.explained_by is not None and now >= self.explained_by:
            self.explained_by = None
            return self.conclude()
        if self.deadline is None or now < self.deadline:
            return []
        if self.phase is Phase.SETTLING:
            return self._settled(now)
        if self.phase is Phase.STOPPING:
            return [*self.drop_unfinished_agents(), *self.conclude()]
        return self.end(self.start_timeout_outcome(), now)

    def end(self, outcome: ConcludeRun, now: float) -> list[Action]:
        """Stop all members; the run concludes when they have ended."""
        if self.is_decided():
            return []
        self.phase, self.outcome, self.evaluator_until = Phase.STOPPING, outcome, None
        self.deadline = now + self.spec.grace_s + self.spec.failed_flush_s + 2
        return self._stop((CHIEF, WORKER, PS, EVALUATOR), self.spec.failed_flush_s) + self.conclude()


def _name(member: ServerMember) -> str:
    """Return the member's name in messages: its rank, by which its log is found, and its role."""
    return f"rank {member.rank} ({member.role})"


_TABLE = table(
    *COMMON,
    (events.Granted, (Phase.WAITING,), ServerGroupMachine._granted),
    (events.Granted, tuple(phase for phase in LIVE if phase is not Phase.WAITING), return_granted),
    (events.Started, LIVE, ServerGroupMachine._started),
    (events.Forming, TRAINING, ServerGroupMachine._forming),
    (events.Stepped, LIVE, ServerGroupMachine._stepped),
    (events.Finished, LIVE, ServerGroupMachine._finished),
    (events.Failed, (*TRAINING, Phase.SETTLING), ServerGroupMachine._failed),
    (events.Closed, LIVE, ServerGroupMachine._closed),
    (events.MemberLost, LIVE, ServerGroupMachine._lost),
    (events.DrainRequested, LIVE, ServerGroupMachine._drain),
    (events.CancelRequested, LIVE, cancel),
    (events.Tick, LIVE, ServerGroupMachine._tick),
)
