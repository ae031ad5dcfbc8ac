"""Agent's ends of the two pipes to its worker: one for the driver's messages, one for the worker's events.

A worker that does not read blocks no other process. Events are read in pieces, as fast as they are handled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable

from hopsml.cluster.shared.framing import Frames, framed

MOST_WAITING = 64 << 20  # bytes that a worker may leave unread, in addition to its pipe's capacity
PIECE = 64 << 10  # bytes per read: the capacity of a pipe


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
                f"the worker left {waiting >> 20} MiB of messages unread, at most {MOST_WAITING >> 20} MiB are kept; "
                "it must call hopsml.receive() more often, or be sent less"
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
        self._descriptor, self._frames = descriptor, Frames()
        self._wake = asyncio.Event()
        self._has_exited = False

    def exited(self) -> None:
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
