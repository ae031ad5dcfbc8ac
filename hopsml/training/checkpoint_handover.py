"""A checkpoint's way out of the training: into a slot of its agent's memory, from where it is written."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from hopsml.cluster.shared.commit_slots import FAILED, SLOTS, WAITS
from hopsml.cluster.worker.context import CheckpointPort
from hopsml.errors import StorageTimeout
from hopsml.training.elastic import commit_format
from hopsml.training.elastic.commit_format import Snapshot
from hopsml.training.elastic.commit_writer import memory_room

_POLL_S = 0.002

_made: tuple[CheckpointPort, Handover] | None = None


def handover_of(port: CheckpointPort) -> Handover:
    """The one of this process, which counts for all that are saved in it."""
    global _made
    if _made is None or _made[0] is not port:
        _made = (port, Handover(port))
    return _made[1]


@dataclass(frozen=True)
class HeldCheckpoint:
    """A checkpoint that the agent holds."""

    number: int
    slot: int


class Handover:
    """The worker's end of its agent's queue of checkpoints; see ``handover_of``."""

    def __init__(self, port: CheckpointPort) -> None:
        self._port, self._slots = port, port.slots
        self._lock, self._giving = threading.RLock(), False  # one save at a time, whichever thread makes it
        self._number = self._requests = 0
        self._made = [0] * SLOTS  # bytes of memory that the slots have
        self._newest: dict[int, tuple[HeldCheckpoint, str]] = {}  # by slot, with where they belong

    def give(self, snapshot: Snapshot, target: str) -> HeldCheckpoint | None:
        """Leave a state, whose arrays are let go, with the agent, to be written as the folder or file ``target``.

        It is safe from this process's end when this returns. None where there is no memory for it, and for a signal handler
        that saves in the middle of another save. Waits while all slots
        are being written: for a moment, or a second or two where the disk is slow.
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
        while (slot := next((slot for slot in range(SLOTS) if not self._slots.is_pinned(slot)), None)) is None:
            time.sleep(_POLL_S)
        size = snapshot.size
        if size > self._made[slot] and size > memory_room():
            return None
        held, is_held = HeldCheckpoint(self._number + 1, slot), False
        try:
            self._slots.pin(slot, True)
            pieces = commit_format.encode(snapshot)
            snapshot.arrays.clear()
            self._slots.write(slot, held.number, pieces)
            is_held = True
            self._announce(held, size, target)
        except BaseException as error:  # a signal handler's as well: a slot that stays pinned is lost
            if is_held:
                self._announce_again(held, size, target, error)
            else:
                self._slots.pin(slot, False)
                if isinstance(error, OSError) and error.errno:  # the memory's; a handler's TimeoutError has none
                    return None
            raise
        return held

    def _announce(self, held: HeldCheckpoint, size: int, target: str) -> None:
        self._number = held.number
        self._port.announce("saved", held.number, held.slot, target)  # before anybody here could wait for it
        self._made[held.slot] = max(size, self._made[held.slot])
        self._newest[held.slot] = held, target

    def _announce_again(self, held: HeldCheckpoint, size: int, target: str, error: BaseException) -> None:
        """Whether the agent has heard of it is not known, and it takes each number once."""
        try:
            self._announce(held, size, target)
        except BaseException:
            self._slots.conclude(held.slot, held.number, FAILED, f"the agent could not be told of it: {error!r}")
            self._slots.pin(held.slot, False)
            raise

    def wait_written(self, ending: str | tuple[str, ...] = "") -> None:
        """Until nothing that was given, of a name that ends so, is still to be written to this machine's disk."""
        for held in [held for held, target in list(self._newest.values()) if target.endswith(ending)]:
            while self._slots.outcome(held.slot, held.number) == WAITS:
                time.sleep(_POLL_S)

    def failed(self) -> list[str]:
        """What could not be written, and has not been saved again since."""
        newest = {target: held for held, target in sorted(self._newest.values(), key=lambda given: given[0].number)}
        return [target for target, held in newest.items() if self._slots.outcome(held.slot, held.number) == FAILED]

    def wait_stored(self, held: HeldCheckpoint | None, target: str, timeout_s: float | None) -> None:
        """Until what was given, or written here, is where the run's files belong.

        Raises OSError where it could not be written to this machine's disk, StorageTimeout after ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
        while held is not None and (outcome := self._slots.outcome(held.slot, held.number)) in (WAITS, FAILED):
            if outcome == FAILED:
                raise OSError(f"the checkpoint {target} could not be written: {self._slots.problem}")
            self._pause(deadline, target)
        self._requests += 1
        self._port.announce("store", self._requests, -1, target)
        while self._slots.stored < self._requests:
            self._pause(deadline, target)

    @staticmethod
    def _pause(deadline: float, target: str) -> None:
        if time.monotonic() > deadline:
            raise StorageTimeout(
                f"the checkpoint {target} has not reached its store yet; it is still on its way", target
            )
        time.sleep(_POLL_S)
