"""Context of a worker: set once by hopsml before the user's function is called, read by all code in the worker.

It holds the worker's interfaces to its agent, among them the inbox: the worker's end of the pipe for the driver's
messages.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.cluster.shared.framing import FrameDecoder
from hopsml.cluster.shared.spec import RunSpec

if TYPE_CHECKING:
    from hopsml.cluster.shared.commit_slots import CommitSlots
    from hopsml.cluster.shared.protocol import Pause, ReconfigureInPlace
    from hopsml.cluster.shared.worker_events import CheckpointAwaited, CheckpointSaved, Committed, OfGroup


_READ_BYTES = 1 << 20


class Inbox:
    """Queue of the driver's messages in the order in which they were sent; may be used by any thread."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._frames = descriptor, FrameDecoder()
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self.ended = False  # no further message can arrive: the agent has closed the pipe or ended

    def fileno(self) -> int:
        """Return the pipe's descriptor, for ``poll``: readable when messages may have arrived, or at the pipe's end."""
        return self._descriptor

    def take(self) -> list[bytes]:
        """Return all messages that have arrived, without waiting."""
        with self._lock:
            self._read()
            taken = list(self._waiting)
            self._waiting.clear()
            return taken

    def get(self, timeout_s: float = 0.0) -> bytes | None:
        """Return the next message; None if none arrives within ``timeout_s`` seconds, or the pipe has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if not self._waiting:
                    self._read()
                if self._waiting:
                    return self._waiting.popleft()
                if self.ended:
                    return None
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            poll = select.poll()  # select() refuses descriptors above 1023, which a training may have reached
            poll.register(self._descriptor, select.POLLIN | select.POLLHUP)
            poll.poll(max(1, int(left * 1000)))

    def _read(self) -> None:
        """Read what has arrived, without waiting."""
        while not self.ended:
            try:
                piece = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            self._waiting.extend(self._frames.feed(piece))
            self.ended = not piece


def do_nothing(*arguments: object) -> None:
    """Do nothing, with any arguments: the default of callbacks that report to the agent."""


@dataclass(frozen=True)
class CommitPort:
    """Interface of an elastic worker to its agent: the slots for commits, and the function that announces a commit."""

    slots: CommitSlots
    newest: int  # slot of the commit to continue from, -1 for none
    announce: Callable[[Committed], None]
    at_end: list[Callable[[], None]] = field(default_factory=list)  # called once the user's function has returned


@dataclass(frozen=True)
class ReconfigurationPort:
    """Interface for changes of the group in place: messages about lost or joining members, and the worker's reports."""

    # returns the agent's next message; None if none arrives within this many seconds
    take: Callable[[float], ReconfigureInPlace | Pause | None]
    ended: Callable[[], bool]  # returns True if no further message can arrive
    announce: Callable[[OfGroup], None]


@dataclass(frozen=True)
class CheckpointPort:
    """Interface for having the agent write checkpoints: slots for their data, and the function that announces them."""

    slots: CommitSlots
    announce: Callable[[CheckpointSaved | CheckpointAwaited], None]


@dataclass(frozen=True)
class CollectiveSeat:
    """Addresses and secret with which a training worker joins the collective of its generation."""

    addresses: tuple[str, ...]  # host:port by rank; the agent holds the worker's own port for it
    key: bytes = field(repr=False)  # secret that the members prove to each other
    # called when it begins to wait for the others
    announce: Callable[[], None] = field(default=do_nothing, repr=False, compare=False)


class TrialPort(Protocol):
    """Interface of the part of a search's trial that code in the worker package uses."""

    @property
    def trial_id(self) -> str:
        """Id of the trial, which is the name of its folder in ``trials/``."""


@dataclass(frozen=True)
class WorkerContext:
    """Description of one worker in one generation of a run; a worker that continues in place gets a new one.

    Paths are local. If the run directory is on remote storage, files below ``events_dir``, ``checkpoint_dir`` and
    ``export_dir`` are mirrored there in the background; if it is local they are the run directory's own folders.
    """

    run_id: str
    generation: int
    rank: int
    world_size: int
    local_rank: int
    role: str  # chief | worker | ps | evaluator
    run_url: str  # URL of the run directory, for instance hdfs://nn:8020/Projects/p/Experiments/app_1
    work_dir: Path  # scratch folder of this worker alone, removed at its end
    events_dir: Path  # shared by all ranks: TensorBoard event files
    checkpoint_dir: Path  # complete checkpoints: step-000000120/
    export_dir: Path
    trials: str = "trials"  # folder of the trials of a search, below the run directory
    logdir: str = ""  # events_dir as text; if it is mirrored it is the remote URL, which a Path would change
    leader: str = ""  # host:port of rank 0
    gpu_indices: tuple[int, ...] = ()  # devices of this worker in ring order
    ring_order: str = ""  # collective_ring_order in the numbering of CUDA_VISIBLE_DEVICES, "" with one device
    spec: RunSpec = RunSpec()  # the run's specification
    resume_checkpoint: Path | None = None  # local copy of the complete checkpoint to continue from
    resume_fits: Path | None = None  # the same for the function's further calls of fit: fit-2/step-000000120/
    commits: CommitPort | None = field(default=None, repr=False, compare=False)  # of a run whose group may change
    mends: ReconfigurationPort | None = field(
        default=None, repr=False, compare=False
    )  # of a run whose group may change
    # None: the worker writes them itself
    checkpoints: CheckpointPort | None = field(default=None, repr=False, compare=False)
    collective: CollectiveSeat | None = field(default=None, repr=False, compare=False)  # None: it does not train
    joins: bool = False  # it prepares alone for its rank, while the others train, and joins them afterwards
    server_key: bytes = field(
        default=b"", repr=False, compare=False
    )  # secret that TensorFlow servers in the group demand
    trial: TrialPort | None = field(default=None, repr=False, compare=False)  # inside a trial of a search
    send: Callable[[dict[str, Any]], None] = field(default=lambda message: None, repr=False, compare=False)
    progress: Callable[[int, int, str], None] = field(
        default=do_nothing, repr=False, compare=False
    )  # done, total, unit
    say: Callable[[bytes], None] = field(default=lambda data: None, repr=False, compare=False)  # to the driver
    note: Callable[[str], None] = field(default=do_nothing, repr=False, compare=False)  # a note of the run, for users
    event_pipe: int = -1  # the descriptor behind ``send`` and ``say``: a process that is forked from this one closes it
    inbox: Inbox | None = field(default=None, repr=False, compare=False)  # messages of the driver
    sidecar: Path | None = None  # file in which the run's sidecar on this agent writes its address

    @property
    def is_chief(self) -> bool:
        """True if this is rank 0, which alone writes checkpoints and exports."""
        return self.rank == 0


_current: WorkerContext | None = None


def current() -> WorkerContext | None:
    """Return the context of this worker process; None on the driver and in every other process."""
    return _current


def set_current(context: WorkerContext | None) -> None:
    """Set the context of this process; called by the worker before the user's function, and by tests."""
    global _current
    _current = context
