"""Commits of a worker: their format, the thread that writes them, and the choice when to write synchronously.

Format: 8 bytes length of the description · the description (msgpack) · arrays, each at a multiple of 64 bytes. Neither
writing nor reading copies the arrays.
"""

from __future__ import annotations

import pickle
import statistics
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from hopsml.cluster.shared.commit_slots import Buffer
from hopsml.cluster.shared.worker_events import Committed
from hopsml.cluster.worker.context import CommitPort, WorkerContext
from hopsml.core import extras
from hopsml.core.decoding import MALFORMED, checked
from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_SETTLING = 2  # commits during which memory is first allocated; their cost is not representative
_TRIES = 3  # of each mode before one is chosen
_LOOK_AGAIN = 32  # number of commits after which the other mode is tried once more
_KEPT_COSTS, _KEPT_BATCHES = 5, 9
VERSION = 1
_LENGTH = struct.Struct("<q")
ALIGNMENT = 64  # bytes
_ROOM = 0.8  # fraction of the free memory that may be used


class CommitPace:
    """Cost measurement and mode choice for the commits of one training; times are in seconds."""

    def __init__(self) -> None:
        self._commits = 0
        self._usual: deque[float] = deque(maxlen=_KEPT_BATCHES)  # batches during which nothing was written
        self._costs: dict[bool, deque[float]] = {way: deque(maxlen=_KEPT_COSTS) for way in (True, False)}
        self._call_s: float | None = None  # call duration of a commit that is being written in the background
        self._longer_s = 0.0  # extra time of the batches since that commit

    @property
    def is_synchronous(self) -> bool:
        """True if the next commit should be written synchronously."""
        if self._commits < _SETTLING:
            return False
        for way in (True, False):  # synchronous first, because it shows the duration of an undisturbed batch
            if len(self._costs[way]) < _TRIES:
                return way
        cheaper = self._is_cheaper_at_once()
        return cheaper if self._commits % _LOOK_AGAIN else not cheaper

    @property
    def cost_s(self) -> float:
        """Median cost of a commit in the cheaper mode, in seconds; 0 before the first measurement."""
        known = self._costs[self._is_cheaper_at_once()]
        return statistics.median(known) if known else 0.0

    def _is_cheaper_at_once(self) -> bool:
        """Return True if synchronous commits have the lower median cost."""
        at_once, behind = self._costs[True], self._costs[False]
        return bool(at_once) and (not behind or statistics.median(at_once) <= statistics.median(behind))

    def record_commit(self, at_once: bool, call_s: float) -> None:
        """Record the cost of a commit.

        Args:
            at_once: True if it was written synchronously.
            call_s: seconds that the training waited for it.
        """
        self._settle(None)  # the previous one is still being written, so its final cost is not known
        self._commits += 1
        if not at_once:
            self._call_s, self._longer_s = call_s, 0.0
        else:
            self._costs[True].append(call_s)

    def record_batch(self, seconds: float, writing_s: float | None) -> None:
        """Record the end of a batch.

        Args:
            seconds: duration of the batch.
            writing_s: seconds that writing the newest commit took; None while it is being written.
        """
        if self._call_s is None:
            self._usual.append(seconds)
            return
        if self._usual:
            self._longer_s += seconds - statistics.median(self._usual)
        if writing_s is not None:
            self._settle(writing_s)

    def _settle(self, writing_s: float | None) -> None:
        """Record the cost of a background commit, at most the duration of its write even if batches were slower."""
        if self._call_s is None:
            return
        longer_s = max(0.0, self._longer_s)
        if self._usual and self._commits > _SETTLING:
            self._costs[False].append(self._call_s + (longer_s if writing_s is None else min(longer_s, writing_s)))
        self._call_s = None


class _Array(msgspec.Struct, frozen=True):
    """Entry of one array in a commit's description; offset and length are in bytes."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class _Description(msgspec.Struct, frozen=True):
    """Header of a commit."""

    version: int
    step: int
    position: dict[str, int | float]
    arrays: tuple[_Array, ...]
    values: dict[str, bytes]  # pickled


_decode_head = checked(msgspec.msgpack.Decoder(_Description).decode)


@dataclass(frozen=True)
class Snapshot:
    """Training state after ``step`` batches: arrays by key, pickled values by name, position in the data."""

    step: int
    arrays: dict[str, NDArray[Any]]
    values: dict[str, bytes] = field(default_factory=dict)
    position: dict[str, int | float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return sum(array.nbytes for array in self.arrays.values()) + sum(map(len, self.values.values()))


def encode(snapshot: Snapshot) -> list[Buffer]:
    """Return the pieces of a commit in order; contiguous arrays are not copied."""
    import numpy as np

    contents: list[Buffer] = []
    described, offset = [], 0
    for key, array in snapshot.arrays.items():
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        described.append(_Array(key, _dtype_name(array.dtype), array.shape, offset, content.nbytes))
        contents.append(content)
        offset += content.nbytes
        if padding := -offset % ALIGNMENT:
            contents.append(memoryview(bytes(padding)))
            offset += padding
    head = msgspec.msgpack.encode(
        _Description(VERSION, snapshot.step, snapshot.position, tuple(described), snapshot.values)
    )
    start = bytes(-(_LENGTH.size + len(head)) % ALIGNMENT)
    return [_LENGTH.pack(len(head)), head, start, *contents]


def decode(content: memoryview) -> Snapshot:
    """Return the snapshot in an encoded commit; its arrays are views of ``content``.

    Args:
        content: the concatenated pieces of ``encode``.

    Raises:
        ValueError: it is not a commit of this version.
    """
    import numpy as np

    try:
        length = _LENGTH.unpack_from(content)[0]
        head = _decode_head(content[_LENGTH.size : _LENGTH.size + length])
    except (struct.error, msgspec.MsgspecError) as error:
        raise ValueError(f"not a commit: {error}") from error
    if head.version != VERSION:
        raise ValueError(f"a commit of version {head.version}; this hopsml reads version {VERSION}")
    base = _LENGTH.size + length
    base += -base % ALIGNMENT
    try:
        arrays = {
            entry.key: np.frombuffer(content, np.uint8, entry.length, base + entry.offset)
            .view(dtype_of(entry.dtype))
            .reshape(entry.shape)
            for entry in head.arrays
        }
    except (
        SyntaxError,
        *MALFORMED,
    ) as error:  # an unknown dtype (SyntaxError in NumPy), a shape that does not fit, a place outside of the content
        raise ValueError(f"not a commit: {error}") from error
    return Snapshot(head.step, arrays, head.values, head.position)


def unpickle(value: bytes) -> Any:
    """Return a value of the user's code from its pickled form."""
    return pickle.loads(value)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name under which a type is stored."""
    return str(dtype.str if dtype.kind != "V" else dtype.name)  # bfloat16 and float8 are identified only by name


def dtype_of(name: str) -> Any:
    """Return NumPy's type of this name; types such as bfloat16 come from ``ml_dtypes``."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError as error:  # PyTorch alone does not bring it
            raise ArgumentError(
                f"arrays of {name} need the package ml-dtypes, which is not installed here. Remedy: pip install ml-dtypes, "
                f"or {extras.install_command('torch')}"
            ) from error
        return np.dtype(getattr(ml_dtypes, name))


_made: tuple[CommitPort, CommitWriter] | None = None


def writer_of(port: CommitPort) -> CommitWriter:
    """Return this process's only ``CommitWriter``: two would overwrite each other's newest commit."""
    global _made
    if _made is None or _made[0] is not port:
        _made = (port, CommitWriter(port))
    return _made[1]


class CommitWriter:
    """Worker side of its agent's commit slots; obtained from ``writer_of``."""

    def __init__(self, port: CommitPort) -> None:
        self._port = port
        self._newest = port.newest
        self._in_memory: bool | None = None
        self._waiting: Snapshot | None = None
        self._wake = threading.Condition()
        self._busy = self._closed = False
        self._unwritten = False  # True until the arrays of the current commit are written
        self.writing_s = 0.0  # seconds that writing the newest commit took
        self.problem: BaseException | None = None
        self.written = -1  # step of this process's newest complete commit, -1 before the first
        port.at_end.append(self._settle)
        self._thread = threading.Thread(target=self._run, name="hopsml-commits", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """True while a commit is being written or waits to be written."""
        with self._wake:
            return self._busy or self._waiting is not None

    def write(self, snapshot: Snapshot, *, at_once: bool = False) -> None:
        """Hand over a snapshot for writing; waits while an earlier one has not been started.

        The snapshot's arrays are released as they are written. Raises the error of the previous commit, if it failed.

        Args:
            snapshot: the state to write.
            at_once: wait until the snapshot is written; it is announced to the agent in the background in any case.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._waiting is None)
            self._raise()
            self._waiting = snapshot
            self._wake.notify_all()
            if at_once:
                self._wake.wait_for(lambda: self._waiting is None and not self._unwritten)
                self._raise()

    def wait_written(self) -> None:
        """Wait until all snapshots handed over are written and announced; raise the error of one that failed."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting is None and not self._busy)
            self._raise()

    def _settle(self) -> None:
        """Wait for the last commit at the process's end; print an error, as no later call could raise it."""
        try:
            self.wait_written()
        except BaseException as error:  # noqa: BLE001 the training itself has succeeded
            print(f"hopsml: the last commit failed: {type(error).__name__}: {error}", flush=True)

    def close(self) -> None:
        """End the thread, in a process that continues without commits."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._thread.join()

    def _raise(self) -> None:
        """Raise the error of the last failed commit once."""
        if self.problem is not None:
            # Later commits may succeed, for instance if a disk was full for a moment.
            problem, self.problem = self.problem, None
            raise problem

    def _run(self) -> None:
        """Write snapshots until the writer is closed."""
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting is not None or self._closed)
                if self._closed:
                    return
                snapshot, self._waiting = self._waiting, None
                self._busy = self._unwritten = True
                self._wake.notify_all()
            assert snapshot is not None
            try:
                self._write(snapshot)
            except BaseException as error:  # noqa: BLE001 raised by the next commit of the training
                self.problem = error
            with self._wake:
                del snapshot
                self._busy = self._unwritten = False
                self._wake.notify_all()

    def _write(self, snapshot: Snapshot) -> None:
        """Write one snapshot into a free slot and announce it to the agent."""
        if self._in_memory is None:
            self._in_memory = self._fits(snapshot.size)
        slots, began = self._port.slots, time.monotonic()
        slot = slots.find_free_slot(self._newest)
        pieces = encode(snapshot)
        snapshot.arrays.clear()  # only the pieces reference the arrays from here on
        slots.write(slot, snapshot.step, pieces, in_memory=self._in_memory)
        self._newest, self.written = slot, snapshot.step
        with self._wake:
            self.writing_s, self._unwritten = time.monotonic() - began, False
            self._wake.notify_all()
        self._port.announce(Committed(snapshot.step, slot=slot))

    @staticmethod
    def _fits(size: int) -> bool:
        """Return True if two commits of this size fit in memory; otherwise print that commits go to disk."""
        room = free_memory_bytes()
        if 2 * size <= room:
            return True
        print(
            f"hopsml: a commit has {size / 1e6:.0f} MB and two are stored, but only {room / 1e6:.0f} MB of memory "
            "are available, so commits are written to the local disk, which is slower; increase "
            "spark.executor.memoryOverhead to store them in memory",
            flush=True,
        )
        return False


def free_memory_bytes() -> int:
    """Return the number of bytes of free memory that may be used here."""
    free = psutil.virtual_memory().available
    limit = _control_group_room()
    return int(_ROOM * min(free, limit if limit is not None else free))


def _control_group_room() -> int | None:
    """Return the bytes that this process's container may still use; None without a limit."""
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open("/sys/fs/cgroup/memory.current") as used:
            text = most.read().strip()
            return None if text == "max" else int(text) - int(used.read())
    except (OSError, ValueError):
        return None


def newest_commit(context: WorkerContext | None) -> memoryview | None:
    """Return the commit that this process continues from, held by an agent or stored as a checkpoint.

    Args:
        context: this worker's context; None outside a run.

    Returns:
        The encoded commit; None if there is none.

    Raises:
        ArgumentError: the checkpoint belongs to a user who is not trusted.
    """
    port = context.commits if context is not None else None
    if port is not None and port.newest >= 0:
        return memoryview(port.slots.read(port.newest))
    folder = context.resume_checkpoint if context is not None else None
    if folder is None:
        return None

    from hopsml.storage import trust
    from hopsml.storage.checkpoints import STATE_FILE, UNPICKLED

    file = folder / STATE_FILE
    if not file.is_file():
        return None
    return memoryview(trust.read_bytes(str(file), UNPICKLED, most=None)[0])
