"""Process of one worker, as its agent sees it: launch by the fork server, signals, status, and the pipes to it.

A worker that does not read its messages blocks no other process. Events are read in pieces, as fast as they are handled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from hopsml.cluster.agent.usage import Idleness, OomWatch, StorageWaits
from hopsml.cluster.forking.fork_client import ForkClient
from hopsml.cluster.forking.fork_server import Exited
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.cluster.shared.framing import FrameDecoder, framed
from hopsml.cluster.shared.worker_events import WorkerStatus
from hopsml.core import processes

MOST_WAITING = 64 << 20  # bytes that a worker may leave unread, in addition to its pipe's capacity
PIECE = 64 << 10  # bytes per read: the capacity of a pipe
_LOOK_S = 0.1  # shortest pause between two checks whether it still waits for storage
HELD_LIMIT = 3  # consecutive heartbeats with a stopped process


class WorkerPipe:
    """Messages for one worker, queued until its pipe exists and then until the worker reads them.

    ``on_undeliverable`` is called once, with the reason, if too many bytes remain unread.
    """

    def __init__(self, on_undeliverable: Callable[[str], None]) -> None:
        self._on_undeliverable = on_undeliverable
        self._early: list[bytes] = []
        self._pipe: asyncio.WriteTransport | None = None
        self._closed = False

    async def open(self) -> int:
        """Create the pipe for messages.

        Returns the descriptor of its read end, which the caller closes.
        """
        read_end, write_end = os.pipe()
        loop = asyncio.get_running_loop()
        self._pipe, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(write_end, "wb", buffering=0))
        self._pipe.set_write_buffer_limits(high=MOST_WAITING)
        early, self._early = self._early, []
        for data in early:
            self._pipe.write(framed(data))
        if self._closed:
            self._pipe.close()
        return read_end

    def send(self, data: bytes) -> None:
        """Send a message without waiting; after ``close`` it is dropped."""
        if self._closed:
            return
        if self._pipe is None:
            self._early.append(data)
            return
        if self._pipe.is_closing():  # the worker has exited, which its exit status reports
            return
        self._pipe.write(framed(data))
        waiting = self._pipe.get_write_buffer_size()
        if waiting > MOST_WAITING:
            self._closed = True
            self._pipe.abort()
            self._on_undeliverable(
                f"the worker has not read {waiting >> 20} MiB of messages, and at most {MOST_WAITING >> 20} MiB are "
                "stored; call hopsml.receive() in it more often, or send it less"
            )

    def close(self) -> None:
        """Send no more: the worker reads the end of file after the messages sent before."""
        self._closed = True
        if self._pipe is not None:
            self._pipe.close()


class EventReader:
    """Reader of a worker's event pipe; used on one event loop."""

    def __init__(self, descriptor: int) -> None:
        """Take over the pipe's read end.

        Args:
            descriptor: the pipe's read end, which is closed when ``batches`` ends.
        """
        os.set_blocking(descriptor, False)
        self._descriptor, self._frames = descriptor, FrameDecoder()
        self._wake = asyncio.Event()
        self._has_exited = False

    def record_exit(self) -> None:
        """Record that the worker has exited: ``batches`` ends when the pipe is empty."""
        self._has_exited = True
        self._wake.set()

    async def batches(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the events of each read until the pipe is closed, or until it is empty once the worker has exited.

        A process that inherited the write end may hold it open indefinitely; but all that the worker has written is in
        the pipe when it exits, so no time-out is needed.

        Raises:
            ValueError: if the pipe holds other data than events.
        """
        try:
            while True:
                is_last = self._has_exited  # read before the pipe is, so that all data written until then is read
                try:
                    piece = os.read(self._descriptor, PIECE)
                except BlockingIOError:
                    if is_last:
                        return
                    await self._readable()
                    continue
                if not piece:
                    return
                if complete := self._frames.feed(piece):
                    yield complete
        finally:
            os.close(self._descriptor)

    async def _readable(self) -> None:
        """Wait until the pipe is readable, or the worker has exited."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, self._wake.set)
        try:
            await self._wake.wait()
            self._wake.clear()
        finally:
            loop.remove_reader(self._descriptor)


class WorkerProcess:
    """Process of one worker, from its launch to its exit; used on its agent's event loop."""

    def __init__(self, on_undeliverable: Callable[[str], None]) -> None:
        """Prepare the pipes; nothing is started yet.

        Args:
            on_undeliverable: called with the reason if the worker leaves too many messages unread.
        """
        self.pid = 0
        self.messages = WorkerPipe(on_undeliverable)  # of the driver
        self.changes = WorkerPipe(on_undeliverable)  # of the group
        self.server: ForkClient | None = None
        self._number = 0  # by which the fork server knows it
        self._ends_by = float("inf")  # monotonic seconds: deadline of its exit
        self._oom: OomWatch | None = None
        self._idleness: Idleness | None = None
        self._waits = StorageWaits()
        self._waited_s = 0.0  # for storage, at the last heartbeat
        self._was_quiet = True  # the last heartbeat had nothing to report about it
        self._held = 0  # heartbeats for which it has been stopped
        self._loop = asyncio.get_running_loop()

    async def start(
        self, server: ForkClient, assignment: Path, cwd: Path, log: int, slots: Sequence[int], is_elastic: bool
    ) -> EventReader:
        """Launch the worker, and return the reader of its events.

        Args:
            server: fork server that starts it.
            assignment: file with its assignment.
            cwd: its working directory.
            log: descriptor of its log.
            slots: descriptors of the slots for checkpoints and commits.
            is_elastic: True if it gets the pipe for changes of the group.

        Raises:
            OSError: the fork server has gone, or cannot fork.
        """
        read_end, write_end = os.pipe()
        inbox = await self.messages.open()
        changes = [await self.changes.open()] if is_elastic else []
        try:
            launched = server.launch(str(assignment), str(cwd), write_end, log, [*slots, *changes], inbox)
            self._number, self.pid = await launched
            self._oom = OomWatch(self.pid)
        except OSError:
            os.close(read_end)
            raise
        finally:
            for descriptor in (write_end, inbox, *changes):
                os.close(descriptor)
        return EventReader(read_end)

    async def wait(self, reader: EventReader, events: asyncio.Task[None]) -> Exited:
        """Wait until the worker has exited and all of its output is read, without a time limit.

        A slow driver may delay it; this agent exits if the driver disconnects.

        Raises:
            ConnectionError: if the fork server was killed, and the worker with it.
        """
        assert self.server is not None
        try:
            exited = await self.server.wait_for_exit(self._number)
        except ConnectionError:
            reader.record_exit()
            await events
            raise
        reader.record_exit()
        await events
        return exited

    def describe_exit(self, exited: Exited) -> str:
        """Describe how the process has ended, with the sender of SIGKILL as far as it is known."""
        sender = self._oom.explain() if self._oom is not None else "hopsml did not send it"
        cause = processes.describe_exit(exited.status, sender)
        if os.WIFSIGNALED(exited.status):
            cause += f" (its memory had peaked at {exited.max_rss_mb} MB)"
        return cause

    def status(self, slots: CommitSlots | None, shared: CommitSlots | None) -> WorkerStatus | None:
        """Return its status for a heartbeat; None if neither this nor the last heartbeat has anything to report.

        Args:
            slots: those for commits, with its progress; None for a group without them.
            shared: those for checkpoints, with its waits for storage; None before its launch.
        """
        if not self.pid:
            return None
        self._idleness = self._idleness or Idleness(self.pid)
        step, age_s = (slots.progress, slots.progress_age_s) if slots is not None and slots.progress >= 0 else (-1, 0.0)
        waited_s = self._waits.seconds(shared.storage_waits() if shared is not None else ())
        has_waited, self._waited_s = waited_s > self._waited_s, waited_s
        stopped, idle_s = processes.is_stopped(self.pid), self._idleness.seconds(waited_s)
        was_quiet, self._was_quiet = self._was_quiet, not stopped and not idle_s and not has_waited
        if step < 0 and self._was_quiet and was_quiet:
            return None
        return WorkerStatus(step, stopped, age_s, idle_s, waited_s)

    def check_stopped_at_heartbeat(self) -> bool:
        """Return True if it has been stopped (SIGSTOP) for ``HELD_LIMIT`` heartbeats; called with each of them."""
        self._held = self._held + 1 if self.pid and processes.is_stopped(self.pid) else 0
        return self._held >= HELD_LIMIT

    def waits_for_server(self) -> bool:
        """Return True if progress depends on the fork server; a worker that trains does not need it."""
        return not self.pid or processes.has_ended(self.pid) or time.monotonic() > self._ends_by

    def kill_in(self, seconds: float) -> None:
        """Send SIGKILL after so many seconds."""
        self._ends_by = min(self._ends_by, time.monotonic() + seconds)
        if seconds:
            self._loop.call_later(seconds, self.signal, signal.SIGKILL)
        else:
            self.signal(signal.SIGKILL)

    def kill_unless_storing(self, seconds: float, most_s: float, shared: CommitSlots | None) -> None:
        """Send SIGKILL after so many seconds in which it does not wait for storage.

        Args:
            seconds: without the waits.
            most_s: with them.
            shared: slots for checkpoints, with its waits for storage.
        """
        began, waits = time.monotonic(), StorageWaits()

        def check() -> None:
            if not self.pid or processes.has_ended(self.pid):
                return
            waited_s = waits.seconds(shared.storage_waits()) if shared is not None else 0.0
            left_s = min(seconds + waited_s, most_s) - (time.monotonic() - began)
            if left_s <= 0:
                self.kill_in(0.0)
            else:
                self._loop.call_later(max(left_s, _LOOK_S), check)

        if shared is not None:
            waits.seconds(shared.storage_waits())  # those before do not count
        self._loop.call_later(seconds, check)

    def signal(self, number: int) -> None:
        """Send a signal to its process group, through the fork server, and directly if that is stopped."""
        if self.server is not None and self._number:
            self.server.signal(self._number, number)
            if self.server.is_unresponsive:  # it reaps no process, so the pid is still this worker's
                processes.kill_group_quietly(self.pid, number)
