"""The worker's context: set once by hopsml before the user's function runs, read by everything in the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.cluster.shared.spec import RunSpec

if TYPE_CHECKING:
    from hopsml.cluster.shared.commit_slots import CommitSlots
    from hopsml.cluster.shared.protocol import Mend, Pause
    from hopsml.cluster.worker.inbox import Inbox


def untold(*said: object) -> None:
    """Does nothing, whatever it is called with: the default where nobody is to be told."""


@dataclass(frozen=True)
class CommitPort:
    """An elastic worker's interface to its agent: the slots for commits, and how a commit is announced."""

    slots: CommitSlots
    newest: int  # slot of the commit to go on from, -1 for none
    announce: Callable[[str, int, int, int], None]  # committed | parked, step, slot, length in bytes
    at_end: list[Callable[[], None]] = field(default_factory=list)  # called once the user's function has returned


@dataclass(frozen=True)
class MendPort:
    """How a worker is told that others are lost or come, and who is there then; and how it says what comes of that."""

    take: Callable[[float], Mend | Pause | None]  # the agent's next word; None where none comes within so many seconds
    ended: Callable[[], bool]  # whether no further word can come
    announce: Callable[[str, int, int, str], None]  # mendable | mended | paused, generation, step, problem


@dataclass(frozen=True)
class CheckpointPort:
    """A worker's way to have its agent write checkpoints: slots to leave them in, and how they are announced."""

    slots: CommitSlots
    announce: Callable[[str, int, int, str], None]  # saved | store, number of the save or request, slot, folder


@dataclass(frozen=True)
class CollectiveSeat:
    """What a worker that trains joins the collective of its generation with."""

    addresses: tuple[str, ...]  # host:port by rank; its own port is held for it
    key: bytes = field(repr=False)  # that the members prove to each other
    announce: Callable[[], None] = field(default=untold, repr=False, compare=False)  # that it waits for the others now


class TrialPort(Protocol):
    """The part of a search's trial that code in the worker package uses."""

    @property
    def trial_id(self) -> str:
        """The trial's id: the name of its folder in ``trials/``."""


@dataclass(frozen=True)
class WorkerContext:
    """The facts of one worker in one generation of a run; a worker that goes on when others are lost gets another one.

    Paths are local. Where the run directory lies on remote storage, what is written below ``events_dir``,
    ``checkpoint_dir`` and ``export_dir`` is mirrored there in the background; where it is local they are the run
    directory's own folders.
    """

    run_id: str
    generation: int
    rank: int
    world_size: int
    local_rank: int
    role: str  # chief | worker | ps | evaluator
    run_url: str  # URL of the run directory, for instance hdfs://nn:8020/Projects/p/Experiments/app_1
    work_dir: Path  # scratch of this worker alone, removed at its end
    events_dir: Path  # shared by all ranks: TensorBoard event files
    checkpoint_dir: Path  # complete checkpoints: step-000000120/
    export_dir: Path
    trials: str = "trials"  # folder of the trials of a search, below the run directory
    logdir: str = ""  # events_dir as text; where it is mirrored it holds the remote URL, which a Path would mangle
    leader: str = ""  # host:port of rank 0
    gpu_indices: tuple[int, ...] = ()  # devices of this worker in ring order
    ring_order: str = ""  # collective_ring_order in the numbering of CUDA_VISIBLE_DEVICES, "" with one device
    spec: RunSpec = RunSpec()  # what was asked of the run
    resume_checkpoint: Path | None = None  # local copy of the complete checkpoint to continue from
    resume_fits: Path | None = None  # the same for the function's further calls of fit: fit-2/step-000000120/
    commits: CommitPort | None = field(default=None, repr=False, compare=False)  # of a run whose group may change
    mends: MendPort | None = field(default=None, repr=False, compare=False)  # of a run whose group may change
    checkpoints: CheckpointPort | None = field(default=None, repr=False, compare=False)  # None: they are written here
    collective: CollectiveSeat | None = field(default=None, repr=False, compare=False)  # None: it does not train
    joins: bool = (
        False  # the others train: it prepares alone, for the place that rank and size tell, and joins them then
    )
    server_key: bytes = field(
        default=b"", repr=False, compare=False
    )  # that servers of TensorFlow's in the group ask for
    trial: TrialPort | None = field(default=None, repr=False, compare=False)  # inside a trial of a search
    send: Callable[[dict[str, Any]], None] = field(default=lambda message: None, repr=False, compare=False)
    progress: Callable[[int, int, str], None] = field(default=untold, repr=False, compare=False)  # done, total, unit
    say: Callable[[bytes], None] = field(default=lambda data: None, repr=False, compare=False)  # to the driver
    note: Callable[[str], None] = field(default=untold, repr=False, compare=False)  # a note of the run, for people
    event_pipe: int = -1  # the descriptor behind ``send`` and ``say``: a process that is forked from this one closes it
    inbox: Inbox | None = field(default=None, repr=False, compare=False)  # messages of the driver
    sidecar: Path | None = None  # file in which the run's sidecar on this agent leaves its address, once it has one

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0, which alone writes checkpoints and exports."""
        return self.rank == 0


_current: WorkerContext | None = None


def current() -> WorkerContext | None:
    """The context of this worker process; None on the driver and in every other process."""
    return _current


def set_current(context: WorkerContext | None) -> None:
    """Set the context of this process; called by the worker before the user's function, and by tests."""
    global _current
    _current = context
