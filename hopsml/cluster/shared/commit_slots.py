"""Memory that the agent owns and the worker writes commits into; it outlives the worker, and ends with the agent.

Three anonymous files (memfd) alternate: the newest complete commit, one that another process may be reading, and the
one that is being written. A fourth, two pages long, is the shared state ("blackboard") of the two processes. The agent
passes all four to the worker when it is started. None has a name, so nothing is left behind when both are killed.

A slot begins with a header that is cleared before the content changes and written after it is complete:

    8 bytes magic · 8 bytes step · 8 bytes length of the content · content

Large arrays are copied by several threads, because one core often cannot use the whole memory bandwidth.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.core import traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LEAST_PART = 2_000_000  # bytes; below it a thread costs more than it saves
_MOST_THREADS = 4  # enough for the memory bandwidth; the other cores are needed for training


def copy_in_parallel(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Fill ``target`` with the bytes of ``source``: uint8 arrays of one dimension and the same length.

    The interpreter's lock is released during the copy. The number of threads is that of the cores that this process may
    use, up to four.
    """
    import numpy as np

    # NumPy copies without the lock; an assignment to a slice of a memoryview would hold it.
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)), source.nbytes // _LEAST_PART)
    if threads < 2:
        np.copyto(target, source)
        return
    bounds = [number * source.nbytes // threads for number in range(threads + 1)]
    parts = [slice(begin, end) for begin, end in pairwise(bounds)]
    with ThreadPoolExecutor(threads - 1, thread_name_prefix="hopsml-copy") as others:
        asked, own = [], parts[:1]
        for part in parts[1:]:
            try:
                asked.append(others.submit(np.copyto, target[part], source[part]))
            except RuntimeError:  # no more threads are allowed (ulimit -u), or the interpreter is shutting down
                own.append(part)
        for part in own:
            np.copyto(target[part], source[part])
        for each in asked:
            each.result()


SLOTS = 3
DESCRIPTORS = SLOTS + 1  # with the blackboard's
PAGE = 4096
BOARD_BYTES = 2 * PAGE
_HEADER = struct.Struct("<8sqq")
_MAGIC = b"hopsml-1"
# Offsets on the blackboard.
_PARK, _PINNED, _PROGRESS, _PROGRESS_AT, _STORED, _CONCLUDED, _PROBLEM = 0, 8, 16, 24, 32, 40, 1024
_PROBLEM_BYTES = 2048
_WAITS_AT, _WAITS = 3200, 32  # waits for storage: one cell for each process
_WAIT = struct.Struct("<qdd")
# Traffic, on the second page: one cell for each process, with its pid, then bytes received and sent by the collective,
# which its native code counts, and for the purposes of ``traffic.COUNTED``.
_TRAFFIC_AT, _TRAFFIC_CELLS = PAGE, 64
_TRAFFIC = struct.Struct("<q6Q")
_COLLECTIVE_AT = 8  # offset of the collective's two counters in a cell
_COUNTED_AT = 24
_COUNTED = struct.Struct(f"<{2 * len(traffic.COUNTED)}Q")
# Outcome of a checkpoint in a slot; ABANDONED: it FAILED, and the training function has received the error.
WAITS, WRITTEN, FAILED, PASSED_OVER, ABANDONED = range(5)
_OUTCOMES = 5

Buffer = bytes | bytearray | memoryview
_lasting: list[object] = []  # counters that native code of this process writes


class CommitSlots:
    """Three commit slots and the blackboard, as the agent created them or as the worker received them."""

    def __init__(self, descriptors: Sequence[int], folder: Path | None = None) -> None:
        """Map the blackboard; slots are mapped when they are used.

        Args:
            descriptors: those of the three slots, then that of the blackboard.
            folder: folder of the slots that do not fit in memory.
        """
        self.descriptors = list(descriptors)
        self._board = mmap.mmap(self.descriptors[SLOTS], BOARD_BYTES)
        self._folder = folder
        self._mapped: dict[int, mmap.mmap] = {}  # slots in memory that this process has written
        self._on_disk: set[int] = set()  # slots that this process has moved to disk

    @classmethod
    def create(cls, folder: Path | None = None) -> CommitSlots:
        """Create slots without content; ``folder`` holds commits that do not fit in memory."""
        descriptors = [os.memfd_create(f"hopsml-commit-{number}") for number in range(DESCRIPTORS)]
        os.ftruncate(descriptors[SLOTS], BOARD_BYTES)
        return cls(descriptors, folder)

    def close(self) -> None:
        """Free the memory, and close the descriptors."""
        if not self.descriptors:
            return
        self._mapped.clear()
        self._board.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    # ------------------------------------------------------------------------------------------ the blackboard

    @property
    def must_pause(self) -> bool:
        """True if the worker must pause at its next commit."""
        return self._board[_PARK] == 1

    @must_pause.setter
    def must_pause(self, value: bool) -> None:
        self._board[_PARK] = int(value)

    @property
    def progress(self) -> int:
        """Batches that the worker has done since the start of the run; -1 before its first report."""
        return int(struct.unpack_from("<q", self._board, _PROGRESS)[0]) - 1

    @progress.setter
    def progress(self, value: int) -> None:
        struct.pack_into("<qd", self._board, _PROGRESS, value + 1, time.monotonic())  # one clock for all processes

    @property
    def progress_age_s(self) -> float:
        """Age of the worker's last progress report, in seconds."""
        return max(0.0, time.monotonic() - float(struct.unpack_from("<d", self._board, _PROGRESS_AT)[0]))

    def pin(self, slot: int, pinned: bool) -> None:
        """Prevent, or allow, that the worker overwrites a slot."""
        self._board[_PINNED + slot] = int(pinned)

    def is_pinned(self, slot: int) -> bool:
        """Return True if a process still has to read the slot."""
        return self._board[_PINNED + slot] == 1

    def record_outcome(self, slot: int, step: int, outcome: int, problem: str = "") -> None:
        """Record the outcome of the checkpoint of this step in a slot: WRITTEN, FAILED, PASSED_OVER or ABANDONED."""
        if problem:
            text = problem.encode()[:_PROBLEM_BYTES]
            struct.pack_into(f"<H{_PROBLEM_BYTES}s", self._board, _PROBLEM, len(text), text)
        struct.pack_into("<q", self._board, _CONCLUDED + 8 * slot, _OUTCOMES * step + outcome)

    def outcome(self, slot: int, step: int) -> int:
        """Return the recorded outcome of a checkpoint.

        WAITS: there is none yet; WRITTEN also if the slot was reused since.
        """
        concluded, outcome = divmod(int(struct.unpack_from("<q", self._board, _CONCLUDED + 8 * slot)[0]), _OUTCOMES)
        return WAITS if concluded < step else outcome if concluded == step else WRITTEN

    @property
    def problem(self) -> str:
        """Error text of the newest checkpoint that FAILED."""
        length, text = struct.unpack_from(f"<H{_PROBLEM_BYTES}s", self._board, _PROBLEM)
        return str(text[:length].decode(errors="replace"))

    @property
    def stored_request(self) -> int:
        """Number of the newest fulfilled request for shared storage; the worker counts them from 1."""
        return int(struct.unpack_from("<q", self._board, _STORED)[0])

    @stored_request.setter
    def stored_request(self, value: int) -> None:
        struct.pack_into("<q", self._board, _STORED, value)

    def record_storage_wait(self, waited_s: float, since: float) -> None:
        """Record how long this process has waited for storage, and since when it does now (monotonic; 0.0: it does not)."""
        process = os.getpid()
        _WAIT.pack_into(self._board, self._wait_cell(process), process, waited_s, since)

    def _wait_cell(self, process: int) -> int:
        """Return the offset of a process's cell: its own, else an empty one, else that of a process that has ended.

        Two processes may take the same empty cell at once; the earlier one then takes another with its next record.
        """
        cells = [_WAITS_AT + _WAIT.size * ((process + step) % _WAITS) for step in range(_WAITS)]
        owners = {cell: int(_WAIT.unpack_from(self._board, cell)[0]) for cell in cells}
        for wanted in (process, 0):
            if found := [cell for cell in cells if owners[cell] == wanted]:
                return found[0]
        return next((cell for cell in cells if not os.path.exists(f"/proc/{owners[cell]}")), cells[0])

    def storage_waits(self) -> list[tuple[int, float, float]]:
        """Return the waits for storage that the worker and its children have recorded: process, seconds, since when.

        There are none after ``close``.
        """
        if not self.descriptors:
            return []
        cells = (_WAIT.unpack_from(self._board, _WAITS_AT + _WAIT.size * cell) for cell in range(_WAITS))
        return [(process, waited_s, since) for process, waited_s, since in cells if process]

    def record_traffic(self, totals: traffic.Totals) -> None:
        """Record the bytes that this process has received and sent, for each purpose of ``traffic.COUNTED``."""
        if (cell := self._traffic_cell()) is not None:
            _COUNTED.pack_into(self._board, cell + _COUNTED_AT, *totals)

    def collective_counters(self) -> int:
        """Return the address of this process's counters of bytes that its collective receives and sends; 0: no room.

        The memory stays mapped until the process ends, since its native code may write there at any time.
        """
        if (cell := self._traffic_cell()) is None:
            return 0
        lasting = mmap.mmap(self.descriptors[SLOTS], BOARD_BYTES)
        counters = (ctypes.c_uint64 * 2).from_buffer(lasting, cell + _COLLECTIVE_AT)
        _lasting.append(counters)
        return ctypes.addressof(counters)

    def _traffic_cell(self) -> int | None:
        """Return the offset of this process's cell; None if all cells are taken.

        Cells of ended processes keep their counts. Two processes may take the same empty cell at once; the earlier one
        then takes another with its next record.
        """
        process = os.getpid()
        cells = [_TRAFFIC_AT + _TRAFFIC.size * ((process + step) % _TRAFFIC_CELLS) for step in range(_TRAFFIC_CELLS)]
        for cell in cells:
            (owner,) = struct.unpack_from("<q", self._board, cell)
            if owner == process:
                return cell
            if not owner:
                struct.pack_into("<q", self._board, cell, process)
                return cell
        return None

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Return the bytes that the worker and its children have received and sent, by purpose; empty after ``close``."""
        if not self.descriptors:
            return {}
        cells = [
            _TRAFFIC.unpack_from(self._board, _TRAFFIC_AT + _TRAFFIC.size * cell) for cell in range(_TRAFFIC_CELLS)
        ]
        sums = [sum(values) for values in zip(*cells, strict=True)][1:]
        purposes = (traffic.COLLECTIVE, *traffic.COUNTED)
        return {purpose: (sums[2 * place], sums[2 * place + 1]) for place, purpose in enumerate(purposes)}

    # ------------------------------------------------------------------------------------------ slots

    def find_free_slot(self, newest: int) -> int:
        """Return a slot that neither holds the newest commit nor is being read."""
        return next(slot for slot in range(SLOTS) if slot != newest and not self._board[_PINNED + slot])

    def write(self, slot: int, step: int, pieces: list[Buffer], *, in_memory: bool = True) -> int:
        """Write a commit into a slot; return its length in bytes.

        ``pieces`` is emptied in the process, so that no reference to written data remains. Once a slot has been moved
        to disk it remains there in this process: the agent reads it by its name.

        Raises:
            OSError: if there is no room.
        """
        self.prepare_slot(slot, in_memory)
        self.mark_incomplete(slot)
        length = sum(memoryview(piece).nbytes for piece in pieces)
        mapped = self._map(slot, length) if in_memory else None
        position = 0
        pieces.reverse()
        while pieces:
            position += self._write_piece(slot, mapped, position, pieces.pop())
        self.mark_complete(slot, step, position)
        return position

    def _write_piece(self, slot: int, mapped: mmap.mmap | None, position: int, piece: Buffer) -> int:
        """Copy a piece into the slot's map or file; return its length."""
        if mapped is None:
            return self.put(slot, position, piece)
        import numpy as np

        content = np.frombuffer(piece, np.uint8)
        copy_in_parallel(np.frombuffer(mapped, np.uint8, content.nbytes, _HEADER.size + position), content)
        return content.nbytes

    def _map(self, slot: int, length: int) -> mmap.mmap | None:
        """Return a memory map of a slot, with room for ``length`` bytes of content; None if it cannot be mapped.

        The map is retained: mapping again takes longer than writing through the kernel. The room is allocated first, so
        that a lack of it is an OSError here and not a SIGBUS at the first access.
        """
        size, mapped = _HEADER.size + length, self._mapped.get(slot)
        if mapped is not None and len(mapped) >= size:
            return mapped
        del mapped
        self._mapped.pop(slot, None)
        os.posix_fallocate(self.descriptors[slot], 0, size)
        try:
            self._mapped[slot] = mmap.mmap(self.descriptors[slot], size)
        except OSError:  # the address space is limited (ulimit -v)
            return None
        return self._mapped[slot]

    def mark_incomplete(self, slot: int) -> None:
        """Mark the slot as holding no complete commit."""
        os.pwrite(self.descriptors[slot], bytes(_HEADER.size), 0)

    def put(self, slot: int, position: int, piece: Buffer) -> int:
        """Write a piece of the content; return its length in bytes."""
        view, start = memoryview(piece).cast("B"), _HEADER.size + position
        while view:
            written = os.pwrite(self.descriptors[slot], view, start)
            view, start = view[written:], start + written
        return start - _HEADER.size - position

    def mark_complete(self, slot: int, step: int, length: int) -> None:
        """Mark the slot as holding the complete commit of a step."""
        os.pwrite(self.descriptors[slot], _HEADER.pack(_MAGIC, step, length), 0)

    def prepare_slot(self, slot: int, in_memory: bool) -> None:
        """Prepare a slot for the next commit: its memory, or a new file on disk, which readers find by its name.

        The previous content remains unchanged for current readers: truncating a file or memory would end a process that
        has mapped it (SIGBUS).
        """
        path = self._path(slot)
        if path is not None:
            path.unlink(missing_ok=True)
        if in_memory or path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._mapped.pop(slot, None)
        if slot not in self._on_disk:
            self._on_disk.add(slot)
            _give_back(self.descriptors[slot])
        on_disk = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.dup2(on_disk, self.descriptors[slot])
        os.close(on_disk)

    def _path(self, slot: int) -> Path | None:
        return self._folder / f"slot-{slot}" if self._folder is not None else None

    def _reading(self, slot: int) -> int:
        """Return a descriptor for reading the slot, which the worker may have moved to disk."""
        path = self._path(slot)
        if path is not None and path.exists():
            return os.open(path, os.O_RDONLY)
        return os.dup(self.descriptors[slot])

    def step(self, slot: int) -> int | None:
        """Return the step of the complete commit in a slot; None if there is none."""
        descriptor = self._reading(slot)
        try:
            return _header(descriptor)[0]
        finally:
            os.close(descriptor)

    def read(self, slot: int) -> memoryview:
        """Return the content of a complete commit, mapped, not copied.

        Raises:
            LookupError: if there is none.
        """
        descriptor = self._reading(slot)
        try:
            step, length = _header(descriptor)
            if step is None:
                raise LookupError(f"slot {slot} holds no complete commit")
            mapped = mmap.mmap(descriptor, _HEADER.size + length, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        return memoryview(mapped)[_HEADER.size :]


def _give_back(descriptor: int) -> None:
    """Free the memory of a slot; processes that still read it get zeros."""
    length = os.fstat(descriptor).st_size
    try:
        with mmap.mmap(descriptor, length) as mapped:
            mapped.madvise(mmap.MADV_REMOVE)
    except (OSError, ValueError):  # empty, or no room to map it
        pass


def _header(descriptor: int) -> tuple[int | None, int]:
    """Return the step and content length in a slot's header; (None, 0) if it is not complete."""
    raw = os.pread(descriptor, _HEADER.size, 0)
    if len(raw) < _HEADER.size:
        return None, 0
    magic, step, length = _HEADER.unpack(raw)
    return (step, length) if magic == _MAGIC else (None, 0)
