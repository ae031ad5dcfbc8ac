"""Transfer of a checkpoint into a memory slot of the worker's agent, and the process that writes it to disk from there.

The fork server starts the process next to the worker. It reads slot numbers of one byte each and answers each with a
frame that holds an error message, empty on success. It exits when the requesting end of the pipe is closed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.cluster.shared.commit_slots import ABANDONED, FAILED, SLOTS, WAITS, CommitSlots
from hopsml.cluster.shared.framing import framed
from hopsml.cluster.shared.worker_events import CheckpointAwaited, CheckpointSaved
from hopsml.cluster.worker.context import CheckpointPort
from hopsml.core import processes, tracebacks
from hopsml.errors import StorageTimeout
from hopsml.storage import waiting
from hopsml.training.checkpoint_files import CheckpointDescription, FileDescription, write_checkpoint, write_file
from hopsml.training.elastic import commits
from hopsml.training.elastic.commits import Snapshot, free_memory_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray


_POLL_S = 0.002

_made: tuple[CheckpointPort, CheckpointSender] | None = None


def checkpoint_sender(port: CheckpointPort) -> CheckpointSender:
    """Return this process's only ``CheckpointSender``, which numbers all checkpoints that the process saves."""
    global _made
    if _made is None or _made[0] is not port:
        _made = (port, CheckpointSender(port))
    return _made[1]


@dataclass(frozen=True)
class HeldCheckpoint:
    """Checkpoint in a memory slot of the agent."""

    number: int
    slot: int


class CheckpointSender:
    """Worker side of its agent's queue of checkpoints; obtained from ``checkpoint_sender``."""

    def __init__(self, port: CheckpointPort) -> None:
        self._port, self._slots = port, port.slots
        self._lock, self._giving = threading.RLock(), False  # one save at a time, whichever thread makes it
        self._number = self._requests = 0
        self._made = [0] * SLOTS  # bytes of memory allocated to each slot
        self._newest: dict[int, tuple[HeldCheckpoint, str]] = {}  # by slot, with the target path

    def send_snapshot(self, snapshot: Snapshot, target: str) -> HeldCheckpoint | None:
        """Hand a snapshot to the agent, which writes it as the folder or file ``target``.

        The snapshot's arrays are released. When this returns, the checkpoint survives the end of this process. Waits
        while all slots are being written: for a moment, or a second or two where the disk is slow.

        Returns:
            The slot that holds the checkpoint. None if there is not enough memory, or if a signal handler calls this
            in the middle of another save.
        """
        with self._lock:
            if self._giving:
                return None
            self._giving = True
            try:
                return self._give(snapshot, target)
            finally:
                self._giving = False

    def _give(self, snapshot: Snapshot, target: str) -> HeldCheckpoint | None:
        """Write a snapshot into a free slot and announce it to the agent."""
        with waiting.StorageWait():
            while (slot := next((slot for slot in range(SLOTS) if not self._slots.is_pinned(slot)), None)) is None:
                time.sleep(_POLL_S)
        size = snapshot.size
        if size > self._made[slot] and size > free_memory_bytes():
            return None
        held, is_held = HeldCheckpoint(self._number + 1, slot), False
        try:
            self._slots.pin(slot, True)
            pieces = commits.encode(snapshot)
            snapshot.arrays.clear()
            self._slots.write(slot, held.number, pieces)
            is_held = True
            self._announce(held, size, target)
        # Also an exception of a signal handler: a slot that stays pinned could never be used again.
        except BaseException as error:
            if is_held:
                self._announce_again(held, size, target, error)
            else:
                self._slots.pin(slot, False)
                # An OSError with an errno comes from allocating memory; a handler's TimeoutError has none.
                if isinstance(error, OSError) and error.errno:
                    return None
            raise
        return held

    def _announce(self, held: HeldCheckpoint, size: int, target: str) -> None:
        """Announce a filled slot to the agent."""
        self._number = held.number
        # Announced before any thread here can wait for it.
        self._port.announce(CheckpointSaved(held.number, held.slot, target))
        self._made[held.slot] = max(size, self._made[held.slot])
        self._newest[held.slot] = held, target

    def _announce_again(self, held: HeldCheckpoint, size: int, target: str, error: BaseException) -> None:
        """Announce a slot whose first announcement was interrupted; the agent accepts each number once."""
        try:
            self._announce(held, size, target)
        except BaseException:
            self._slots.record_outcome(held.slot, held.number, FAILED, f"the agent could not be notified: {error!r}")
            self._slots.pin(held.slot, False)
            raise

    @waiting.counted_as_wait
    def wait_written(self, ending: str | tuple[str, ...] = "") -> None:
        """Wait until the newest checkpoint in each slot is on this machine's disk.

        Args:
            ending: wait only for targets whose names end so; the default waits for all.
        """
        for held in [held for held, target in list(self._newest.values()) if target.endswith(ending)]:
            while self._slots.outcome(held.slot, held.number) == WAITS:
                time.sleep(_POLL_S)

    def abandon_failed(self, ending: str | tuple[str, ...]) -> list[str]:
        """Abandon the files that could not be written and have not been saved again since, and return their targets.

        The caller raises their error in the training function. They are not written again at the end of the run, which
        can finish without them.

        Args:
            ending: only targets whose names end so.
        """
        newest = {target: held for held, target in sorted(self._newest.values(), key=lambda given: given[0].number)}
        failed = {
            target: held
            for target, held in newest.items()
            if target.endswith(ending) and self._slots.outcome(held.slot, held.number) == FAILED
        }
        for held in failed.values():
            self._slots.record_outcome(held.slot, held.number, ABANDONED)
        return list(failed)

    @waiting.counted_as_wait
    def wait_stored(self, held: HeldCheckpoint | None, target: str, timeout_s: float | None) -> None:
        """Wait until a checkpoint has reached the run's store.

        Args:
            held: its slot; None for one that this process has written itself.
            target: its folder or file on this machine.
            timeout_s: seconds to wait; None waits without limit.

        Raises:
            OSError: it could not be written to this machine's disk.
            StorageTimeout: ``timeout_s`` seconds have passed.
        """
        deadline = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
        while held is not None and (outcome := self._slots.outcome(held.slot, held.number)) in (WAITS, FAILED):
            if outcome == FAILED:
                raise OSError(f"the checkpoint {target} could not be written: {self._slots.problem}")
            self._pause(deadline, target)
        self._requests += 1
        self._port.announce(CheckpointAwaited(self._requests, target))
        while self._slots.stored_request < self._requests:
            self._pause(deadline, target)

    @staticmethod
    def _pause(deadline: float, target: str) -> None:
        """Sleep for one polling interval, or raise StorageTimeout after the deadline."""
        if time.monotonic() > deadline:
            raise StorageTimeout(f"the checkpoint {target} is not stored yet; it is still being copied", target)
        time.sleep(_POLL_S)


_DESCRIPTION, _WRITE, _TEXTS = "description", "write", "texts"
_decoder = msgspec.msgpack.Decoder(CheckpointDescription | FileDescription)
# It computes nothing, so the GPUs are left to the training.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def pack(arrays: dict[str, NDArray[Any]], description: CheckpointDescription | FileDescription, write: str) -> Snapshot:
    """Return the snapshot to put into a slot, from which the process writes a checkpoint or file.

    Args:
        arrays: the arrays to write, by name; those of text, which have no raw content, are pickled.
        description: the target and its settings.
        write: "module:function", called with the path (or the prefix of paths) and the arrays.
    """
    texts = {name: array for name, array in arrays.items() if array.dtype.hasobject}
    values = {_DESCRIPTION: msgspec.msgpack.encode(description), _WRITE: write.encode(), _TEXTS: pickle.dumps(texts)}
    return Snapshot(0, {name: array for name, array in arrays.items() if name not in texts}, values)


def run(_assignment: str, answers: int, slots: Sequence[int], requests: int) -> int:
    """Serve write requests until the request pipe is closed; return the exit status."""
    os.environ.update(_ENVIRONMENT)
    with contextlib.suppress(OSError):
        os.nice(5)  # training has priority
    held = CommitSlots(slots)
    while slot := os.read(requests, 1):
        answer = memoryview(framed(_write(held, slot[0]).encode()))
        while answer:
            answer = answer[os.write(answers, answer) :]
    return 0


def _write(held: CommitSlots, slot: int) -> str:
    """Write the checkpoint in a slot; return the error message, empty on success."""
    try:
        snapshot = commits.decode(held.read(slot))
        description = _decoder.decode(snapshot.values[_DESCRIPTION])
        module, _, name = snapshot.values[_WRITE].decode().partition(":")
        write = getattr(importlib.import_module(module), name)
        arrays = {**snapshot.arrays, **pickle.loads(snapshot.values[_TEXTS])}
        os.umask(description.umask)
        complete: Any = write_checkpoint if isinstance(description, CheckpointDescription) else write_file
        complete(description, lambda place: write(place, arrays))
    except Exception as error:  # noqa: BLE001 sent to the agent, which reports it
        return f"{type(error).__name__}: {tracebacks.without_node_names(str(error))}"
    return ""


def main() -> None:
    """Run the process in a fresh interpreter, where a fork is not safe."""
    assignment, answers, parent, cwd, requests, *slots = sys.argv[1:]
    processes.die_with_parent(int(parent))
    os.chdir(cwd)
    os._exit(run(assignment, int(answers), tuple(map(int, slots)), int(requests)))


if __name__ == "__main__":
    main()
