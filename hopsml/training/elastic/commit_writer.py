"""Writes commits beside the training: one thread, one commit at a time, at most one waiting."""

from __future__ import annotations

import threading
import time

import psutil

from hopsml.cluster.worker.context import CommitPort
from hopsml.training.elastic import commit_format
from hopsml.training.elastic.commit_format import Snapshot

_ROOM = 0.8  # of the memory that is free may be used


_made: tuple[CommitPort, CommitWriter] | None = None


def writer_of(port: CommitPort) -> CommitWriter:
    """The one of this process: two would not know of each other's newest commit, and write over it."""
    global _made
    if _made is None or _made[0] is not port:
        _made = (port, CommitWriter(port))
    return _made[1]


class CommitWriter:
    """The worker's end of its agent's slots; see ``writer_of``."""

    def __init__(self, port: CommitPort) -> None:
        self._port = port
        self._newest = port.newest
        self._in_memory: bool | None = None
        self._waiting: Snapshot | None = None
        self._wake = threading.Condition()
        self._busy = self._closed = False
        self._unwritten = False  # the arrays of the commit in hand are still to be written
        self.writing_s = 0.0  # what the newest commit took to write
        self.problem: BaseException | None = None
        self.written = -1  # the step of the newest complete commit of this process
        port.at_end.append(self._settle)
        self._thread = threading.Thread(target=self._run, name="hopsml-commits", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a commit is being written."""
        with self._wake:
            return self._busy or self._waiting is not None

    def write(self, snapshot: Snapshot, *, at_once: bool = False) -> None:
        """Hand over a snapshot, whose arrays are let go as they are written; waits while an earlier one is still waiting.

        ``at_once``: waits until it is written, too; the agent hears of it beside the training in any case. Raises what the
        last one ended with.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._waiting is None)
            self._raise()
            self._waiting = snapshot
            self._wake.notify_all()
            if at_once:
                self._wake.wait_for(lambda: self._waiting is None and not self._unwritten)
                self._raise()

    def wait(self) -> None:
        """Until everything that was handed over is complete. Raises what went wrong with it."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting is None and not self._busy)
            self._raise()

    def _settle(self) -> None:
        """The same at the process's end, where nobody commits any more who could be told."""
        try:
            self.wait()
        except BaseException as error:  # noqa: BLE001 the training itself has succeeded
            print(f"hopsml: the last commit could not be made: {type(error).__name__}: {error}", flush=True)

    def close(self) -> None:
        """End the thread; for a process that lives on without commits."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._thread.join()

    def _raise(self) -> None:
        if self.problem is not None:
            problem, self.problem = self.problem, None  # what follows may go well again: a disk was full for a moment
            raise problem

    def _run(self) -> None:
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
            except BaseException as error:  # noqa: BLE001 raised where the training commits next
                self.problem = error
            with self._wake:
                del snapshot
                self._busy = self._unwritten = False
                self._wake.notify_all()

    def _write(self, snapshot: Snapshot) -> None:
        if self._in_memory is None:
            self._in_memory = self._fits(snapshot.size)
        slots, began = self._port.slots, time.monotonic()
        slot = slots.free(self._newest)
        pieces = commit_format.encode(snapshot)
        snapshot.arrays.clear()  # from now on the pieces alone hold them
        length = slots.write(slot, snapshot.step, pieces, in_memory=self._in_memory)
        self._newest, self.written = slot, snapshot.step
        with self._wake:
            self.writing_s, self._unwritten = time.monotonic() - began, False
            self._wake.notify_all()
        self._port.announce("committed", snapshot.step, slot, length)

    @staticmethod
    def _fits(size: int) -> bool:
        """Whether two commits of this size fit in memory; where not, that is said, and they go to disk."""
        room = memory_room()
        if 2 * size <= room:
            return True
        print(
            f"hopsml: a commit has {size / 1e6:.0f} MB and two are kept, but only {room / 1e6:.0f} MB of memory may be "
            "used here: commits go to the local disk, which is slower; give the executors more memory overhead "
            "(spark.executor.memoryOverhead) to keep them in memory",
            flush=True,
        )
        return False


def memory_room() -> int:
    """Bytes of memory that may be used here beside what is in use."""
    free = psutil.virtual_memory().available
    limit = _control_group_room()
    return int(_ROOM * min(free, limit if limit is not None else free))


def _control_group_room() -> int | None:
    """What this process's container may still use, in bytes; None without a limit."""
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open("/sys/fs/cgroup/memory.current") as used:
            text = most.read().strip()
            return None if text == "max" else int(text) - int(used.read())
    except (OSError, ValueError):
        return None
