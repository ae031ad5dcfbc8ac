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

from hopsml.delivery import logger_aside

log = logger_aside("hopsml.coordinator")

CLOSE_S = 10.0  # for the other side to end a connection when it was told to
_CONTENTS = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class Handler(Protocol):
    """What a server does about one connection; called on its loop."""

    def admit(self, connection: Connection, request: Request) -> str:
        """Called before the upgrade. Returns why the peer is refused, in words for it; "" where it is accepted."""

    def opened(self, connection: Connection) -> None:
        """The upgrade is done: messages may come."""

    def take(self, connection: Connection, message: bytes) -> None:
        """Handle one message. What this raises goes to ``failed``, and no further message is handled."""

    def failed(self, connection: Connection, error: Exception) -> None:
        """Called when ``take`` has raised this error, instead of further ``take``."""

    def ended(self, connection: Connection) -> None:
        """The connection is closed, whether or not it was accepted. Called once."""


class Connection(asyncio.Protocol):
    """One connection, from its first byte behind TLS to its end."""

    transport: asyncio.Transport

    def __init__(self, handler: Handler, most: int) -> None:
        """``most``: bytes of a message."""
        self._handler = handler
        self._protocol = ServerProtocol(max_size=most, logger=_library_log)
        self._is_deaf = False  # after trouble
        self._end: asyncio.TimerHandle | None = None
        self.was_open = False
        self.heard = 0.0  # monotonic seconds, of the last byte: a large message takes a while to arrive

    # ------------------------------------------------------------------------------------------ for who has it

    @property
    def address(self) -> Any:
        """Address of the peer, as the socket module gives it."""
        return self.transport.get_extra_info("peername")

    @property
    def refused_by_protocol(self) -> str:
        """Why it never came in, where that was not the handler's decision."""
        return str(self._protocol.handshake_exc or self._protocol.parser_exc or "no request in time")

    @property
    def oversize(self) -> str:
        """What was too large, where a too large message ended the connection; else ""."""
        sent = self._protocol.close_exc.sent if self._protocol.state is Stage.CLOSED else None
        return sent.reason if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG else ""

    @property
    def last_word(self) -> str:
        """Return the reason in the peer's closing frame; "" if there is none."""
        return self._protocol.close_rcvd.reason if self._protocol.close_rcvd is not None else ""

    def write(self, *contents: bytes) -> None:
        """Send messages at once, in one write. Sends nothing where the connection is being closed."""
        if self._protocol.state is Stage.OPEN and not self.transport.is_closing():
            for content in contents:
                self._protocol.send_binary(content)
            self._flush()

    def close(self, code: int, reason: str = "") -> None:
        """Handle no further message and begin the closing handshake; abort after ``CLOSE_S`` seconds without an answer."""
        self._is_deaf = True
        if self._protocol.state is Stage.OPEN:
            self._protocol.send_close(code, reason)
            self._flush()
        if self._end is None:
            self._end = asyncio.get_running_loop().call_later(CLOSE_S, self.transport.abort)

    # ------------------------------------------------------------------------------------------ as of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As ``asyncio.Protocol``."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """As ``asyncio.Protocol``."""
        self.heard = time.monotonic()
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._flush()
        for event in events:
            self._handle(event)

    def eof_received(self) -> None:
        """As ``asyncio.Protocol``."""
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """As ``asyncio.Protocol``."""
        self._protocol.receive_eof()
        if self._end is not None:
            self._end.cancel()
        self._handler.ended(self)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Request):
            if not self._protocol.eof_sent:  # else what came with it, before an answer, has broken the protocol
                self._answer(event)
        elif isinstance(event, Frame) and event.opcode in _CONTENTS and not self._is_deaf:
            try:
                if event.opcode is not Opcode.BINARY or not event.fin:
                    raise msgspec.DecodeError("a text frame, or a piece of a message")
                self._handler.take(self, cast(bytes, event.data))
            except Exception as error:  # noqa: BLE001 the handler's to judge
                self._is_deaf = True
                self._handler.failed(self, error)

    def _answer(self, request: Request) -> None:
        if refusal := self._handler.admit(self, request):
            response = self._protocol.reject(http.HTTPStatus.UNAUTHORIZED, refusal)
        else:
            response = self._protocol.accept(request)
        self._protocol.send_response(response)
        self._flush()
        if response.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS:
            self.was_open = True
            self._handler.opened(self)

    def _flush(self) -> None:
        pieces = self._protocol.data_to_send()
        if data := b"".join(pieces):
            self.transport.write(data)
        if pieces and not pieces[-1]:  # the end of what there is to say
            self.transport.close()


class _Aside(logging.Handler):
    """Hands what ``websockets`` has to say to our own log, which nobody waits for."""

    def emit(self, record: logging.LogRecord) -> None:
        if log.isEnabledFor(record.levelno):
            log.handle(record)


_library_log = logging.Logger("hopsml.coordinator.websocket", logging.WARNING)  # else it would say every connection
_library_log.addHandler(_Aside())
