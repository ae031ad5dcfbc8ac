"""What an agent has to say to the coordinator, in order; its heartbeats pass everything that waits."""

from __future__ import annotations

import asyncio
from collections import deque

from hopsml.cluster.shared.protocol import Heartbeat, Message, encode

ROOM = 1 << 20  # bytes that may wait before who reads a worker's pipe has to


class Outbox:
    """Encoded messages; used on one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._beat = False
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, message: Message) -> None:
        """Let it wait for its turn. Never blocks: what must not pile up asks ``room`` before."""
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
        """The next one."""
        await self._filled.wait()
        if self._beat:
            self._beat, data = False, _BEAT
        else:
            data = self._waiting.popleft()
            self._bytes -= len(data)
        if not self._waiting and not self._beat:
            self._filled.clear()
        if self._bytes <= ROOM:
            self._has_room.set()
        return data

    async def room(self) -> None:
        """Wait until at most ``ROOM`` bytes wait."""
        await self._has_room.wait()


_BEAT = encode(Heartbeat())
