"""WebSocket messages without a queue or a task on their way: for a server to which a thousand agents send heartbeats.

``websockets`` puts every frame into a queue and wakes the task that reads it; on the way out it takes a context, writes,
and waits for the transport. Both are right for conversations. Here a message is handled within microseconds or given
to somebody else, so it can be handled where it is parsed, and what is posted must be written at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.cluster.front import Stranger

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

Take = Callable[[bytes], None]


def framed(content: bytes) -> bytes:
    """A message as one final binary frame, not masked, as a server sends it (RFC 6455, section 5.2)."""
    length = len(content)
    if length < 126:
        head = bytes((0x82, length))
    elif length < 1 << 16:
        head = b"\x82\x7e" + length.to_bytes(2, "big")
    else:
        head = b"\x82\x7f" + length.to_bytes(8, "big")
    return head + content


def direct(base: type[ServerConnection]) -> type[ServerConnection]:
    """The server's connection with ``receive(take)``."""
    from websockets.frames import Opcode

    class DirectConnection(base):  # type: ignore[valid-type, misc]
        take: Take | None = None
        end: asyncio.Future[None] | None = None
        stranger: Stranger | None = None  # until it has shown the token
        heard = 0.0  # monotonic seconds, of the last byte: a large message takes a while to arrive

        def data_received(self, data: bytes) -> None:
            self.heard = time.monotonic()
            super().data_received(data)

        async def receive(self, take: Take) -> None:
            """Hand every message to ``take``; raises what it raises, and ConnectionClosed when the other side leaves."""
            self.end = self.loop.create_future()
            self.take = take
            await self.end

        def give_up(self, error: BaseException) -> None:
            """Take nothing more; ``receive`` raises the error."""
            if self.end is not None and not self.end.done():
                self.take = _ignore
                self.end.set_exception(error)

        def process_event(self, event: Any) -> None:
            if self.take is None or event.opcode not in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                super().process_event(event)
                return
            try:
                if event.opcode is not Opcode.BINARY or not event.fin:
                    raise msgspec.DecodeError("a text frame, or a piece of a message")
                self.take(event.data)
            except Exception as error:  # noqa: BLE001 raised by receive(), for whoever waits there
                self.give_up(error)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.stranger is not None:
                self.stranger.left()
            self.give_up(self.close_exc)

    return DirectConnection


def write(connection: ServerConnection, *contents: bytes) -> None:
    """Send messages at once, in one piece; nothing to a connection that is being closed."""
    from websockets.protocol import State

    if connection.protocol.state is State.OPEN and not connection.transport.is_closing():
        connection.transport.write(b"".join([framed(content) for content in contents]))


def _ignore(_: bytes) -> None:
    """What arrives after trouble."""
