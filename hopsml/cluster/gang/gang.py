"""Pure state machine of a run's worker group of fixed size: events in, actions out; no socket, thread, clock or disk.

The same events give the same actions. Every sequence of events ends in FINISHED, FAILED, CANCELLED, or in a phase with
a deadline that a later ``Tick`` enforces:

    WAITING ──granted──▶ FORMING ──all started──▶ RUNNING ──all finished──▶ STOPPING ──all closed──▶ FINISHED
       │  start deadline    │  start deadline       │  failure                │  stop deadline
       └────────────────────┴───────────┬───────────┘                         │
                                        ▼                                     ▼
                                    SETTLING ──(which failure was first?)─▶ STOPPING ──▶ FAILED | CANCELLED

The loss of a member ends the run. ``elastic_gang`` extends this to groups whose members change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.gang import events
from hopsml.cluster.gang.blame import Failure, first_of
from hopsml.cluster.gang.events import Action, ConcludeRun, Event, Phase
from hopsml.cluster.gang.pace import Liveness
from hopsml.cluster.shared.spec import FixedGroup

# Delays from the end of a member's function to the note that other members are still active, or idle since: members
# that end one after another, such as scripts with sys.exit(main()) whose chief still saves, need no note.
EXITED_NOTE_S, RETURNED_NOTE_S = 5.0, 10.0
STALLED = (
    "most likely each waits for another in a collective operation. A firewall that drops connections (HOPSML_KEEPALIVE_S "
    "keeps idle ones known), a proxy (http_proxy), or a worker that left out a collective does that; `hopsml runs profile` "
    "shows where they stand"
)
UNREPORTED = "its process ended without a report"


@dataclass
class MemberState:
    """State of one worker of the present generation."""

    rank: int
    started: bool = False
    # number of members of the group in whose first collective operation it waits; 0: it has not reached one
    forms: int = 0
    finished: bool = False
    exited: bool = False  # finished by sys.exit(0)
    noted: bool = False  # True once a note has reported that it ended while others are active
    failed: bool = False
    over: bool = False  # closed, or lost with its agent
    lost: bool = False

    @property
    def is_end_known(self) -> bool:
        """True if the way in which it ended is known."""
        return self.finished or self.failed or self.over or self.lost


@dataclass
class Gang:
    """State machine of one run's group; ``handle`` is the only way to change it."""

    spec: FixedGroup
    phase: Phase = Phase.WAITING
    generation: int = 0
    members: dict[str, MemberState] = field(default_factory=dict)
    deadline: float | None = None
    outcome: ConcludeRun | None = None
    failures: list[Failure] = field(default_factory=list)  # of the present generation
    liveness: Liveness = field(default_factory=Liveness)
    told_stalled: bool = False  # True once a note has reported that all workers are idle
    left_at: float | None = None  # when the first member of the generation finished
    # all agents are lost: until when the loss of the cluster itself may be reported as the reason
    explained_by: float | None = None

    @property
    def training(self) -> tuple[Phase, ...]:
        """Phases in which workers are starting or at work."""
        return (Phase.FORMING, Phase.RUNNING)

    def begin(self, now: float) -> list[Action]:
        """Request the group's agents and return the first actions.

        Args:
            now: Monotonic time in seconds, as everywhere.
        """
        self.deadline = now + self.spec.start_timeout_s
        return [events.RequestAgents(self.spec.size, self.spec.size)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event and return the actions to carry out.

        Events for a run that has ended, or of another generation, change nothing.

        Args:
            event: The event.
            now: Monotonic time in seconds.
        """
        if self.phase.is_final:  # agents that are granted too late do not belong to this run
            return [events.ReturnAgents(event.agent_ids)] if isinstance(event, events.Granted) else []
        if isinstance(event, events.OfWorker) and not self.is_current(event.agent_id, event.generation):
            return []
        match event:
            case events.Granted():
                return self._granted(event, now)
            case events.Started():
                return self._started(event, now)
            case events.Forming():
                return self._forming(event, now)
            case events.Finished():
                return self._finished(event, now)
            case events.Failed():
                return self._failed(event, now)
            case events.Closed():
                return self._over(event.agent_id, now)
            case events.Stepped():
                return self._stepped(event, now)
            case events.MemberLost():
                return self._lost(event, now)
            case events.Refused():
                return self._refused(ConcludeRun(Phase.FAILED, event.error, event.reason), now)
            case events.CancelRequested():
                return self.cancel(event, now)
            case events.Tick():
                return self._tick(now)
            case _:
                return self._other(event, now)

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Return True if reports of this agent about this generation apply to its present worker."""
        return generation == self.generation

    def cancel(self, event: events.CancelRequested, now: float) -> list[Action]:
        """End the run because the user, or the end of the application, requests it."""
        return self._end(ConcludeRun(Phase.CANCELLED, "cancelled", event.reason), now)

    def rank(self, agent_id: str) -> int:
        """Return the rank of the agent's worker; -1 for an agent that is no member."""
        member = self.members.get(agent_id)
        return member.rank if member else -1

    def agent_of(self, rank: int) -> str | None:
        """Return the agent whose worker has this rank now; None if there is none."""
        return next((agent_id for agent_id, member in self.members.items() if member.rank == rank), None)

    def attendance(self, idle: int) -> tuple[int, str]:
        """Return how many agents a waiting group has, and as text how many it needs.

        Args:
            idle: Number of idle agents.
        """
        return min(idle, self.spec.size), str(self.spec.size)

    # -------------------------------------------------------------------------------- before the training

    def _other(self, event: Event, now: float) -> list[Action]:
        """Process events that matter only to groups that may change; here a warning is only passed on."""
        if isinstance(event, events.DrainRequested) and (rank := self.rank(event.agent_id)) >= 0:
            return [
                events.Note(
                    f"rank {rank} is about to be lost ({event.reason}), and a group of fixed size ends with it; with "
                    "min_workers= instead of num_workers= it would go on"
                )
            ]
        return []

    def _granted(self, event: events.Granted, now: float) -> list[Action]:
        """Assign ranks to the granted agents and start the group."""
        if self.phase is not Phase.WAITING:
            return [events.ReturnAgents(event.agent_ids)]
        self.members = {agent_id: MemberState(rank) for rank, agent_id in enumerate(event.agent_ids)}
        self.phase = Phase.FORMING
        return [events.StartGeneration(self.generation, event.agent_ids)]

    def _started(self, event: events.Started, now: float) -> list[Action]:
        """Record that a worker has started; the group runs once all have."""
        member = self.members.get(event.agent_id)
        if member is None:
            return []
        member.started = True
        if self.phase is Phase.FORMING and all(m.started for m in self.members.values()):
            self.phase, self.deadline = Phase.RUNNING, None
        return []

    def _forming(self, event: events.Forming, now: float) -> list[Action]:
        """Record that a worker waits in its first collective operation."""
        member = self.members.get(event.agent_id)
        if member is None or self.phase not in self.training:
            return []
        member.forms = event.size
        return self._never_formed(now)

    def _never_formed(self, now: float) -> list[Action]:
        """End a run in which a member has ended before its first collective operation, in which others wait for it.

        In a group that may change this proves nothing, as joining workers do not take part in that operation.
        """
        if self.spec.changes or self.spec.relaunches:
            return []
        waiting = [m for m in self.members.values() if m.forms and not m.is_end_known]
        size = max((m.forms for m in waiting), default=0)
        absent = [(m.rank, name) for name, m in self.members.items() if m.finished and not m.forms and m.rank < size]
        if not absent or self.phase not in self.training:
            return []
        rank, agent_id = min(absent)
        how = "called sys.exit(0)" if self.members[agent_id].exited else "returned"
        reason = (
            f"{how} before its first collective operation, in which {ranks(sorted(m.rank for m in waiting))} "
            f"{'waits' if len(waiting) == 1 else 'wait'} for it: every rank must take part in every collective"
        )
        return self._end(ConcludeRun(Phase.FAILED, "worker", reason, agent_id, rank), now)

    # -------------------------------------------------------------------------------- ends of single workers

    def _finished(self, event: events.Finished, now: float) -> list[Action]:
        """Record that a member's function has returned; the run has finished once all have."""
        member = self.members.get(event.agent_id)
        if member is None or self.phase not in (*self.training, Phase.SETTLING):
            return []
        member.started = member.finished = True
        member.exited = event.exited
        self.left_at = now if self.left_at is None else self.left_at
        if self.phase is Phase.SETTLING:
            return self._settle(now)
        if not all(m.finished for m in self.members.values()):
            return self._never_formed(now)
        self.phase = Phase.STOPPING
        self.outcome = ConcludeRun(Phase.FINISHED)
        self.deadline = now + self.spec.grace_s + self.spec.flush_s + 10
        return self._take_no_more() + self._conclude_if_over()

    def _failed(self, event: events.Failed, now: float) -> list[Action]:
        """Record a worker's failure, and wait for the one that may have caused it."""
        member = self.members.get(event.agent_id)
        if member is None or member.failed or self.phase not in (*self.training, Phase.SETTLING):
            return []
        member.failed = True
        self.failures.append(failure_of(event, member))
        return self._settle(now)

    def _settle(self, now: float) -> list[Action]:
        """Wait for the failure that may have caused the known ones, while members remain that may report one."""
        # A process that was killed, or a lost agent, is a cause by itself. An error of the user's code may follow from
        # the death of a member, which is reported within moments; a secondary failure always follows from another one,
        # and waits longer. Each further failure can only shorten the wait.
        surest = min(failure.certainty for failure in self.failures)
        if not surest or all(member.is_end_known for member in self.members.values()):
            return self._settled(now)
        waits = self.spec.settle_s if surest == 2 else self.spec.raised_settle_s
        first_told = self.phase is not Phase.SETTLING
        self.deadline = now + waits if first_told or self.deadline is None else min(self.deadline, now + waits)
        self.phase = Phase.SETTLING
        return []

    def _settled(self, now: float) -> list[Action]:
        """Continue with the failures that are known, without a further wait."""
        return self._end(self._blamed(), now)

    def _blamed(self) -> ConcludeRun:
        """Return the outcome by the first failure, or by a member that left with sys.exit(0) if others lost contact."""
        first = first_of(self.failures)
        exited = next(((name, m) for name, m in self.members.items() if m.exited), None)
        if first.echo and exited is not None:
            reason = f"called sys.exit(0) while rank {first.rank} still worked with it, which then met: {first.cause}"
            return ConcludeRun(Phase.FAILED, "worker", reason, exited[0], exited[1].rank)
        returned = sorted(m.rank for m in self.members.values() if m.finished)
        # A framework may end a process that waits for one that has returned, as JAX does: with a crash.
        follows = first.echo or not (first.raised or first.outside)
        before = f"when the function of {ranks(returned)} had returned: " if follows and returned else ""
        others = [(name, m) for name, m in self.members.items() if name != first.agent_id and not m.over]
        held = sorted(m.rank for name, m in others if name in self.liveness.stopped)
        # a framework's own timeout may expire before this one, with a crash
        if held and (first.echo or not first.raised):
            before += f"while the process of {ranks(held)} was stopped (SIGSTOP): "
        return ConcludeRun(Phase.FAILED, "worker", before + first.cause, first.agent_id, first.rank)

    def _lost(self, event: events.MemberLost, now: float) -> list[Action]:
        """Record the loss of an agent, which ends a run that still needs it."""
        member = self.members.get(event.agent_id)
        if member is None or member.lost:
            return []
        member.lost = True
        # If all agents are lost at once, most likely their application has ended, which the backend reports within
        # moments. The run's end waits for that report, unless an error of the user's code explains it.
        if all(one.lost for one in self.members.values()) and not any(one.raised for one in self.failures):
            self.explained_by = now + self.spec.settle_s
        actions: list[Action] = []
        if self.phase in (*self.training, Phase.SETTLING) and not member.over:
            self.failures.append(Failure(event.agent_id, member.rank, event.reason, outside=True))
            actions = self._settled(now)
        return actions + self._over(event.agent_id, now)

    def _over(self, agent_id: str, now: float) -> list[Action]:
        """Record that no process of a member's worker remains."""
        member = self.members.get(agent_id)
        if member is None:
            return []
        is_unreported = self.phase in self.training and not member.is_end_known
        member.over = True
        if is_unreported:
            self.failures.append(Failure(agent_id, member.rank, UNREPORTED))
        if is_unreported or self.phase is Phase.SETTLING:
            return self._settle(now)
        return self._conclude_if_over()

    # -------------------------------------------------------------------------------- idle and stopped members

    def _stepped(self, event: events.Stepped, now: float) -> list[Action]:
        """Process a heartbeat; report a process that is stopped (SIGSTOP) at the first one that shows it."""
        member = self.members.get(event.agent_id)
        if member is None:
            return []
        was_stopped = event.agent_id in self.liveness.stopped
        self.liveness.record_heartbeat(event.agent_id, event.stopped, event.idle_s, now)
        if self.phase not in self.training or was_stopped or not event.stopped:
            return []
        limit = f"if nobody lets it go on within {self.spec.stopped_s:g} s it counts as lost"
        return [
            events.Note(f"the process of rank {member.rank} is stopped (SIGSTOP), and the others wait for it; {limit}")
        ]

    def _look(self, now: float) -> list[Action]:
        """At each tick while workers are active: end the run for stopped processes, absent members or a standstill."""
        working = {agent_id: member for agent_id, member in self.members.items() if not member.is_end_known}
        held = self.liveness.stopped_for(working, self.spec.stopped_s, now)
        for agent_id in held:
            cause = f"its process has been stopped (SIGSTOP) for {self.spec.stopped_s:g} s"
            self.failures.append(Failure(agent_id, self.members[agent_id].rank, cause, outside=True))
            self.members[agent_id].failed = True
        return self._settled(now) if held else self._left_alone(working, now) or self._stalled(working, now)

    def _stalled(self, working: dict[str, MemberState], now: float) -> list[Action]:
        """Report once that all workers are idle, and end the run if they are for longer than ``progress_timeout``."""
        if len(working) < 2:
            return []
        idle_s = now - max(self.liveness.idle_since(agent_id, now) for agent_id in working)
        limit_s = None if self.spec.changes else self.spec.progress_timeout_s
        if limit_s is not None and idle_s >= limit_s:
            agent_id, first = min(working.items(), key=lambda item: item[1].rank)
            reason = f"no worker has done anything for {idle_s:.0f} s (progress_timeout={limit_s:g}): {STALLED}"
            return self._end(ConcludeRun(Phase.FAILED, "worker", reason, agent_id, first.rank), now)
        if idle_s < self.spec.stalled_s or self.told_stalled:
            return []
        self.told_stalled = True
        ends = "" if limit_s is not None or self.spec.changes else "; progress_timeout= would end the run"
        return [events.Note(f"no worker has done anything for {idle_s:.0f} s: {STALLED}{ends}")]

    def _left_alone(self, working: dict[str, MemberState], now: float) -> list[Action]:
        """End a run in which a member has ended and the others wait for it in a collective, idle."""
        if self.left_at is None or not working:
            return []
        exited = sorted((m.rank, agent_id) for agent_id, m in self.members.items() if m.exited)
        how, limit_s = ("called sys.exit(0)", self.spec.exited_s) if exited else ("returned", self.spec.returned_s)
        if limit_s is None:  # waiting is normal: an evaluator, a parameter server
            return []
        since = max(self.left_at, *(self.liveness.idle_since(agent_id, now) for agent_id in working))
        gone = exited or sorted((m.rank, agent_id) for agent_id, m in self.members.items() if m.finished)
        waiting, have = ranks(sorted(m.rank for m in working.values())), "has" if len(working) == 1 else "have"
        rule = "every rank must take part in every collective, up to the last one"
        rank, agent_id = gone[0]
        if now - since >= limit_s:
            reason = (
                f"{how}, and {waiting} {have} done nothing for {limit_s:g} s since, most likely waiting for it in a "
                f"collective: {rule}"
            )
            return self._end(ConcludeRun(Phase.FAILED, "worker", reason, agent_id, rank), now)
        # A member may wait actively, as NCCL does: after sys.exit(0) an active member is no sign of progress.
        is_due = now - self.left_at >= EXITED_NOTE_S if exited else now - since >= RETURNED_NOTE_S
        if self.members[agent_id].noted or not is_due:
            return []
        self.members[agent_id].noted = True
        still = f"while {waiting} still {'works' if len(working) == 1 else 'work'}" if exited else f"before {waiting}"
        return [
            events.Note(
                f"rank {rank} {how} {still}; if {waiting} {'waits' if len(working) == 1 else 'wait'} for it in a "
                f"collective, the run fails after {limit_s:g} s without activity: {rule}"
            )
        ]

    # -------------------------------------------------------------------------------- end of the run

    def _end(self, outcome: ConcludeRun, now: float) -> list[Action]:
        """Stop the workers that are still active, then conclude; the first failure determines the outcome."""
        # A run that has finished and is saving its last files can still be cancelled, or fail.
        if self.phase is Phase.STOPPING and self.outcome and self.outcome.phase is not Phase.FINISHED:
            return []
        self.phase, self.outcome = Phase.STOPPING, outcome
        self.deadline = now + self.spec.grace_s + self.spec.failed_flush_s + 2
        working = tuple(agent_id for agent_id, m in self.members.items() if not m.over and not m.lost)
        actions = self._take_no_more()
        if working:
            actions.append(events.StopWorkers(self.generation, working, self.spec.grace_s, self.spec.failed_flush_s))
        return actions + self._conclude_if_over()

    def _refused(self, outcome: ConcludeRun, now: float) -> list[Action]:
        """End a run whose cluster has ended or is unavailable, which also explains a loss of all agents just before."""
        if self.phase is not Phase.STOPPING:
            return self._end(outcome, now)
        if not self._awaits_reason():  # its outcome is final already
            return []
        self.outcome, self.explained_by = outcome, None
        return self._conclude_if_over()

    def _awaits_reason(self) -> bool:
        """Return True if all agents were lost at once and the state of their application is not yet known."""
        return self.explained_by is not None and self.outcome is not None and self.outcome.error == "worker"

    def _take_no_more(self) -> list[Action]:
        """Withdraw the request for agents.

        Comes before agents are released: a group that may grow would be granted them again.
        """
        return []

    def _conclude_if_over(self) -> list[Action]:
        """Conclude the run once every member has ended or is lost."""
        if self.outcome is None or self.phase.is_final:
            return []
        if not all(m.over or m.lost for m in self.members.values()) or self._awaits_reason():
            return []
        self.phase, self.deadline = self.outcome.phase, None
        returned = tuple(agent_id for agent_id, m in self.members.items() if not m.lost)
        return [events.ReturnAgents(returned), self.outcome]

    def _tick(self, now: float) -> list[Action]:
        """Enforce deadlines, and check the members' liveness."""
        if self.phase in self.training and (actions := self._look(now)):
            return actions
        if self.explained_by is not None and now >= self.explained_by:
            self.explained_by = None
            return self._conclude_if_over()
        if self.deadline is None or now < self.deadline:
            return []
        if self.phase is Phase.SETTLING:
            return self._settled(now)
        if self.phase is Phase.STOPPING:
            silent = tuple(agent_id for agent_id, m in self.members.items() if not m.over and not m.lost)
            for agent_id in silent:
                self.members[agent_id].lost = True
            dropped: list[Action] = []
            if silent:
                dropped.append(events.DropAgents(silent, "did not report its worker's end in time"))
            if silent and self.outcome is not None and self.outcome.phase is Phase.FINISHED:
                whose = ranks(sorted(self.members[agent_id].rank for agent_id in silent))
                dropped.append(
                    events.Note(
                        f"the agent of {whose} did not report in time that its last files are stored: some may be missing "
                        "in the run directory"
                    )
                )
            return [*dropped, *self._conclude_if_over()]
        return self._end(self._start_timeout(), now)

    def _start_timeout(self) -> ConcludeRun:
        """Return the outcome of a run whose workers did not all start in time."""
        if self.phase is Phase.WAITING:
            missing = tuple((rank, "no agent") for rank in range(self.spec.size))
        else:
            missing = tuple((m.rank, "not started") for m in self.members.values() if not m.started)
        reason = f"not all of {self.spec.size} workers were there after {self.spec.start_timeout_s:g} s"
        return ConcludeRun(Phase.FAILED, "start", reason, missing=missing)


def ranks(numbers: list[int]) -> str:
    """Return "rank 1" or "ranks 0 and 2" for a list of one or more ranks."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def failure_of(event: events.Failed, member: MemberState) -> Failure:
    """Return the failure that an agent has reported for this member's worker."""
    return Failure(
        event.agent_id, member.rank, event.cause, event.secondary, event.raised, event.outside, event.storage
    )
