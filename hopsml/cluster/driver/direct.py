"""A server's side of a WebSocket connection without a queue or a task: a thousand agents join at once and send heartbeats.

``websockets`` decides what a valid request, frame and ending is. Its own connection for asyncio has a task for each peer,
puts every frame into a queue, and waits for the transport, which is right for conversations. Here a message is handled
within microseconds or given to somebody else, so it can be handled where it is parsed, and what is posted must be written
at once.
"""

from __future__ import annotations

import asyncio
import http
import logging
import time
from typing import Any, Protocol, cast

import msgspec
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Event
from websockets.protocol import State as Stage
from websockets.server import ServerProtocol

CLOSE_S = 10.0  # for the other side to end a connection when it was told to
_CONTENTS = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class Visit(Protocol):
    """Who is told of a connection; called on its loop."""

    def admit(self, connection: Connection, request: Request) -> str:
        """Before the upgrade: why it may not come in, in words for the other side; empty where it may."""

    def opened(self, connection: Connection) -> None:
        """It is in."""

    def take(self, connection: Connection, message: bytes) -> None:
        """A message; what this raises is told to ``failed``, and no further one is taken."""

    def failed(self, connection: Connection, error: Exception) -> None:
        """A message could not be taken."""

    def ended(self, connection: Connection) -> None:
        """It is gone, or never came in."""


class Connection(asyncio.Protocol):
    """One connection, from its first byte behind TLS to its end."""

    transport: asyncio.Transport

    def __init__(self, visit: Visit, most: int, logger: logging.Logger) -> None:
        """``most``: bytes of a message."""
        self._visit = visit
        self._spoken = ServerProtocol(max_size=most, logger=logger)
        self._is_deaf = False  # after trouble
        self._end: asyncio.TimerHandle | None = None
        self.was_open = False
        self.heard = 0.0  # monotonic seconds, of the last byte: a large message takes a while to arrive

    # ------------------------------------------------------------------------------------------ for who has it

    @property
    def address(self) -> Any:
        """Of the other side."""
        return self.transport.get_extra_info("peername")

    @property
    def refused_by_protocol(self) -> str:
        """Why it never came in, where that was no decision of the visit's."""
        return str(self._spoken.handshake_exc or "no request in time")

    @property
    def oversize(self) -> str:
        """What was too large, where that was its end; else empty."""
        sent = self._spoken.close_exc.sent if self._spoken.state is Stage.CLOSED else None
        return sent.reason if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG else ""

    def write(self, *contents: bytes) -> None:
        """Send messages at once, in one piece; nothing to a connection that is being closed."""
        if self._spoken.state is Stage.OPEN and not self.transport.is_closing():
            self.transport.write(b"".join([framed(content) for content in contents]))

    def close(self, code: int, reason: str = "") -> None:
        """Take nothing more, and tell the other side; where it does not hear, it is cut off."""
        self._is_deaf = True
        if self._spoken.state is Stage.OPEN:
            self._spoken.send_close(code, reason)
            self._flush()
        if self._end is None:
            self._end = asyncio.get_running_loop().call_later(CLOSE_S, self.transport.abort)

    # ------------------------------------------------------------------------------------------ as of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As of asyncio."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """As of asyncio."""
        self.heard = time.monotonic()
        self._spoken.receive_data(data)
        events = self._spoken.events_received()
        self._flush()
        for event in events:
            self._handle(event)

    def eof_received(self) -> None:
        """As of asyncio."""
        self._spoken.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """As of asyncio."""
        self._spoken.receive_eof()
        if self._end is not None:
            self._end.cancel()
        self._visit.ended(self)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Request):
            self._answer(event)
        elif isinstance(event, Frame) and event.opcode in _CONTENTS and not self._is_deaf:
            try:
                if event.opcode is not Opcode.BINARY or not event.fin:
                    raise msgspec.DecodeError("a text frame, or a piece of a message")
                self._visit.take(self, cast(bytes, event.data))
            except Exception as error:  # noqa: BLE001 the visit's to judge
                self._is_deaf = True
                self._visit.failed(self, error)

    def _answer(self, request: Request) -> None:
        if refusal := self._visit.admit(self, request):
            response = self._spoken.reject(http.HTTPStatus.UNAUTHORIZED, refusal)
        else:
            response = self._spoken.accept(request)
        self._spoken.send_response(response)
        self._flush()
        if response.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS:
            self.was_open = True
            self._visit.opened(self)

    def _flush(self) -> None:
        for data in self._spoken.data_to_send():
            if data:
                self.transport.write(data)
            else:  # the end of what there is to say
                self.transport.close()


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
