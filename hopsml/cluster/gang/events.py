"""Events that can happen to a run's group, and actions that follow from them; and the phases of a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hopsml.states import Lifecycle


class Phase(Enum):
    """Where a run stands; the value is what people read."""

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
        """Whether the run is over: no other phase follows."""
        return self in (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED)

    @property
    def state(self) -> Lifecycle:
        """How the run stands in this phase: one of the words that its record uses."""
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
    """Agents that belong to this run from now on, in rank order for a group of fixed size."""

    agent_ids: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    ready: tuple[bool, ...] = ()  # whether its fork server has everything imported


@dataclass(frozen=True)
class Ranked:
    """The layout's order of the members that were just chosen for a generation of a group that may change."""

    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class Ready:
    """An agent has imported what the workers need."""

    agent_id: str


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
class Forming:
    """The worker has come to its first collective operation, for which it waits for all ranks below ``size``."""

    agent_id: str
    generation: int
    size: int


@dataclass(frozen=True)
class Mendable:
    """The worker has formed a group that can go on, in its process, without members that are lost.

    ``fixed``: why no newcomer can come into it; empty where one can.
    """

    agent_id: str
    generation: int
    fixed: str = ""


@dataclass(frozen=True)
class Mended:
    """The worker has gone on as a member of ``generation``, ``step`` batches after the beginning of the run; -1: unknown.

    ``problem``: why it could not, where it could not.
    """

    agent_id: str
    generation: int
    step: int = -1
    problem: str = ""


@dataclass(frozen=True)
class Paused:
    """The worker waits between two batches, ``step`` of them done: a member for newcomers, a newcomer to be let in."""

    agent_id: str
    generation: int
    step: int = -1


@dataclass(frozen=True)
class Stepped:
    """How the worker is, and how far: batches since the beginning of the run, -1 where nobody can tell.

    ``stopped``: the system holds its process. ``age_s``: how long ago it finished the last step. ``idle_s``: for how long it
    has used no processor.
    """

    agent_id: str
    generation: int
    step: int
    stopped: bool = False
    age_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True)
class Committed:
    """The agent holds the training state as it was after ``step``."""

    agent_id: str
    generation: int
    step: int


@dataclass(frozen=True)
class Parked:
    """The worker has committed ``step`` and makes no further one."""

    agent_id: str
    generation: int
    step: int


@dataclass(frozen=True)
class Finished:
    """The user's function returned; ``exited``: it called sys.exit(0) instead."""

    agent_id: str
    generation: int
    exited: bool = False


@dataclass(frozen=True)
class Failed:
    """The worker is lost; ``secondary`` marks the echo of another member's failure, ``raised`` the user's own error.

    ``outside``: by a signal that no crash sends. ``storage``: it was not begun, since the store did not answer.
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
    """Nothing of the worker is left on its host."""

    agent_id: str
    generation: int


@dataclass(frozen=True)
class DrainAsked:
    """This agent will go: its node was warned, or its executor is being decommissioned.

    ``time_s``: how long it still has; None where nobody knows.
    """

    agent_id: str
    reason: str
    time_s: float | None = None


@dataclass(frozen=True)
class Persisted:
    """An agent has put a checkpoint of ``step`` on shared storage, which took ``seconds``."""

    agent_id: str
    step: int
    seconds: float = 0.0


@dataclass(frozen=True)
class ResizeAsked:
    """The user wants this many workers at most."""

    size: int


@dataclass(frozen=True)
class CancelAsked:
    """The user, an interrupt or the end of the program wants the run to end.

    ``complete``: because all is done, in a group whose members are independent.
    """

    reason: str
    complete: bool = False


@dataclass(frozen=True)
class Heard:
    """The worker has said something to the driver: it is of use."""

    agent_id: str
    generation: int


@dataclass(frozen=True)
class ReleaseAsked:
    """This member shall end what it does, and give its agent back; ``at_once``: it is not waited for."""

    rank: int
    at_once: bool = False


@dataclass(frozen=True)
class Tick:
    """Time passes; deadlines are enforced here alone."""


OfWorker = (
    Started | Forming | Mendable | Mended | Paused | Stepped | Committed | Parked | Finished | Failed | Closed | Heard
)  # of one generation
Event = (
    Granted
    | Ranked
    | Ready
    | Refused
    | MemberLost
    | OfWorker
    | DrainAsked
    | Persisted
    | ResizeAsked
    | CancelAsked
    | ReleaseAsked
    | Tick
)


# ---------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class AskAgents:
    """The run wants ``count`` agents at once, and takes up to ``most``."""

    count: int
    most: int


@dataclass(frozen=True)
class StartGeneration:
    """Form the group and launch a worker on each member.

    For a group of fixed size the index in the tuple is the rank. ``step`` is the commit to go on from, -1 for none;
    ``holders`` have it. Without one, ``stored`` is the run's checkpoint to go on from, -1 where none is known of.
    """

    generation: int
    agent_ids: tuple[str, ...]
    step: int = -1
    holders: tuple[str, ...] = ()
    why: str = ""
    stored: int = -1


@dataclass(frozen=True)
class PrepareNewcomers:
    """Launch a worker on each of these agents, which prepares by itself what the members have, and waits to be let in.

    ``members``: in rank order. ``step``: the commit to prepare from; ``holders`` have it.
    """

    generation: int
    agent_ids: tuple[str, ...]
    members: tuple[str, ...]
    step: int
    holders: tuple[str, ...]


@dataclass(frozen=True)
class PauseGroup:
    """Have these members' workers pause, all between the same two batches."""

    generation: int
    agent_ids: tuple[str, ...]


@dataclass(frozen=True)
class MendGroup:
    """Have the workers of these members, in rank order but for newcomers, go on as this generation in their processes.

    ``meets``: those that have paused exchange the chief's state before they go on, as newcomers are, or were, among them.
    """

    generation: int
    agent_ids: tuple[str, ...]
    meets: bool = False


@dataclass(frozen=True)
class ParkWorkers:
    """Have these members' workers commit and stand still at their next commit."""

    generation: int
    agent_ids: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class PersistCommit:
    """Have this agent put the commit that it holds on shared storage."""

    agent_id: str


@dataclass(frozen=True)
class StopWorkers:
    """End these members' workers.

    ``keep``: a further generation follows, the agents keep commits and files. ``dump``: first let the Python threads write
    their stacks into the log.
    """

    generation: int
    agent_ids: tuple[str, ...]
    grace_s: float
    flush_s: float
    keep: bool = False
    dump: bool = False


@dataclass(frozen=True)
class DropAgents:
    """These agents did not answer in time: cut them off, they end by their lease."""

    agent_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ReturnAgents:
    """The run needs these agents no more. ``leave``: nobody shall, they are to end."""

    agent_ids: tuple[str, ...]
    leave: str = ""


@dataclass(frozen=True)
class Announce:
    """An independent member has begun (``joined``; ``text``: its host) or is gone (``left``: why)."""

    kind: str
    rank: int
    text: str


@dataclass(frozen=True)
class Note:
    """Tell whoever follows the run this sentence."""

    text: str


@dataclass(frozen=True)
class Conclude:
    """The run is over. For a failure: who failed first, and why; ``missing`` maps rank -> what was not there."""

    phase: Phase
    error: str = ""  # worker | start | slots | launcher | cancelled
    reason: str = ""
    agent_id: str = ""
    rank: int = -1
    missing: tuple[tuple[int, str], ...] = ()


Action = (
    AskAgents
    | StartGeneration
    | PrepareNewcomers
    | PauseGroup
    | MendGroup
    | ParkWorkers
    | PersistCommit
    | StopWorkers
    | DropAgents
    | ReturnAgents
    | Announce
    | Note
    | Conclude
)
