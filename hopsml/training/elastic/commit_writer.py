"""Background writing of commits into the slots of the agent: one thread, at most one further commit waiting."""

from __future__ import annotations

import threading
import time

import psutil

from hopsml.cluster.worker.context import CommitPort
from hopsml.training.elastic import commit_format
from hopsml.training.elastic.commit_format import Snapshot

_ROOM = 0.8  # fraction of the free memory that may be used


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

    def wait(self) -> None:
        """Wait until all snapshots handed over are written and announced; raise the error of one that failed."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting is None and not self._busy)
            self._raise()

    def _settle(self) -> None:
        """Wait for the last commit at the process's end; print an error, as no later call could raise it."""
        try:
            self.wait()
        except BaseException as error:  # noqa: BLE001 the training itself has succeeded
            print(f"hopsml: the last commit could not be made: {type(error).__name__}: {error}", flush=True)

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
        slot = slots.free(self._newest)
        pieces = commit_format.encode(snapshot)
        snapshot.arrays.clear()  # only the pieces reference the arrays from here on
        length = slots.write(slot, snapshot.step, pieces, in_memory=self._in_memory)
        self._newest, self.written = slot, snapshot.step
        with self._wake:
            self.writing_s, self._unwritten = time.monotonic() - began, False
            self._wake.notify_all()
        self._port.announce("committed", snapshot.step, slot, length)

    @staticmethod
    def _fits(size: int) -> bool:
        """Return True if two commits of this size fit in memory; otherwise print that commits go to disk."""
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
