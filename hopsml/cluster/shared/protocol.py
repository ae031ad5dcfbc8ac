"""Messages between coordinator and agents: typed msgpack, one WebSocket frame each.

The coordinator's messages carry a run and a generation wherever they are about a worker; so do the agents', and what
belongs to an older generation is dropped. Nothing here is pickled: ``payload`` and ``result`` are opaque bytes that are
unpickled by the worker and by the driver, after both sides have authenticated.
"""

from __future__ import annotations

import msgspec

from hopsml.cluster.shared.spec import RunSpec

VERSION = 13  # both sides must use the same version
MAX_TO_AGENT = 1 << 30  # bytes: the training function with what it captured travels this way
MAX_TO_COORDINATOR = 64 << 20  # bytes: results, reports and log lines travel this way


class Message(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all messages; the class name is the msgpack tag."""


# ------------------------------------------------------------------------------------------ coordinator -> agent


class Welcome(Message, frozen=True, tag="welcome"):
    """The agent is accepted. It exits if nothing arrives for ``lease_s`` seconds."""

    lease_s: float


class Renew(Message, frozen=True, tag="renew"):
    """Renew the agent's lease; sent periodically."""


class Preload(Message, frozen=True, tag="preload"):
    """Have a fork server that has imported these modules, at least."""

    modules: tuple[str, ...]


class Resume(msgspec.Struct, frozen=True):
    """Checkpoints of other runs that a run begins from: their run directories and steps."""

    url: str = ""  # "": it begins from nothing
    step: int = -1  # of the checkpoint there; -1: its newest
    fits: tuple[tuple[str, int, int], ...] = ()  # run directory, number and step of further calls of fit


class CommitSource(msgspec.Struct, frozen=True):
    """Where the workers of a generation get the training state from."""

    step: int = -1  # of a commit that agents hold; -1: of none
    holder: str = ""  # host:port of an agent that has it
    certificate: str = ""  # the one that agent shows
    stored: int = -1  # else: of the run's own checkpoint to begin from; -1: its newest


class Formation(Message, frozen=True, tag="formation"):
    """What all workers of one generation share; encoded once for all of them."""

    run_id: str
    generation: int
    spec: RunSpec
    payload: bytes  # cloudpickle of (function, keyword arguments)
    run_url: str
    cluster_json: str  # TF_CONFIG's "cluster"; empty where no TF_CONFIG is wanted
    leader: str  # host:port of rank 0
    world_size: int
    resume: Resume = Resume()
    commit: CommitSource = CommitSource()
    collective: tuple[str, ...] = ()  # host:port of each that trains, by rank
    collective_key: bytes = b""  # that they prove to each other; of this generation alone
    guarded: bool = False  # TensorFlow's servers ask for that key, too: every member can show it
    joins: bool = False  # the others train: the worker prepares by itself, and comes to them when they have paused

    @property
    def follows(self) -> bool:
        """Whether an earlier generation of this run may have left checkpoints."""
        return self.generation > 0 and self.spec.group.regroups


class Launch(Message, frozen=True, tag="launch"):
    """Start a worker of the formation that was sent before; what differs between workers."""

    run_id: str
    generation: int
    rank: int
    local_rank: int
    role: str
    task_index: int
    gpu_indices: tuple[int, ...]
    ring_order: str
    environment: dict[str, str]
    has_commit: bool = False  # this agent holds the formation's commit itself


class Mend(Message, frozen=True, tag="mend"):
    """Have the worker go on, in its process, as a member of a further generation: others are lost, or come.

    The same for all. It keeps its port, which the agent still holds, and what it was started with: log, folders,
    environment. Whoever has paused goes on, where it ``meets`` newcomers after the chief's state has gone to these.
    """

    run_id: str
    generation: int  # that begins
    leader: str  # host:port of rank 0
    collective: tuple[str, ...]  # host:port of each member, by rank; by its own each finds its place
    collective_key: bytes
    meets: bool = False  # whether those that have paused are given the chief's state, newcomers among them

    def place(self, address: str) -> tuple[int, int]:
        """Rank, and rank within its host, of the member with this address. Raises ValueError where there is none."""
        rank, host = self.collective.index(address), address.rpartition(":")[0]
        return rank, sum(other.rpartition(":")[0] == host for other in self.collective[:rank])


class Pause(Message, frozen=True, tag="pause"):
    """Have the worker's group pause, all members between the same two batches: newcomers are ready."""

    run_id: str
    generation: int


class Park(Message, frozen=True, tag="park"):
    """Let the worker commit at its next opportunity and wait: the group is going to change.

    Where the members are independent: nothing more will be told to it; it finishes what it does, and leaves.
    """

    run_id: str
    generation: int


class Tell(Message, frozen=True, tag="tell"):
    """Pass ``data`` to the worker; its content is between driver and worker."""

    run_id: str
    generation: int
    data: bytes


class Stop(Message, frozen=True, tag="stop"):
    """End the worker: SIGTERM, the grace time, then SIGKILL of its whole process group."""

    run_id: str
    generation: int
    grace_s: float
    flush_s: float
    keep: bool = False  # a further generation of the run follows: files and commits stay
    dump: bool = False  # first let the Python threads write their stacks into the log


class MessagesTaken(Message, frozen=True, tag="messages-taken"):
    """Flow control: the coordinator has handled ``size`` more bytes of the agent's messages."""

    size: int


class ProbePeer(Message, frozen=True, tag="probe-peer"):
    """Exchange some bytes with another agent and report the result; see ``preflight/probe.py``."""

    agent_id: str
    address: str  # host:port of its probe door


class LogTaken(Message, frozen=True, tag="log-taken"):
    """Flow control: ``size`` bytes of the worker's output have arrived, and as many may be sent in addition."""

    run_id: str
    generation: int
    size: int


class TakeProfile(Message, frozen=True, tag="take-profile"):
    """Have the worker looked at for some seconds; ``path``: of the result, below the run's directory."""

    run_id: str
    generation: int
    wish: str  # its id
    seconds: int
    form: str
    idle: bool
    path: str


class Persist(Message, frozen=True, tag="persist"):
    """Write the newest commit of the run to shared storage: this agent leaves, and no remaining one has it."""

    run_id: str


class Release(Message, frozen=True, tag="release"):
    """The run ends on this agent: mirror its last files, drop its commits."""

    run_id: str


class Dismiss(Message, frozen=True, tag="dismiss"):
    """The agent is not needed any more: it exits, its Spark task ends and Spark gets the slot back."""

    reason: str


# ------------------------------------------------------------------------------------------ agent -> coordinator


class Hello(Message, frozen=True, tag="hello"):
    """The first message. ``ask``, ``index``: which of the requested slots this is, the same after a retry of Spark's.

    ``node``: the machine by the name that the cluster has for it, "" where it has none. A container may have an address and
    a hostname that are its own alone, and go with it.
    """

    version: int
    ask: int
    index: int
    host: str
    port: int
    collective_port: int
    hostname: str
    executor_id: str
    pid: int
    rack: str = ""
    gpu_indices: tuple[int, ...] = ()
    gpu_bus_ids: tuple[str, ...] = ()
    topology: str = ""
    slot: int = 0
    task: int = -1  # Spark's number for this attempt of the task
    final: bool = False  # Spark's last attempt of the task, whose loss would fail the whole job: not to be used
    guards: bool = False  # whether its workers' servers of TensorFlow's are guarded
    node: str = ""

    @property
    def place(self) -> str:
        """Where it is, for people and records: the node, else the address."""
        return self.node or self.host

    @property
    def machine(self) -> str:
        """What its failures count for: the node, else the hostname."""
        return self.node or self.hostname


class PortsHeld(Message, frozen=True, tag="ports-held"):
    """The ports that the next generation may use; the agent holds them until the worker has bound them."""

    port: int  # for its framework's server
    collective_port: int


class ServerReady(Message, frozen=True, tag="server-ready"):
    """The fork server has imported its modules."""

    modules: tuple[str, ...]


class GpuFacts(msgspec.Struct, frozen=True):
    """The state of one GPU of the slot, by NVML."""

    index: int
    ecc_errors: int  # uncorrected, since the driver was loaded; 0 where it counts none
    temperature_c: int
    processes: int  # other processes that compute on it


class PreflightFacts(Message, frozen=True, tag="preflight-facts"):
    """What an agent has measured of its slot, once; limits are -1 where there is none. 1 MB is 2**20 bytes."""

    clock: float  # seconds since the epoch when it was sent
    host: str
    door: int  # port at which neighbours exchange bytes with it
    folder: str  # its scratch folder
    open_files: int
    stack_mb: float
    shared_memory_mb: float
    disk_mb: float
    write_mb_s: float
    disk_problem: str
    versions: dict[str, str]
    gpus: tuple[GpuFacts, ...] = ()
    core_mb_s: float = 0.0  # SHA-256 on one core; 0: not measured
    others: tuple[str, ...] = ()  # people besides this user who have processes on the host, as far as it can see them
    guards: bool = False  # whether TensorFlow's server lets only members of its group in there


class PeerProbed(Message, frozen=True, tag="peer-probed"):
    """The result of an exchange of bytes with another agent; ``problem`` is empty where all came back unchanged."""

    agent_id: str
    mb_s: float
    problem: str = ""


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """The agent is alive; sent periodically."""


class WorkerStarted(Message, frozen=True, tag="worker-started"):
    """The worker is about to call the user's function."""

    run_id: str
    generation: int


class WorkerForming(Message, frozen=True, tag="worker-forming"):
    """The worker has come to its first collective operation, and waits for all ranks below ``size``."""

    run_id: str
    generation: int
    size: int


class WorkerMendable(Message, frozen=True, tag="worker-mendable"):
    """The worker has formed a group that can go on, in its process, without members that are lost.

    ``fixed``: why no newcomer can come into it; empty where one can.
    """

    run_id: str
    generation: int
    fixed: str = ""


class WorkerMended(Message, frozen=True, tag="worker-mended"):
    """The worker has gone on as a member of this generation, after ``step`` batches, or could not, for this ``problem``."""

    run_id: str
    generation: int
    step: int = -1
    problem: str = ""


class WorkerPaused(Message, frozen=True, tag="worker-paused"):
    """The worker waits between two batches: a member after ``step`` of them, a newcomer until it is let in."""

    run_id: str
    generation: int
    step: int = -1


class WorkerStepped(Message, frozen=True, tag="worker-stepped"):
    """The state of a worker, sent with a heartbeat if there is anything to say.

    ``step``: how far it is, -1 where it does not tell. ``stopped``: the system holds its process (SIGSTOP). ``age_s``: how
    long ago it finished that step. ``idle_s``: for how long it has done nothing.
    """

    run_id: str
    generation: int
    step: int
    stopped: bool = False
    age_s: float = 0.0
    idle_s: float = 0.0


class CommitDoorOpened(Message, frozen=True, tag="commit-door"):
    """Other agents can fetch commits from this one, at ``port`` by TLS with this certificate."""

    port: int
    certificate: str


class SidecarSaid(Message, frozen=True, tag="sidecar-said"):
    """The process beside the run's workers on this agent has begun; ``data`` is between it and the driver."""

    run_id: str
    data: bytes


class SidecarEnded(Message, frozen=True, tag="sidecar-ended"):
    """That process has ended by itself. ``is_final``: no other one is started in its place."""

    run_id: str
    reason: str
    is_final: bool


class Committed(Message, frozen=True, tag="committed"):
    """The agent holds in memory the training state as it was after ``step``."""

    run_id: str
    generation: int
    step: int
    parked: bool = False  # the worker waits after it


class Draining(Message, frozen=True, tag="draining"):
    """The agent's executor or node is going away, in ``time_s`` seconds."""

    reason: str
    time_s: float


class Persisted(Message, frozen=True, tag="persisted"):
    """The result of writing a checkpoint of an elastic run: it lies on shared storage, or there was a ``problem``.

    ``seconds``: how long it took to write. ``missed``: checkpoints that were due since the first of the problems that
    end with this one.
    """

    run_id: str
    step: int
    problem: str = ""
    seconds: float = 0.0
    missed: int = 0


class ReportedStep(msgspec.Struct, frozen=True):
    """One report of the training function: a step and metrics, or any values."""

    step: int | None
    metrics: dict[str, float | int | str | bool | None]
    time: float  # seconds since the epoch, on the worker's clock


class WorkerReports(Message, frozen=True, tag="worker-reports"):
    """Reports of the training function, in order, that the agent has read from the worker's pipe together."""

    run_id: str
    generation: int
    reports: tuple[ReportedStep, ...]


class WorkerProgress(Message, frozen=True, tag="worker-progress"):
    """How far the training is: ``done`` of ``total`` units; ``unit``: "step" or "epoch"."""

    run_id: str
    generation: int
    done: int
    total: int
    unit: str
    time: float  # seconds since the epoch, on the worker's clock


class Said(Message, frozen=True, tag="said"):
    """Pass ``data`` from the worker to the driver; its content is between them."""

    run_id: str
    generation: int
    data: bytes


class WorkerUsage(Message, frozen=True, tag="worker-usage"):
    """Resources that the worker uses on its machine; ``sample`` counts from 0. See ``usage.py``."""

    run_id: str
    generation: int
    sample: int
    metrics: dict[str, float]
    time: float  # seconds since the epoch, on the agent's clock


class WorkerFinished(Message, frozen=True, tag="worker-finished"):
    """The user's function returned; ``result`` is the pickled value of the chief, empty for the other ranks.

    ``exited``: it has not returned, but called sys.exit(0).
    """

    run_id: str
    generation: int
    result: bytes
    seen: dict[str, int | str] = {}  # collectives and optimizers that it used; in_force.py
    exited: bool = False


class FailureReport(Message, frozen=True, tag="worker-failed"):
    """The worker has failed. ``secondary``: its error only follows from another one's (a broken collective)."""

    run_id: str
    generation: int
    cause: str
    traceback: str
    secondary: bool
    log: str
    log_tail: str
    raised: bool = False  # by the user's own code
    outside: bool = False  # killed by a signal that no crash sends: the cause lies outside of the group
    storage: bool = False  # not started, as the store did not answer when its files were prepared


class WorkerClosed(Message, frozen=True, tag="worker-closed"):
    """Nothing of the worker runs any more and its files are mirrored; ``behind``: the ones that are not."""

    run_id: str
    generation: int
    behind: tuple[str, ...] = ()


class LogLines(Message, frozen=True, tag="log-lines"):
    """New output of the worker; ``size`` bytes of it, which the coordinator acknowledges by ``LogTaken``."""

    run_id: str
    generation: int
    text: str
    size: int = 0


class ProfileTaken(Message, frozen=True, tag="profile-taken"):
    """What has become of a wish for a profile: it lies in the run's directory, or there was a ``problem``."""

    run_id: str
    generation: int
    wish: str
    problem: str = ""


class MirrorLag(Message, frozen=True, tag="mirror-state"):
    """Mirroring of files to shared storage fell behind, for the reason in ``problem``, or has caught up (empty)."""

    run_id: str
    generation: int
    problem: str


class WorkNote(Message, frozen=True, tag="work-note"):
    """A note for people about the work on this agent: a full disk, a checkpoint that had to be skipped."""

    run_id: str
    generation: int
    text: str


ToAgent = (
    Welcome
    | Renew
    | Preload
    | ProbePeer
    | Formation
    | Launch
    | Mend
    | Pause
    | Tell
    | Park
    | Persist
    | Stop
    | MessagesTaken
    | LogTaken
    | TakeProfile
    | Release
    | Dismiss
)
ToCoordinator = (
    Hello
    | PortsHeld
    | ServerReady
    | PreflightFacts
    | PeerProbed
    | Heartbeat
    | WorkerStarted
    | WorkerForming
    | WorkerMendable
    | WorkerMended
    | WorkerPaused
    | WorkerStepped
    | CommitDoorOpened
    | SidecarSaid
    | SidecarEnded
    | Committed
    | Draining
    | Persisted
    | WorkerReports
    | Said
    | WorkerProgress
    | WorkerUsage
    | WorkerFinished
    | FailureReport
    | WorkerClosed
    | LogLines
    | ProfileTaken
    | MirrorLag
    | WorkNote
)

_encoder = msgspec.msgpack.Encoder()
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)
_to_group: msgspec.msgpack.Decoder[Mend | Pause] = msgspec.msgpack.Decoder(Mend | Pause)
_to_coordinator: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)


def encode(message: Message) -> bytes:
    """A message as the bytes of one WebSocket frame."""
    return _encoder.encode(message)


def decode_for_group(data: bytes) -> Mend | Pause:
    """Decode what an agent passes on to its worker. Raises ``msgspec.MsgspecError`` for anything else."""
    return _to_group.decode(data)


def decode_for_agent(frame: bytes) -> ToAgent:
    """Decode a message of the coordinator. Raises ``msgspec.MsgspecError`` for anything else."""
    return _to_agent.decode(frame)


def decode_for_coordinator(frame: bytes) -> ToCoordinator:
    """Decode a message of an agent. Raises ``msgspec.MsgspecError`` for anything else."""
    return _to_coordinator.decode(frame)
