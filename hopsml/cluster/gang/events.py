"""Events and actions of the state machines of a run's group, and the phases of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from hopsml.core.states import Lifecycle


class Phase(Enum):
    """Phase of a run's group; the value is the text that users read."""

    WAITING = "waiting for executors"
    FORMING = "starting workers"
    RUNNING = "running"
    PARKING = "changing members at the next commit"
    MENDING = "going on with other members"
    REFORMING = "ending a generation"
    SETTLING = "finding out who failed first"
    STOPPING = "stopping"
    FINISHED = Lifecycle.FINISHED.value
    FAILED = Lifecycle.FAILED.value
    CANCELLED = Lifecycle.CANCELLED.value

    @property
    def is_final(self) -> bool:
        """True if the run has ended: no other phase follows."""
        return self in (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED)

    @property
    def state(self) -> Lifecycle:
        """Lifecycle state that the run's record uses for this phase."""
        return Lifecycle(self.value) if self.is_final else _STATES[self]


_STATES = {
    Phase.WAITING: Lifecycle.WAITING,
    Phase.FORMING: Lifecycle.STARTING,
    Phase.RUNNING: Lifecycle.RUNNING,
    Phase.PARKING: Lifecycle.RUNNING,
    Phase.MENDING: Lifecycle.RUNNING,
    Phase.REFORMING: Lifecycle.STARTING,
    Phase.SETTLING: Lifecycle.CLOSING,
    Phase.STOPPING: Lifecycle.CLOSING,
}


# ---------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Granted:
    """Agents granted to this run, in rank order for a group of fixed size."""

    agent_ids: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    # one per agent: True if its fork server has imported all modules that the workers need
    ready: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Ranked:
    """Rank order that the layout assigned to the members chosen for a generation of a group that may change."""

    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class Ready:
    """Report that an agent has imported the modules that the workers need."""

    agent_id: str


@dataclass(frozen=True)
class Refused:
    """Final refusal: there will never be enough agents, or none can be obtained; ``error`` names the kind."""

    reason: str
    error: str = "slots"


@dataclass(frozen=True)
class MemberLost:
    """Loss of an agent: its connection broke or its lease expired."""

    agent_id: str
    reason: str


@dataclass(frozen=True)
class Started:
    """Report that the worker is about to call the user's function."""

    agent_id: str
    generation: int


@dataclass(frozen=True)
class Forming:
    """Report that the worker waits in its first collective operation for all ranks below ``size``."""

    agent_id: str
    generation: int
    size: int


@dataclass(frozen=True)
class Reconfigurable:
    """Report that the worker's group can lose members and continue in its processes.

    Attributes:
        agent_id: The worker's agent.
        generation: Generation of the group.
        fixed: Why no new worker can join the group; empty if one can.
    """

    agent_id: str
    generation: int
    fixed: str = ""


@dataclass(frozen=True)
class Reconfigured:
    """Report that the worker continues in place as a member of another generation, or that it cannot.

    Attributes:
        agent_id: The worker's agent.
        generation: The new generation.
        step: Batches since the beginning of the run; -1: unknown.
        problem: Why it could not continue; empty if it did.
    """

    agent_id: str
    generation: int
    step: int = -1
    problem: str = ""


@dataclass(frozen=True)
class Paused:
    """Report that the worker waits between two batches, after ``step`` of them.

    A member waits for joining workers; a joining worker waits to be admitted.
    """

    agent_id: str
    generation: int
    step: int = -1


@dataclass(frozen=True)
class Stepped:
    """Heartbeat with the worker's state and progress.

    Attributes:
        agent_id: The worker's agent.
        generation: Generation of its group.
        step: Batches since the beginning of the run; -1: unknown.
        stopped: True if its process is stopped (SIGSTOP).
        age_s: Seconds since it finished the last step.
        idle_s: Seconds for which it has used no processor time, and has not waited for storage.
        storage_s: Seconds for which it has waited for storage since its start.
    """

    agent_id: str
    generation: int
    step: int
    stopped: bool = False
    age_s: float = 0.0
    idle_s: float = 0.0
    storage_s: float = 0.0


@dataclass(frozen=True)
class WorkerCommitted:
    """Report that the agent holds the training state as it was after ``step``."""

    agent_id: str
    generation: int
    step: int


@dataclass(frozen=True)
class PausedAtCommit:
    """Report that the worker has committed ``step`` and has paused there."""

    agent_id: str
    generation: int
    step: int


@dataclass(frozen=True)
class Finished:
    """Report that the user's function returned; ``exited``: it called sys.exit(0) instead."""

    agent_id: str
    generation: int
    exited: bool = False


@dataclass(frozen=True)
class Failed:
    """Failure of a worker, with its cause as text.

    Attributes:
        agent_id: The worker's agent.
        generation: Generation of its group.
        cause: The error, or how its process ended.
        secondary: True if it only follows from another member's failure.
        raised: True for an error of the user's code.
        outside: True if a signal that no crash sends ended the worker.
        storage: True if the worker was not started because shared storage did not respond.
    """

    agent_id: str
    generation: int
    cause: str
    secondary: bool = False
    raised: bool = False
    outside: bool = False
    storage: bool = False


@dataclass(frozen=True)
class Closed:
    """Report that no process of the worker remains on its host."""

    agent_id: str
    generation: int


@dataclass(frozen=True)
class DrainRequested:
    """Warning that an agent will end, because its node is going away or its executor is being decommissioned.

    Attributes:
        agent_id: The agent.
        reason: Why it will end.
        time_s: Seconds until then; None if unknown.
    """

    agent_id: str
    reason: str
    time_s: float | None = None


@dataclass(frozen=True)
class CommitPersisted:
    """Report that an agent has written a checkpoint of ``step`` to shared storage, which took ``seconds``."""

    agent_id: str
    step: int
    seconds: float = 0.0


@dataclass(frozen=True)
class ResizeRequested:
    """User request to run with at most ``size`` workers."""

    size: int


@dataclass(frozen=True)
class CancelRequested:
    """Request to end the run, made by the user, an interrupt or the end of the program.

    Attributes:
        reason: Who requested it, or why.
        complete: True if the work of a group of independent members is done, so that the run has succeeded.
    """

    reason: str
    complete: bool = False


@dataclass(frozen=True)
class WorkerActive:
    """Report that the worker has sent the driver a message, which proves that it works."""

    agent_id: str
    generation: int


@dataclass(frozen=True)
class ReleaseRequested:
    """Request that a member finishes its work and releases its agent; ``at_once``: stop it without waiting."""

    rank: int
    at_once: bool = False


@dataclass(frozen=True)
class Tick:
    """Timer event, the only one at which deadlines are enforced."""


OfWorker = (
    Started
    | Forming
    | Reconfigurable
    | Reconfigured
    | Paused
    | Stepped
    | WorkerCommitted
    | PausedAtCommit
    | Finished
    | Failed
    | Closed
    | WorkerActive
)  # reports of one worker in one generation
Event = (
    Granted
    | Ranked
    | Ready
    | Refused
    | MemberLost
    | OfWorker
    | DrainRequested
    | CommitPersisted
    | ResizeRequested
    | CancelRequested
    | ReleaseRequested
    | Tick
)


# ---------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class RequestAgents:
    """Request for ``count`` agents, granted all together, and for further ones up to ``most`` in total."""

    count: int
    most: int


@dataclass(frozen=True)
class StartGeneration:
    """Start the group: launch a worker on each member.

    Attributes:
        generation: Number of the generation.
        agent_ids: The members; for a group of fixed size the index is the rank.
        step: The commit to continue from; -1: none.
        holders: The agents that hold it.
        why: What ended the generation before.
        stored: Without a commit, the step of the run's checkpoint to continue from; -1: none is known.
    """

    generation: int
    agent_ids: tuple[str, ...]
    step: int = -1
    holders: tuple[str, ...] = ()
    why: str = ""
    stored: int = -1


@dataclass(frozen=True)
class PrepareNewcomers:
    """Launch joining workers, which prepare by themselves what the members have and then wait to be admitted.

    Attributes:
        generation: Generation in which their processes begin.
        agent_ids: Their agents.
        members: Agents of the present members, in rank order.
        step: The commit to prepare from.
        holders: The agents that hold it.
    """

    generation: int
    agent_ids: tuple[str, ...]
    members: tuple[str, ...]
    step: int
    holders: tuple[str, ...]


@dataclass(frozen=True)
class PauseGroup:
    """Pause the workers of these members, all between the same two batches."""

    generation: int
    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class ReconfigureGroup:
    """Continue with these members as the next generation, in the processes that they have.

    Attributes:
        generation: Number of the new generation.
        agent_ids: Members in rank order, then joining workers, whose ranks the layout assigns.
        meets: True if all of them exchange the chief's state before they continue, because workers are joining, or were
            joining in an attempt before this one.
    """

    generation: int
    agent_ids: tuple[str, ...]
    meets: bool = False


@dataclass(frozen=True)
class PauseWorkersAtCommit:
    """Pause the workers of these members at their next commit."""

    generation: int
    agent_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class PersistCommit:
    """Write the commit that this agent holds to shared storage."""

    agent_id: str


@dataclass(frozen=True)
class StopWorkers:
    """Stop the workers of these members.

    Attributes:
        generation: Generation of the workers.
        agent_ids: Their agents.
        grace_s: Seconds between SIGTERM and SIGKILL.
        flush_s: Seconds for copying the last files to shared storage.
        keep: True if another generation follows, so that the agents retain commits and files.
        dump: True to have the Python threads write their stacks to the log first.
    """

    generation: int
    agent_ids: tuple[str, ...]
    grace_s: float
    flush_s: float
    keep: bool = False
    dump: bool = False


@dataclass(frozen=True)
class DropAgents:
    """Disconnect agents that did not respond in time; they end when their lease expires."""

    agent_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ReturnAgents:
    """Release agents that the run no longer needs; they are dismissed if ``leave`` gives a reason."""

    agent_ids: tuple[str, ...]
    leave: str = ""


RELEASED, RETURNED = "released", "its worker returned"  # reasons for which a member left in order


@dataclass(frozen=True)
class Unstored:
    """Report that files of a run that has finished are not stored, or may not be.

    Attributes:
        rank: Rank whose files they are; -1 for the whole run.
        text: What is missing, and why.
        is_checkpoint: True for a checkpoint; False for files that an agent may not have copied to shared storage.
    """

    rank: int
    text: str
    is_checkpoint: bool = False


@dataclass(frozen=True)
class Announce:
    """Report to observers that an independent member has joined or left.

    Attributes:
        kind: ``joined`` or ``left``.
        rank: Number of the member.
        text: Its host, or why it left.
    """

    kind: str
    rank: int
    text: str


@dataclass(frozen=True)
class Note:
    """Publish this sentence to the observers of the run, and record the losses that it reports.

    Logs of events, and comparisons, have the sentence alone.

    Attributes:
        text: The sentence.
        lost: Rank and cause of each worker that was lost.
        joined: Number of workers that joined, or were started again.
        step: Step at which the others went on, or from which they continue; -1: unknown.
        restarts: True if all workers start again because of the losses.
    """

    text: str
    lost: tuple[tuple[int, str], ...] = field(default=(), compare=False)
    joined: int = field(default=0, compare=False)
    step: int = field(default=-1, compare=False)
    restarts: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class ConcludeRun:
    """End of the run, with the first failure if it has failed.

    Attributes:
        phase: The final phase.
        error: Kind of the error.
        reason: The error as text.
        agent_id: Agent of the member that failed first.
        rank: Its rank; -1: none.
        missing: Pairs of a rank that did not start and what was missing.
    """

    phase: Phase
    error: str = ""  # worker | start | slots | launcher | cancelled
    reason: str = ""
    agent_id: str = ""
    rank: int = -1
    missing: tuple[tuple[int, str], ...] = ()


Action = (
    RequestAgents
    | StartGeneration
    | PrepareNewcomers
    | PauseGroup
    | ReconfigureGroup
    | PauseWorkersAtCommit
    | PersistCommit
    | StopWorkers
    | DropAgents
    | ReturnAgents
    | Announce
    | Unstored
    | Note
    | ConcludeRun
)
