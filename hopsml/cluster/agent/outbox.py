"""Queue of an agent's messages that the coordinator has not handled yet; a heartbeat overtakes all queued messages.

Messages in transit are bounded as well as queued ones: on a busy machine, a coordinator with megabytes of reports to handle
would renew no lease until it has read them, and all agents would exit.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hopsml.cluster.shared.protocol import Heartbeat, Message, encode

ROOM = 256 << 10  # bytes that may be queued or in transit before the reader of a worker's pipe is paused


class Outbox:
    """Queue of encoded messages to the coordinator; used on one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # that the coordinator has not acknowledged
        self._beat = False
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, message: Message) -> None:
        """Append a message to the queue, without blocking.

        Callers that must bound the queue wait for ``room`` before.
        """
        if isinstance(message, Heartbeat):
            self._beat = True
        else:
            data = encode(message)
            self._waiting.append(data)
            self._bytes += len(data)
            if self._bytes > ROOM:
                self._has_room.clear()
        self._filled.set()

    async def take(self) -> bytes:
        """Wait for the next message to send, and return its bytes; a heartbeat comes before all others."""
        await self._filled.wait()
        if self._beat:
            self._beat, data = False, _BEAT
        else:
            data = self._waiting.popleft()
        if not self._waiting and not self._beat:
            self._filled.clear()
        return data

    def taken(self, size: int) -> None:
        """Record that the coordinator has handled ``size`` more bytes."""
        self._bytes -= size
        if self._bytes <= ROOM:
            self._has_room.set()

    async def room(self) -> None:
        """Wait until the messages that the coordinator has not handled take at most ``ROOM`` bytes."""
        await self._has_room.wait()


_BEAT = encode(Heartbeat())
