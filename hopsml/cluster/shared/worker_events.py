"""Events of a worker, in one tagged union: what the worker reports to its agent, and what the agent adds.

The worker writes events to its pipe, one frame each (``FromWorker``). Its agent handles those about notes and
checkpoints, groups reports, completes failures, and sends the others on as they are, in a ``protocol.WorkerUpdate`` with
run and generation. The driver translates them to events of the group in ``driver/worker_messages.py`` only.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hopsml.core.decoding import checked

NEWEST_FILES = "the newest files"  # name for files that may not be stored, of a mirror or an agent that did not respond
CHECKPOINTS = "checkpoints"  # folder of the checkpoints, in the paths of files that are not stored


class WorkerEvent(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all events; the tag of a subclass identifies it in msgpack."""


# ---------------------------------------------------------------------------------------------- of the worker


class WorkerStarted(WorkerEvent, frozen=True, tag="worker-started"):
    """Notice that the worker is about to call the user's function."""


class WorkerForming(WorkerEvent, frozen=True, tag="worker-forming"):
    """Notice that the worker has reached its first collective operation, and waits for all ranks below ``size``."""

    size: int


class WorkerReconfigurable(WorkerEvent, frozen=True, tag="worker-mendable"):
    """Notice that the worker's group can be reconfigured in place if members are lost.

    ``fixed`` is the reason why no newcomer can join it; empty if newcomers can.
    """

    fixed: str = ""


class WorkerReconfigured(WorkerEvent, frozen=True, tag="worker-mended"):
    """Result of reconfiguring a worker in place: it continues after ``step`` batches, or there was a ``problem``."""

    generation: int  # of which it is a member now
    step: int = -1
    problem: str = ""


class WorkerPaused(WorkerEvent, frozen=True, tag="worker-paused"):
    """Notice that the worker waits between two batches: a member after ``step`` of them, or a newcomer."""

    generation: int  # in which it has paused
    step: int = -1


class ReportedStep(WorkerEvent, frozen=True, tag="report"):
    """One report of the training function: a step and its metrics, or any other values."""

    step: int | None
    metrics: dict[str, float | int | str | bool | None]
    time: float  # seconds since the epoch, on the worker's clock; the agent sends it by the driver's


class WorkerProgress(WorkerEvent, frozen=True, tag="worker-progress"):
    """Progress of the training: ``done`` of ``total`` units; ``unit`` is "step" or "epoch"."""

    done: int
    total: int
    unit: str
    time: float  # seconds since the epoch, on the worker's clock; the agent sends it by the driver's


class WorkerMessage(WorkerEvent, frozen=True, tag="said"):
    """Data from the worker to the driver; only these two interpret it."""

    data: bytes


class WorkNote(WorkerEvent, frozen=True, tag="work-note"):
    """Note for the user about the work on this agent: a full disk, a checkpoint that had to be skipped."""

    text: str


class Committed(WorkerEvent, frozen=True, tag="committed"):
    """Notice that the agent holds in memory the training state after ``step``."""

    step: int
    parked: bool = False  # True if the worker has paused after it
    slot: int = -1  # that holds it; -1: the one of the commit before


class CheckpointSaved(WorkerEvent, frozen=True, tag="saved"):
    """Notice to the agent that a checkpoint is in a slot, to be written to ``target``, a folder or a file."""

    number: int  # among the worker's checkpoints, from 1
    slot: int
    target: str


class CheckpointAwaited(WorkerEvent, frozen=True, tag="store"):
    """Request to the agent to signal, in the slots, when ``target`` is on shared storage."""

    number: int  # among the worker's requests, from 1
    target: str


class WorkerFinished(WorkerEvent, frozen=True, tag="worker-finished"):
    """Notice that the user's function has returned; ``result`` is the chief's pickled value, empty for other ranks.

    ``exited`` is True if it has called sys.exit(0) instead of returning.
    """

    result: bytes = b""
    seen: dict[str, int | str] = {}  # collectives and optimizers that it used; ``worker/collective_stats.py``
    exited: bool = False


class FailureReport(WorkerEvent, frozen=True, tag="worker-failed"):
    """Failure of a worker; its agent adds the log.

    ``secondary`` errors only follow from another worker's (a broken collective).
    """

    cause: str
    traceback: str = ""
    secondary: bool = False
    log: str = ""
    log_tail: str = ""
    raised: bool = False  # raised by the user's own code
    outside: bool = False  # killed by a signal that no crash sends: the cause is outside of the group
    storage: bool = False  # not started, as the store did not answer when its files were prepared


# ---------------------------------------------------------------------------------------------- of its agent


class WorkerReports(WorkerEvent, frozen=True, tag="worker-reports"):
    """Reports of the training function, in order, that the agent has read from the worker's pipe together."""

    reports: tuple[ReportedStep, ...]


class WorkerStatus(WorkerEvent, frozen=True, tag="worker-stepped"):
    """Status of a worker, sent with a heartbeat if there is anything to report.

    Attributes:
        step: batches done; -1 if the worker does not report them.
        stopped: True if the process is stopped (SIGSTOP).
        age_s: seconds since it finished that step.
        idle_s: seconds for which it has been idle without waiting for storage.
        storage_s: seconds for which it has waited for storage since its start.
    """

    step: int
    stopped: bool = False
    age_s: float = 0.0
    idle_s: float = 0.0
    storage_s: float = 0.0


class WorkerUsage(WorkerEvent, frozen=True, tag="worker-usage"):
    """Resources that the worker uses on its machine, see ``usage.py``; ``sample`` counts from 0."""

    sample: int
    metrics: dict[str, float]
    time: float  # seconds since the epoch, by the driver's clock


class WorkerClosed(WorkerEvent, frozen=True, tag="worker-closed"):
    """Notice that no process of the worker is left and its files are mirrored; ``behind`` lists those that are not.

    Attributes:
        behind: path and reason of each file that is not stored, in one text; at most some of ``count``.
        count: number of these files.
        left: host and path of the local copies; "" if there are none.
    """

    behind: tuple[str, ...] = ()
    count: int = 0
    left: str = ""


class LogLines(WorkerEvent, frozen=True, tag="log-lines"):
    """New output of the worker: ``size`` bytes of it, which the coordinator acknowledges by ``LogTaken``."""

    text: str
    size: int = 0


class ProfileTaken(WorkerEvent, frozen=True, tag="profile-taken"):
    """Result of a request for a profile: it is in the run directory, or there was a ``problem``."""

    wish: str
    problem: str = ""


class MirrorLag(WorkerEvent, frozen=True, tag="mirror-state"):
    """Notice that mirroring to shared storage is delayed, for the reason in ``problem``, or has caught up (empty).

    It is repeated while copies fail; ``count`` is the number of files that are not stored.
    """

    problem: str
    count: int = 0


OfGroup = WorkerReconfigurable | WorkerReconfigured | WorkerPaused  # about changes of the group in place
FromWorker = (
    WorkerStarted
    | WorkerForming
    | OfGroup
    | ReportedStep
    | WorkerProgress
    | WorkerMessage
    | WorkNote
    | Committed
    | CheckpointSaved
    | CheckpointAwaited
    | WorkerFinished
    | FailureReport
)
ToDriver = (
    WorkerStarted
    | WorkerForming
    | OfGroup
    | WorkerProgress
    | WorkerMessage
    | WorkNote
    | Committed
    | WorkerFinished
    | FailureReport
    | WorkerReports
    | WorkerStatus
    | WorkerUsage
    | WorkerClosed
    | LogLines
    | ProfileTaken
    | MirrorLag
)

encode = msgspec.msgpack.Encoder().encode


def shifted(event: FromWorker, seconds: float) -> FromWorker:
    """Return the event with its time by another clock, which is ``seconds`` ahead."""
    if not seconds or not isinstance(event, (ReportedStep, WorkerProgress)):
        return event
    return msgspec.structs.replace(event, time=event.time + seconds)


_decode: Callable[[bytes], FromWorker] = checked(msgspec.msgpack.Decoder(FromWorker).decode)


def decode(frame: bytes) -> FromWorker:
    """Decode an event from a worker's pipe.

    Raises:
        msgspec.MsgspecError: for anything else.
    """
    return _decode(frame)
