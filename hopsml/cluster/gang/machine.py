"""Base of the state machines of a run's worker group: events in, actions out; no socket, thread, clock or disk.

The same events give the same actions. A machine's table gives, for each pair of a phase and a kind of event, the function
that handles it; a pair that is not in it changes nothing. Every sequence of events ends in FINISHED, FAILED, CANCELLED,
or in a phase with a deadline that a later ``Tick`` enforces. State is changed in place: a copy of the state of a
thousand members for each of their heartbeats would take longer than the decision.

The failure that is reported first need not be the cause: the neighbours of a process that was killed see their
connections break at once, while its own end is known only when the kernel has freed its memory. So the caller waits a
while for further reports, and then prefers failures that can be a cause to those that can only be an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.gang import events
from hopsml.cluster.gang.events import Action, ConcludeRun, Event, Phase
from hopsml.cluster.gang.pace import Liveness
from hopsml.cluster.shared.spec import WorkerGroup
from hopsml.storage.backoff import pause_s


@dataclass
class Exclusions:
    """Failure counts by host: ``limit`` of them exclude a host for ``cooldown_s`` seconds, the next for twice that."""

    limit: int
    cooldown_s: float
    failures: dict[str, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def record_failure(self, host: str, now: float) -> float | None:
        """Count a failure of the host and return for how many seconds it is excluded now; None if it is not."""
        count = self.failures[host] = self.failures.get(host, 0) + 1
        if count < self.limit:
            return None
        length = pause_s(count - self.limit + 1, self.cooldown_s)
        self.until[host] = now + length
        return length

    def is_excluded(self, host: str, now: float) -> bool:
        """Return True if the host is excluded at the time ``now``."""
        return now < self.until.get(host, now)


@dataclass(frozen=True)
class Failure:
    """End of one worker, as reported by its agent or implied by the loss of its agent."""

    agent_id: str
    rank: int
    cause: str
    echo: bool = False  # an effect that a member sees when another one fails: a reset connection, an aborted collective
    raised: bool = False  # by the user's code
    # a signal that no crash sends, or the loss of the agent: nothing in the group can be the cause
    outside: bool = False
    storage: bool = False  # shared storage did not respond while the worker was prepared

    @property
    def consequence_likelihood(self) -> int:
        """Likelihood that it follows from another failure: 0 if it cannot, 2 if it must, else 1."""
        return 0 if self.outside else 2 if self.echo else 1


def root_failure(failures: Sequence[Failure]) -> Failure:
    """Return the failure to report as the cause: the one least likely to follow from others, the earliest of equals.

    Args:
        failures: At least one failure, in order of arrival.
    """
    return min(failures, key=lambda failure: failure.consequence_likelihood)


Handler = Callable[[Any, Any, float], list[Action]]  # (machine, event, monotonic time in seconds) -> actions
Table = Mapping[tuple[Phase, type[Event]], Handler]

FINAL = tuple(phase for phase in Phase if phase.is_final)
LIVE = tuple(phase for phase in Phase if not phase.is_final)
UNREPORTED = "its process ended without a report"
_UNFINISHED = "did not report its worker's end in time"


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


def table(*rows: tuple[type[Event], Iterable[Phase], Handler]) -> Table:
    """Return the transition table of rows (event, phases, handler); raise ValueError if two rows give the same pair."""
    found: dict[tuple[Phase, type[Event]], Handler] = {}
    for event, phases, handler in rows:
        for phase in phases:
            if (phase, event) in found:
                raise ValueError(f"two rows for {event.__name__} while {phase.value}")
            found[phase, event] = handler
    return found


@dataclass
class GroupMachine:
    """State machine of one run's group; ``begin`` and ``handle`` are the only ways to change it."""

    spec: WorkerGroup
    phase: Phase = Phase.WAITING
    generation: int = 0
    members: Mapping[str, MemberState] = field(default_factory=dict)
    deadline: float | None = None
    outcome: ConcludeRun | None = None
    failures: list[Failure] = field(default_factory=list)  # of the present generation
    liveness: Liveness = field(default_factory=Liveness)
    # all agents are lost: until when the loss of the cluster itself may be reported as the reason
    explained_by: float | None = None

    @property
    def table(self) -> Table:
        """Transition table of the machine."""
        raise NotImplementedError

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
        if isinstance(event, events.OfWorker) and not self.is_current(event.agent_id, event.generation):
            return []
        handler = self.table.get((self.phase, type(event)))
        return handler(self, event, now) if handler is not None else []

    def is_current(self, agent_id: str, generation: int) -> bool:
        """Return True if reports of this agent about this generation apply to its present worker."""
        raise NotImplementedError

    def rank(self, agent_id: str) -> int:
        """Return the rank of the agent's worker; -1 for an agent that is no member."""
        member = self.members.get(agent_id)
        return member.rank if member else -1

    def agent_of(self, rank: int) -> str | None:
        """Return the agent whose worker has this rank now; None if there is none."""
        return next((agent_id for agent_id, member in self.members.items() if member.rank == rank), None)

    def agent_counts(self, idle: int) -> tuple[int, str]:
        """Return how many agents a waiting group has, and as text how many it needs.

        Args:
            idle: Number of idle agents.
        """
        return min(idle, self.spec.size), str(self.spec.size)

    # -------------------------------------------------------------------------------- for the handlers

    def agents_with_processes(self) -> tuple[str, ...]:
        """Return the agents of the members whose processes may still exist."""
        return tuple(agent_id for agent_id, member in self.members.items() if not member.over and not member.lost)

    def is_decided(self) -> bool:
        """Return True if the run is about to end in another way than FINISHED, which no later event changes."""
        return self.phase is Phase.STOPPING and self.outcome is not None and self.outcome.phase is not Phase.FINISHED

    def finishes(self) -> bool:
        """Return True if the run is about to end as FINISHED."""
        return self.phase is Phase.STOPPING and self.outcome is not None and self.outcome.phase is Phase.FINISHED

    def unstored(self, agent_id: str, reason: str) -> events.Unstored:
        """Return the report that the last files of a member may be missing."""
        rank = self.members[agent_id].rank
        return events.Unstored(rank, f"the last files of rank {rank} may be missing: {reason}")

    def awaits_reason(self) -> bool:
        """Return True if all agents were lost at once and the state of their application is not yet known."""
        return self.explained_by is not None and self.outcome is not None and self.outcome.error == "worker"

    def end(self, outcome: ConcludeRun, now: float) -> list[Action]:
        """Stop the workers that are still active, then conclude; the first failure determines the outcome."""
        raise NotImplementedError

    def conclude(self) -> list[Action]:
        """Conclude the run once every member has ended or is lost."""
        if self.outcome is None or self.phase.is_final or self.agents_with_processes() or self.awaits_reason():
            return []
        self.phase, self.deadline = self.outcome.phase, None
        returned = tuple(agent_id for agent_id, member in self.members.items() if not member.lost)
        return [events.ReturnAgents(returned), self.outcome]

    def drop_unfinished_agents(self) -> list[Action]:
        """Disconnect the agents that have not reported the end of their workers at the deadline of a run's end."""
        silent = self.agents_with_processes()
        for agent_id in silent:
            self.members[agent_id].lost = True
        actions: list[Action] = [events.DropAgents(silent, _UNFINISHED)] if silent else []
        if silent and self.finishes():
            whose = ranks(sorted(self.members[agent_id].rank for agent_id in silent))
            text = f"the agent of {whose} did not report in time that its last files are stored: some may be missing "
            actions.append(events.Note(f"{text}in the run directory"))
        return actions

    def start_timeout_outcome(self) -> ConcludeRun:
        """Return the outcome of a run whose workers did not all start in time."""
        if self.phase is Phase.WAITING:
            missing = tuple((rank, "no agent") for rank in range(self.spec.size))
        else:
            missing = tuple((m.rank, "not started") for m in self.members.values() if not m.started)
        reason = f"not all of {self.spec.size} workers had connected after {self.spec.start_timeout_s:g} s"
        return ConcludeRun(Phase.FAILED, "start", reason, missing=missing)


def return_granted(group: GroupMachine, event: events.Granted, now: float) -> list[Action]:
    """Return agents that were granted too late to belong to the run."""
    return [events.ReturnAgents(event.agent_ids)]


def cancel(group: GroupMachine, event: events.CancelRequested, now: float) -> list[Action]:
    """End the run because the user, or the end of the application, requests it."""
    return group.end(ConcludeRun(Phase.CANCELLED, "cancelled", event.reason), now)


def end_unavailable(group: GroupMachine, event: events.Refused, now: float) -> list[Action]:
    """End a run whose cluster has ended or is unavailable, which also explains a loss of all agents just before."""
    outcome = ConcludeRun(Phase.FAILED, event.error, event.reason)
    if group.phase is not Phase.STOPPING:
        return group.end(outcome, now)
    if not group.awaits_reason():  # its outcome is final already
        return []
    group.outcome, group.explained_by = outcome, None
    return group.conclude()


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


# Rows of every table.
COMMON = ((events.Granted, FINAL, return_granted), (events.Refused, LIVE, end_unavailable))
