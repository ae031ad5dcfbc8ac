"""WebSocket server of the coordinator with TLS and a token, and the session of each connected agent.

A connection must send the application's token in its HTTP request, before the upgrade. A message of the wrong type or
size ends its connection. Every refusal is counted, and the first of each kind is logged. With a thousand agents every
microsecond per frame counts, so neither connections nor messages have a queue or a task. ``websockets`` checks requests,
frames and closings; its own connection for asyncio has a task for each peer and puts every frame into a queue.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import logging
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Event
from websockets.protocol import State as Stage
from websockets.server import ServerProtocol

from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.acceptor import Acceptor, Pending, report_failed_handshakes
from hopsml.cluster.shared.tls import make_identity
from hopsml.core.callbacks import nonblocking_logger

CLOSE_S = 10.0  # for the peer to end a connection after it was requested to
HELLO_TIMEOUT_S = 10.0
NOT_OURS, BROKEN = 1008, 1011  # close codes (RFC 6455, section 7.4.1)
S = TypeVar("S")
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
        self.received_at = 0.0  # monotonic seconds, of the last byte: a large message takes a while to arrive

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
    def last_message(self) -> str:
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
        self.received_at = time.monotonic()
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


class AgentListener(Protocol[S]):
    """Interface of a server of agents, called on its loop; ``S`` is its session of one agent.

    Attributes:
        token: Token that agents must send.
        inside: Connections of agents, and of peers that have not sent their hello yet.
    """

    token: str
    inside: set[Connection]

    def record_refusal(self, kind: str, text: str) -> None:
        """Record a refusal of this kind."""

    def create_session(self, connection: Connection, frame: bytes, admitted: float) -> S:
        """Return the session of an agent that has sent this hello; the token was accepted at ``admitted`` (epoch, s).

        Raises:
            msgspec.MsgspecError: The message is no hello.
        """

    def process_frame(self, session: S, frame: bytes) -> None:
        """Process a further message of an agent. Raises msgspec.MsgspecError for an invalid one."""

    def end_session(self, session: S, reason: str) -> None:
        """Process the end of an agent's connection, for this reason; may be called again."""


class AgentHandler(Generic[S]):
    """Handler of one connection: pending until it has shown the token, an agent's after its hello."""

    def __init__(self, door: AgentListener[S], pending: Pending) -> None:
        self._door, self._pending = door, pending
        self._session: S | None = None
        self._hello_due: asyncio.TimerHandle | None = None
        self._knows_token = True
        self._admitted = 0.0

    def admit(self, connection: Connection, request: Request) -> str:
        """Refuse a request without the token."""
        offered = "\n".join(request.headers.get_all("Authorization"))  # two headers are as invalid as none
        expected = f"Bearer {self._door.token}".encode()
        if hmac.compare_digest(offered.encode(errors="surrogateescape"), expected):
            self._pending.release()
            self._admitted = time.time()  # before the response: whatever the peer sends is later
            return ""
        self._knows_token = False
        self._door.record_refusal("token", f"{connection.address} connected without the token of this application")
        return "hopsml: a token is needed\n"

    def opened(self, connection: Connection) -> None:
        """Wait for the hello, at most ``HELLO_TIMEOUT_S``."""
        self._door.inside.add(connection)
        self._hello_due = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._too_late, connection)

    def _too_late(self, connection: Connection) -> None:
        """Close a connection without a hello."""
        if self._session is None:
            self._door.record_refusal("silence", f"{connection.address} did not identify itself")
            connection.close(NOT_OURS, "no hello")

    def message_received(self, connection: Connection, message: bytes) -> None:
        """Process a message of the agent: the first is the hello."""
        if self._session is None:
            self._session = self._door.create_session(connection, message, self._admitted)
        else:
            self._door.process_frame(self._session, message)

    def failed(self, connection: Connection, error: Exception) -> None:
        """Close a connection whose message is invalid or could not be processed."""
        if isinstance(error, msgspec.MsgspecError):
            self._door.record_refusal("message", f"{connection.address} sent an unknown message: {error}")
            connection.close(NOT_OURS, "not a message of this protocol")
        else:
            log.error("a message of %s could not be processed", connection.address, exc_info=error)
            connection.close(BROKEN)
        self._leave(connection)

    def ended(self, connection: Connection) -> None:
        """Count the fault, if there was one, and inform the listener of an agent's end."""
        self._pending.release()
        if self._hello_due is not None:
            self._hello_due.cancel()
        self._door.inside.discard(connection)
        if connection.was_open and (problem := connection.oversize):
            self._door.record_refusal("size", f"{connection.address} sent too large a message: {problem}")
        elif not connection.was_open and self._knows_token:
            problem = connection.refused_by_protocol
            self._door.record_refusal("handshake", f"{connection.address} does not use WebSocket: {problem}")
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """Remove the agent's session, with its reason if it has sent one."""
        if self._session is not None:
            reason = connection.last_message
            broke = "its connection broke, since the executor or the agent in it was killed"
            self._door.end_session(self._session, f"it ended itself: {reason}" if reason else broke)


log = nonblocking_logger("hopsml.coordinator")

TAKEN_BYTES = 32 << 10  # bytes per acknowledgement of an agent's messages; fewer than the agent may have in transit
GOING_AWAY = 1001  # close code (RFC 6455, section 7.4.1)
_HEARTBEAT = protocol.encode(protocol.Heartbeat())  # not decoded: its arrival is its only content


@dataclass
class AgentSession:
    """State of one connected agent: its description of itself, and the run for which it works."""

    agent_id: str
    connection: Connection
    hello: protocol.Hello
    ports: protocol.PortsHeld  # for the next worker
    admitted: float  # seconds since the epoch
    work: tuple[str, int] | None = None  # run and generation for which it works; -1: in no generation yet
    modules: frozenset[str] = frozenset()  # modules that its workers find imported
    leaving: str = ""  # why it is about to end
    was_cut: bool = False  # disconnected by the coordinator: it may still exist, frozen
    commit_door: tuple[int, str] | None = None  # port and certificate of the server from which others can fetch commits
    unsent: int = 0  # bytes that waited to be sent at the last check
    clogged_since: float | None = None  # monotonic seconds: since when it has not received any of them
    handled: int = 0  # bytes of its messages that have not been acknowledged

    @property
    def last_received_s(self) -> float:
        """Time at which its last byte was received, in monotonic seconds."""
        return self.connection.received_at

    def post(self, *messages: protocol.Message | bytes) -> None:
        """Send messages in order, without waiting; bytes are a message that is encoded already."""
        encoded = [message if isinstance(message, bytes) else protocol.encode(message) for message in messages]
        self.connection.write(*encoded)

    def acknowledge(self, size: int) -> None:
        """Count ``size`` bytes of the agent's messages as handled, and acknowledge them together with others."""
        self.handled += size
        if self.handled >= TAKEN_BYTES:
            self.post(protocol.MessagesTaken(self.handled))
            self.handled = 0

    def clogged_s(self, now: float) -> float:
        """Return for how many seconds the agent has received no pending byte; 0.0 if nothing is pending."""
        before, self.unsent = self.unsent, self.connection.transport.get_write_buffer_size()
        if not self.unsent or self.unsent < before:
            self.clogged_since = None
        elif self.clogged_since is None:
            self.clogged_since = now
        return now - self.clogged_since if self.clogged_since is not None else 0.0


class Listener(Protocol):
    """Interface for handling agents' connections and messages, called on the server's loop."""

    def session_started(self, session: AgentSession) -> None:
        """Process the connection of an agent that has sent its hello."""

    def message_received(self, session: AgentSession, message: protocol.ToCoordinator) -> None:
        """Process an agent's message.

        Raises:
            msgspec.DecodeError: Agents must not send this message.
        """

    def session_ended(self, session: AgentSession, reason: str) -> None:
        """Process the end of an agent's connection, for this reason; called once."""

    def silence_timeout_s(self, session: AgentSession) -> float:
        """Return the seconds without a message after which this agent counts as lost."""


class Sessions:
    """WebSocket server and the agents that are connected to it; used on one event loop."""

    def __init__(self, listener: Listener, lease_s: float) -> None:
        self.token = secrets.token_urlsafe(32)
        self.identity = make_identity()
        self.refused: Counter[str] = Counter()
        self.agents: dict[str, AgentSession] = {}
        self.inside: set[Connection] = set()  # connections of agents, and of peers that have not sent their hello yet
        self.listener, self._lease_s = listener, lease_s
        self._welcomed = 0
        self._renew = protocol.encode(protocol.Renew())
        self._tokens: protocol.DelegationTokens | None = None  # the newest, for agents that join later

    async def open(self, host: str, port_range: tuple[int, int] | None = None) -> int:
        """Listen on a free port, of the range if one is given, and return it.

        Args:
            host: Address to bind.
            port_range: First and last port that may be used; None: any.

        Raises:
            OSError: No port is available.
        """

        def make(pending: Pending) -> Connection:
            return Connection(AgentHandler(self, pending), protocol.MAX_TO_COORDINATOR)

        self._acceptor = Acceptor(
            make, report_failed_handshakes(self.identity.context, self.record_refusal), self.record_refusal
        )
        return await self._acceptor.open(host, port_range)

    async def close(self) -> None:
        """Accept no further connection, and end all: by the closing handshake, or else by force."""
        self._acceptor.close()
        for connection in list(self.inside):
            connection.close(GOING_AWAY)
        while self.inside:
            await asyncio.sleep(0.01)
        await self._acceptor.wait_closed()

    def record_refusal(self, kind: str, text: str) -> None:
        """Count a refusal, and log the first of its kind."""
        self.refused[kind] += 1
        if self.refused[kind] == 1:
            log.warning("refused: %s (further refusals of this kind are only counted)", text)

    def renew_leases(self) -> None:
        """Renew every agent's lease; disconnect those that have been silent, or received nothing, for too long."""
        now = time.monotonic()
        for session in list(self.agents.values()):
            patience_s = min(self._lease_s, self.listener.silence_timeout_s(session))
            if now - session.last_received_s > patience_s:
                self.abort_session(session, f"no message for {patience_s:g} s")
            elif session.clogged_s(now) > self._lease_s:
                self.abort_session(session, f"read no message for {self._lease_s:g} s")
            else:
                session.post(self._renew)

    def give_tokens(self, message: protocol.DelegationTokens) -> None:
        """Send delegation tokens to all agents, and to each that joins later."""
        self._tokens, frame = message, protocol.encode(message)
        for session in self.agents.values():
            session.post(frame)

    def abort_session(self, session: AgentSession, reason: str) -> None:
        """Abort the connection of an agent that does not respond any more; the agent ends when its lease expires."""
        session.connection.transport.abort()
        session.was_cut = True
        self.end_session(session, reason)

    def end_session(self, session: AgentSession, reason: str) -> None:
        """Remove a session that has ended, and inform the listener, once."""
        if self.agents.pop(session.agent_id, None) is not None:
            self.listener.session_ended(session, reason)

    def create_session(self, connection: Connection, frame: bytes, admitted: float) -> AgentSession:
        """Create the session of an agent by its hello.

        Args:
            connection: The agent's connection.
            frame: The first message.
            admitted: When the token was accepted, in seconds since the epoch.

        Returns:
            The session.

        Raises:
            msgspec.DecodeError: The message is no hello of this version.
        """
        hello = protocol.decode_for_coordinator(frame)
        if not isinstance(hello, protocol.Hello) or hello.version != protocol.VERSION:
            raise msgspec.DecodeError(f"expected a hello of version {protocol.VERSION}, got {hello!r:.200}")
        self._welcomed += 1
        session = AgentSession(
            f"a{self._welcomed}", connection, hello, protocol.PortsHeld(hello.port, hello.collective_port), admitted
        )
        self.agents[session.agent_id] = session
        session.post(protocol.Welcome(self._lease_s, time.time()))
        if self._tokens is not None:
            session.post(self._tokens)
        self.listener.session_started(session)
        session.acknowledge(len(frame))
        return session

    def process_frame(self, session: AgentSession, frame: bytes) -> None:
        """Process a message of an agent; most of them are heartbeats."""
        if frame != _HEARTBEAT:
            self.listener.message_received(session, protocol.decode_for_coordinator(frame))
            session.acknowledge(len(frame))
