"""WebSocket server of the coordinator with TLS and a token, and the session of each connected agent.

A connection must send the application's token in its HTTP request, before the upgrade. A message of the wrong type or
size ends its connection. Every refusal is counted, and the first of each kind is logged. With a thousand agents every
microsecond per frame counts, so neither connections nor messages have a queue or a task: ``websocket.py``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.acceptor import Acceptor, Pending, reporting
from hopsml.cluster.shared.tls import make_identity
from hopsml.core.callbacks import nonblocking_logger

if TYPE_CHECKING:
    from hopsml.cluster.driver.websocket import Connection

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
        return self.connection.heard

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

    def joined(self, session: AgentSession) -> None:
        """Process the connection of an agent that has sent its hello."""

    def message_received(self, session: AgentSession, message: protocol.ToCoordinator) -> None:
        """Process an agent's message.

        Raises:
            msgspec.DecodeError: Agents must not send this message.
        """

    def session_ended(self, session: AgentSession, reason: str) -> None:
        """Process the end of an agent's connection, for this reason; called once."""

    def patience_s(self, session: AgentSession) -> float:
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

    async def open(self, host: str, port_range: tuple[int, int] | None = None) -> int:
        """Listen on a free port, of the range if one is given, and return it.

        Args:
            host: Address to bind.
            port_range: First and last port that may be used; None: any.

        Raises:
            OSError: No port is available.
        """
        from hopsml.cluster.driver.websocket import AgentHandler, Connection

        def make(pending: Pending) -> Connection:
            return Connection(AgentHandler(self, pending), protocol.MAX_TO_COORDINATOR)

        self._acceptor = Acceptor(make, reporting(self.identity.context, self.refuse), self.refuse)
        return await self._acceptor.open(host, port_range)

    async def close(self) -> None:
        """Accept no further connection, and end all: by the closing handshake, or else by force."""
        self._acceptor.close()
        for connection in list(self.inside):
            connection.close(GOING_AWAY)
        while self.inside:
            await asyncio.sleep(0.01)
        await self._acceptor.wait_closed()

    def refuse(self, kind: str, text: str) -> None:
        """Count a refusal, and log the first of its kind."""
        self.refused[kind] += 1
        if self.refused[kind] == 1:
            log.warning("refused: %s (further ones of this kind are only counted)", text)

    def renew(self) -> None:
        """Renew every agent's lease; disconnect those that have been silent, or received nothing, for too long."""
        now = time.monotonic()
        for session in list(self.agents.values()):
            patience_s = min(self._lease_s, self.listener.patience_s(session))
            if now - session.last_received_s > patience_s:
                self.cut(session, f"no sign of life for {patience_s:g} s")
            elif session.clogged_s(now) > self._lease_s:
                self.cut(session, f"took no message for {self._lease_s:g} s")
            else:
                session.post(self._renew)

    def cut(self, session: AgentSession, reason: str) -> None:
        """Abort the connection of an agent that does not respond any more; the agent ends when its lease expires."""
        session.connection.transport.abort()
        session.was_cut = True
        self.forget(session, reason)

    def forget(self, session: AgentSession, reason: str) -> None:
        """Remove a session that has ended, and inform the listener, once."""
        if self.agents.pop(session.agent_id, None) is not None:
            self.listener.session_ended(session, reason)

    def welcome(self, connection: Connection, frame: bytes, admitted: float) -> AgentSession:
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
        session.post(protocol.Welcome(self._lease_s))
        self.listener.joined(session)
        session.acknowledge(len(frame))
        return session

    def received(self, session: AgentSession, frame: bytes) -> None:
        """Process a message of an agent; most of them are heartbeats."""
        if frame != _HEARTBEAT:
            self.listener.message_received(session, protocol.decode_for_coordinator(frame))
            session.acknowledge(len(frame))
