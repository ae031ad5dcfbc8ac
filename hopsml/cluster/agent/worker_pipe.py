"""The agent's end of the pipe by which a worker gets what the driver tells it; a worker that does not read blocks nobody."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from hopsml.cluster.shared.framing import framed

MOST_WAITING = 64 << 20  # bytes that a worker may leave unread, besides what its pipe holds


class WorkerPipe:
    """Messages for one worker, kept until its pipe is made and then until it reads them.

    ``on_undeliverable`` is called once, with the reason, when too much of it lies unread.
    """

    def __init__(self, on_undeliverable: Callable[[str], None]) -> None:
        self._on_undeliverable = on_undeliverable
        self._early: list[bytes] = []
        self._pipe: asyncio.WriteTransport | None = None
        self._closed = False

    async def open(self) -> int:
        """Make the pipe. Returns the descriptor of its read end, which is the caller's to close."""
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
        if self._pipe.is_closing():  # the worker is gone, which its end tells
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
        """Send no more: the worker sees the end behind what was sent."""
        self._closed = True
        if self._pipe is not None:
            self._pipe.close()
