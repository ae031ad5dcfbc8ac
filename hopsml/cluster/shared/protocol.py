"""Messages between coordinator and agents: typed msgpack, one WebSocket frame each.

Messages about a worker carry its run and generation, in both directions; those of an older generation are dropped.
Nothing is unpickled here: ``payload`` and ``result`` are opaque bytes that the worker and the driver unpickle, after
both sides have authenticated.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hopsml.cluster.shared.spec import RunSpec
from hopsml.cluster.shared.worker_events import ToDriver
from hopsml.core.decoding import checked

CLOCK_TOLERANCE_S = 60.0  # difference of two clocks up to which recorded times are left as they are
VERSION = 16  # both sides must use the same version
MAX_TO_AGENT = 1 << 30  # bytes; sized for the training function with its captured values
MAX_TO_COORDINATOR = 64 << 20  # bytes; sized for results, reports and log lines


class Message(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all messages; the tag of a subclass identifies it in msgpack."""


# ------------------------------------------------------------------------------------------ coordinator -> agent


class Welcome(Message, frozen=True, tag="welcome"):
    """Admission of an agent, which exits if nothing arrives for ``lease_s`` seconds."""

    lease_s: float
    clock: float  # the driver's: seconds since the epoch when this was sent

    def clock_shift_s(self, now_s: float) -> float:
        """Return the seconds by which the driver's clock differs from that of the agent, which has received it at ``now_s``.

        Returns:
            The difference; 0 if it is at most ``CLOCK_TOLERANCE_S``, which includes the time in transit.
        """
        shift_s = self.clock - now_s
        return shift_s if abs(shift_s) > CLOCK_TOLERANCE_S else 0.0


class Renew(Message, frozen=True, tag="renew"):
    """Renewal of the agent's lease; sent periodically."""


class DelegationTokens(Message, frozen=True, tag="tokens"):
    """Delegation tokens for the agent and all processes that it starts, instead of those it has received before.

    The content is a Hadoop token file. An empty one lets the processes use the tokens with which the agent was started.
    """

    data: bytes

    def __repr__(self) -> str:
        return f"DelegationTokens({len(self.data)} bytes)"  # a log must not contain them


class Preload(Message, frozen=True, tag="preload"):
    """Request for a fork server that has imported at least these modules."""

    modules: tuple[str, ...]


class Resume(msgspec.Struct, frozen=True):
    """Checkpoints of other runs that a run starts from: their run directories and steps."""

    url: str = ""  # "": it starts without a checkpoint
    step: int = -1  # of the checkpoint there; -1: its newest
    fits: tuple[tuple[str, int, int], ...] = ()  # run directory, number and step of further calls of fit


class CommitSource(msgspec.Struct, frozen=True):
    """Source of the training state from which the workers of a generation start."""

    step: int = -1  # of a commit that agents hold; -1: none
    holder: str = ""  # host:port of an agent that holds it
    certificate: str = ""  # PEM, of that agent's commit server
    stored: int = -1  # without such a commit: step of the run's own checkpoint; -1: its newest


class Formation(Message, frozen=True, tag="formation"):
    """Group description that all workers of one generation share; encoded once for all of them."""

    run_id: str
    generation: int
    spec: RunSpec
    payload: bytes  # cloudpickle of (function, keyword arguments)
    run_url: str
    cluster_json: str  # TF_CONFIG's "cluster"; "" if no TF_CONFIG is set
    leader: str  # host:port of rank 0
    world_size: int
    resume: Resume = Resume()
    commit: CommitSource = CommitSource()
    collective: tuple[str, ...] = ()  # host:port of each member that trains, by rank
    collective_key: bytes = b""  # secret by which members authenticate to each other; of this generation only
    guarded: bool = False  # TensorFlow's servers require that key as well: every member can prove it
    # the others train already: the worker prepares on its own, and joins them when they have paused
    joins: bool = False

    @property
    def may_have_checkpoints(self) -> bool:
        """True if an earlier generation of this run may have left checkpoints."""
        return self.generation > 0 and self.spec.group.regroups


class Launch(Message, frozen=True, tag="launch"):
    """Request to start one worker of the formation sent before; holds what differs between workers."""

    run_id: str
    generation: int
    rank: int
    local_rank: int
    role: str
    task_index: int
    gpu_indices: tuple[int, ...]
    ring_order: str
    environment: dict[str, str]
    has_commit: bool = False  # this agent itself holds the formation's commit


class ReconfigureInPlace(Message, frozen=True, tag="mend"):
    """Request to reconfigure a worker in place: it continues, in its process, as a member of a further generation.

    Members have been lost, or newcomers join. The message is the same for all members. The worker retains its port,
    which the agent still holds, and its log, folders and environment. Members that have paused resume; with ``meets``,
    after the chief's state has been sent to the newcomers.
    """

    run_id: str
    generation: int  # the new generation
    leader: str  # host:port of rank 0
    collective: tuple[str, ...]  # host:port of each member, by rank; a member finds its rank by its own address
    collective_key: bytes
    meets: bool = False  # True if all paused members, newcomers among them, receive the chief's state

    def ranks_of(self, address: str) -> tuple[int, int]:
        """Return the rank, and the rank within its host, of the member with this address.

        Raises:
            ValueError: if there is none.
        """
        rank, host = self.collective.index(address), address.rpartition(":")[0]
        return rank, sum(other.rpartition(":")[0] == host for other in self.collective[:rank])


class Pause(Message, frozen=True, tag="pause"):
    """Request that the worker's group pause, all members between the same two batches, as newcomers are ready."""

    run_id: str
    generation: int


class PauseAtCommit(Message, frozen=True, tag="park"):
    """Request that the worker pause at its next commit, because the group is going to change.

    A worker of an independent group gets no further messages instead: it finishes its current work and exits.
    """

    run_id: str
    generation: int


class DriverMessage(Message, frozen=True, tag="tell"):
    """Data from the driver to the worker; only these two interpret it."""

    run_id: str
    generation: int
    data: bytes


class Stop(Message, frozen=True, tag="stop"):
    """Request to end the worker: SIGTERM, the grace time, then SIGKILL of its whole process group."""

    run_id: str
    generation: int
    grace_s: float
    flush_s: float
    keep: bool = False  # True if a further generation of the run follows: files and commits are retained
    dump: bool = False  # True to let the Python threads write their stacks into the log first


class MessagesTaken(Message, frozen=True, tag="messages-taken"):
    """Flow control: the coordinator has handled ``size`` more bytes of the agent's messages."""

    size: int


class ProbePeer(Message, frozen=True, tag="probe-peer"):
    """Request to exchange bytes with another agent and report the result; see ``preflight/probe.py``."""

    agent_id: str
    address: str  # host:port of its probe server


class LogTaken(Message, frozen=True, tag="log-taken"):
    """Flow control: ``size`` bytes of the worker's output have arrived, and as many more may be sent."""

    run_id: str
    generation: int
    size: int


class TakeProfile(Message, frozen=True, tag="take-profile"):
    """Request to profile the worker for some seconds; ``path`` is that of the result, below the run directory."""

    run_id: str
    generation: int
    wish: str  # id of the request
    seconds: int
    form: str
    idle: bool
    path: str


class Persist(Message, frozen=True, tag="persist"):
    """Request to write the run's newest commit to shared storage: this agent leaves, and no remaining one holds it."""

    run_id: str


class Release(Message, frozen=True, tag="release"):
    """End of the run on this agent: it stores its last files and discards its commits."""

    run_id: str


class Dismiss(Message, frozen=True, tag="dismiss"):
    """Dismissal of an agent that is not needed any more: it exits, its Spark task ends and Spark gets the slot back."""

    reason: str


# ------------------------------------------------------------------------------------------ agent -> coordinator


class Hello(Message, frozen=True, tag="hello"):
    """First message of an agent.

    ``request_id`` and ``index`` identify the requested slot, also after a retry by Spark. ``node`` is the cluster's name of
    the machine, "" if it has none. A container may have an address and a hostname that only it has, and that disappear
    with it.
    """

    version: int
    request_id: int = msgspec.field(name="ask")
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
    # True for Spark's last attempt of the task, whose failure would fail the whole job: not to be used
    final: bool = False
    guards: bool = False  # True if TensorFlow's servers in its workers authenticate peers
    node: str = ""

    @property
    def place(self) -> str:
        """Location for messages and records: the node, else the address."""
        return self.node or self.host

    @property
    def machine(self) -> str:
        """Name to which failures are attributed: the node, else the hostname."""
        return self.node or self.hostname


class PortsHeld(Message, frozen=True, tag="ports-held"):
    """Ports that the next generation may use; the agent holds them until the worker has bound them."""

    port: int  # for the server of its framework
    collective_port: int


class ForkServerReady(Message, frozen=True, tag="server-ready"):
    """Notice that the fork server has imported its modules."""

    modules: tuple[str, ...]


class GpuFacts(msgspec.Struct, frozen=True):
    """State of one GPU of the slot, according to NVML."""

    index: int
    ecc_errors: int  # uncorrected, since the driver was loaded; 0 if the GPU counts none
    temperature_c: int
    processes: int  # other processes that compute on it
    driver: str = ""  # version of the GPU driver; "" if unknown
    driver_cuda: int = 0  # newest CUDA that it supports, as 12040 for 12.4; 0: unknown
    throttling: tuple[str, ...] = ()  # why the hardware lowers its clocks now, apart from idleness and power limits
    rows_pending: bool = False  # True if a faulty row of memory is replaced at the next reset
    rows_failed: bool = False  # True if a faulty row could not be replaced
    persistent: bool | None = None  # False: the driver is loaded anew by each program; None: unknown
    xids: tuple[int, ...] = ()  # Xid errors of broken hardware in the kernel's log


class PreflightFacts(Message, frozen=True, tag="preflight-facts"):
    """Measurements of an agent's slot, sent once; limits are -1 if there is none. 1 MB is 2**20 bytes."""

    clock: float  # seconds since the epoch when it was sent
    host: str
    door: int  # port of its probe server, for its neighbours
    folder: str  # its scratch folder
    open_files: int
    stack_mb: float
    shared_memory_mb: float
    disk_mb: float
    write_mb_s: float
    disk_problem: str
    versions: dict[str, str]
    gpus: tuple[GpuFacts, ...] = ()
    needed_cuda: int = 0  # major version of CUDA that the frameworks bring; 0: none
    core_mb_s: float = 0.0  # SHA-256 on one core; 0: not measured
    others: tuple[str, ...] = ()  # other users who have processes on the host, as far as they are visible
    guards: bool = False  # True if TensorFlow's server there accepts only members of its group


class PeerProbed(Message, frozen=True, tag="peer-probed"):
    """Result of an exchange of bytes with another agent; ``problem`` is empty if all came back unchanged."""

    agent_id: str
    mb_s: float
    problem: str = ""


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sign of life of the agent; sent periodically."""


class WorkerUpdate(Message, frozen=True, tag="worker-update"):
    """Event of the worker in a generation of a run, as the worker has reported it or its agent has found it."""

    run_id: str
    generation: int
    event: ToDriver


class CommitServerReady(Message, frozen=True, tag="commit-door"):
    """Notice that other agents can fetch commits from this one, at ``port`` by TLS with this certificate."""

    port: int
    certificate: str


class SidecarMessage(Message, frozen=True, tag="sidecar-said"):
    """Data from the run's sidecar process on this agent to the driver; the first one shows that it has started."""

    run_id: str
    data: bytes


class SidecarEnded(Message, frozen=True, tag="sidecar-ended"):
    """Notice that the sidecar process has ended.

    With ``is_final``, no other one is started in its place.
    """

    run_id: str
    reason: str
    is_final: bool


class Draining(Message, frozen=True, tag="draining"):
    """Notice that the agent's executor or node will be shut down in ``time_s`` seconds."""

    reason: str
    time_s: float


class Persisted(Message, frozen=True, tag="persisted"):
    """Result of writing a checkpoint of an elastic run: it is on shared storage, or there was a ``problem``.

    ``seconds`` is the duration of the write. ``missed`` is the number of checkpoints that were due since the first of
    the failures, which end with this one unless there is a problem.
    """

    run_id: str
    step: int
    problem: str = ""
    seconds: float = 0.0
    missed: int = 0


ToAgent = (
    Welcome
    | Renew
    | DelegationTokens
    | Preload
    | ProbePeer
    | Formation
    | Launch
    | ReconfigureInPlace
    | Pause
    | DriverMessage
    | PauseAtCommit
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
    | ForkServerReady
    | PreflightFacts
    | PeerProbed
    | Heartbeat
    | WorkerUpdate
    | CommitServerReady
    | SidecarMessage
    | SidecarEnded
    | Draining
    | Persisted
)

_encoder = msgspec.msgpack.Encoder()
_to_agent: Callable[[bytes], ToAgent] = checked(msgspec.msgpack.Decoder(ToAgent).decode)
_to_group: Callable[[bytes], ReconfigureInPlace | Pause] = checked(
    msgspec.msgpack.Decoder(ReconfigureInPlace | Pause).decode
)
_to_coordinator: Callable[[bytes], ToCoordinator] = checked(msgspec.msgpack.Decoder(ToCoordinator).decode)


def encode(message: Message) -> bytes:
    """Encode a message as the bytes of one WebSocket frame."""
    return _encoder.encode(message)


def decode_for_group(data: bytes) -> ReconfigureInPlace | Pause:
    """Decode a message that an agent forwards to its worker.

    Raises:
        msgspec.MsgspecError: for anything else.
    """
    return _to_group(data)


def decode_for_agent(frame: bytes) -> ToAgent:
    """Decode a message of the coordinator.

    Raises:
        msgspec.MsgspecError: for anything else.
    """
    return _to_agent(frame)


def decode_for_coordinator(frame: bytes) -> ToCoordinator:
    """Decode a message of an agent.

    Raises:
        msgspec.MsgspecError: for anything else.
    """
    return _to_coordinator(frame)
