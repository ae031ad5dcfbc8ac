"""Server side of a WebSocket connection without a queue or a task, for a thousand agents that join at once.

``websockets`` checks requests, frames and closings. Its own connection for asyncio has a task for each peer, puts every
frame into a queue, and waits for the transport, which is right for conversations. Here a message is handled or passed
on within microseconds, so it can be handled where it is parsed, and messages must be sent at once.
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

from hopsml.core.callbacks import nonblocking_logger

log = nonblocking_logger("hopsml.coordinator")

CLOSE_S = 10.0  # for the peer to end a connection after it was requested to
_CONTENTS = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class Handler(Protocol):
    """Interface for handling one connection, called on the server's loop."""

    def admit(self, connection: Connection, request: Request) -> str:
        """Return why the peer is refused, as text for it; "" if it is accepted. Called before the upgrade."""

    def opened(self, connection: Connection) -> None:
        """Process the completed upgrade; messages may follow."""

    def message_received(self, connection: Connection, message: bytes) -> None:
        """Process one message of the peer.

        An error that this raises is passed to ``failed``, and no further message is handled.
        """

    def failed(self, connection: Connection, error: Exception) -> None:
        """Process an error that ``message_received`` has raised; that is not called again."""

    def ended(self, connection: Connection) -> None:
        """Process the end of the connection, accepted or not; called once."""


class Connection(asyncio.Protocol):
    """Server side of one connection, from its first byte after the TLS handshake to its end."""

    transport: asyncio.Transport

    def __init__(self, handler: Handler, most: int) -> None:
        """Use this handler; ``most``: largest size of a message in bytes."""
        self._handler = handler
        self._protocol = ServerProtocol(max_size=most, logger=_library_log)
        self._is_deaf = False  # after an error or a close: further messages are ignored
        self._end: asyncio.TimerHandle | None = None
        self.was_open = False
        self.heard = 0.0  # monotonic seconds, of the last byte: a large message takes a while to arrive

    # ------------------------------------------------------------------------------------------ for the owner

    @property
    def address(self) -> Any:
        """Address of the peer, as the socket module returns it."""
        return self.transport.get_extra_info("peername")

    @property
    def refused_by_protocol(self) -> str:
        """Reason why the connection was not upgraded, if that was not the handler's decision."""
        return str(self._protocol.handshake_exc or self._protocol.parser_exc or "no request in time")

    @property
    def oversize(self) -> str:
        """Description of the message that ended the connection because it was too large; else ""."""
        sent = self._protocol.close_exc.sent if self._protocol.state is Stage.CLOSED else None
        return sent.reason if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG else ""

    @property
    def last_word(self) -> str:
        """Reason in the peer's closing frame; "" if there is none."""
        return self._protocol.close_rcvd.reason if self._protocol.close_rcvd is not None else ""

    def write(self, *contents: bytes) -> None:
        """Send messages at once, in one write; nothing is sent while the connection is being closed."""
        if self._protocol.state is Stage.OPEN and not self.transport.is_closing():
            for content in contents:
                self._protocol.send_binary(content)
            self._flush()

    def close(self, code: int, reason: str = "") -> None:
        """Ignore further messages and begin the closing handshake.

        The connection is aborted after ``CLOSE_S`` seconds without a response.
        """
        self._is_deaf = True
        if self._protocol.state is Stage.OPEN:
            self._protocol.send_close(code, reason)
            self._flush()
        if self._end is None:
            self._end = asyncio.get_running_loop().call_later(CLOSE_S, self.transport.abort)

    # ------------------------------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport when asyncio has made the connection."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and process their messages; called by asyncio."""
        self.heard = time.monotonic()
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._flush()
        for event in events:
            self._handle(event)

    def eof_received(self) -> None:
        """Process the end of the peer's data; called by asyncio."""
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Process the end of the connection; called by asyncio."""
        self._protocol.receive_eof()
        if self._end is not None:
            self._end.cancel()
        self._handler.ended(self)

    def _handle(self, event: Event) -> None:
        """Process a parsed request or message."""
        if isinstance(event, Request):
            if not self._protocol.eof_sent:  # else what came with it, before an answer, has broken the protocol
                self._answer(event)
        elif isinstance(event, Frame) and event.opcode in _CONTENTS and not self._is_deaf:
            try:
                if event.opcode is not Opcode.BINARY or not event.fin:
                    raise msgspec.DecodeError("a text frame, or a piece of a message")
                self._handler.message_received(self, cast(bytes, event.data))
            except Exception as error:  # noqa: BLE001 the handler evaluates it
                self._is_deaf = True
                self._handler.failed(self, error)

    def _answer(self, request: Request) -> None:
        """Accept or refuse the upgrade."""
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
        """Write what the protocol has to send, and close the transport after its last part."""
        pieces = self._protocol.data_to_send()
        if data := b"".join(pieces):
            self.transport.write(data)
        if pieces and not pieces[-1]:  # the protocol sends nothing more
            self.transport.close()


class _Aside(logging.Handler):
    """Logging handler that passes the messages of ``websockets`` to the coordinator's log, which never blocks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record if the coordinator's log accepts its level."""
        if log.isEnabledFor(record.levelno):
            log.handle(record)


# at the default level each connection would be logged
_library_log = logging.Logger("hopsml.coordinator.websocket", logging.WARNING)
_library_log.addHandler(_Aside())
