"""The coordinator's door: a WebSocket server with TLS, the token, and one session for each agent that came in.

A connection must bring the application's token in its HTTP request, before the upgrade. A message of the wrong type or
size ends its connection. Every refusal is counted, the first of each kind is logged. With a thousand agents every
microsecond of a frame counts, so messages pass neither a queue nor a task: ``direct.py``.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from hopsml.cluster import direct, protocol
from hopsml.cluster.front import SHOW_S, Front, Stranger
from hopsml.cluster.strangers import watched, watched_connection, websocket_log
from hopsml.cluster.tls import make_identity
from hopsml.delivery import logger_aside

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

log = logger_aside("hopsml.coordinator")

HELLO_TIMEOUT_S = 10.0
_HEARTBEAT = protocol.encode(protocol.Heartbeat())  # needs no decoding: that it came is all it says


@dataclass
class Session:
    """One connected agent."""

    agent_id: str
    connection: ServerConnection
    hello: protocol.Hello
    port: int  # that it holds for the next worker
    heard: float  # monotonic seconds
    work: tuple[str, int] | None = None  # run and generation that it works for; -1: it has not begun
    modules: frozenset[str] = frozenset()  # that its workers find imported
    leaving: str = ""  # why it is going away soon
    was_cut: bool = False  # by us: it may still be there, frozen
    commit_door: tuple[int, str] | None = None  # port and certificate, where others can fetch commits
    unsent: int = 0  # bytes that waited to be sent when it was last looked at
    clogged_since: float | None = None  # monotonic seconds: it has taken nothing of them since

    def post(self, *messages: protocol.Message | bytes) -> None:
        """Send, in order, without waiting; bytes are a message that is encoded already."""
        encoded = [message if isinstance(message, bytes) else protocol.encode(message) for message in messages]
        direct.write(self.connection, *encoded)

    def clogged_s(self, now: float) -> float:
        """For how long it has taken nothing of what waits to be sent; 0.0 where nothing waits."""
        before, self.unsent = self.unsent, self.connection.transport.get_write_buffer_size()
        if not self.unsent or self.unsent < before:
            self.clogged_since = None
        elif self.clogged_since is None:
            self.clogged_since = now
        return now - self.clogged_since if self.clogged_since is not None else 0.0


class Listener(Protocol):
    """Who wants to know; called on the server's loop."""

    def joined(self, session: Session) -> None:
        """An agent has said who it is."""

    def said(self, session: Session, message: protocol.ToCoordinator) -> None:
        """A message of an agent; raises msgspec.DecodeError for one that it must not send."""

    def left(self, session: Session, reason: str) -> None:
        """An agent is gone."""

    def patience_s(self, session: Session) -> float:
        """How long this agent may be silent, in seconds."""


class Sessions:
    """The server and whoever is connected; used on one event loop."""

    def __init__(self, listener: Listener, lease_s: float) -> None:
        self.token = secrets.token_urlsafe(32)
        self.identity = make_identity()
        self.refused: Counter[str] = Counter()
        self.agents: dict[str, Session] = {}
        self._listener, self._lease_s = listener, lease_s
        self._welcomed = 0
        self._renew = protocol.encode(protocol.Renew())

    async def open(self, host: str) -> tuple[Server, int]:
        """Listen on a free port; returns the server and the port."""
        from websockets.asyncio.server import serve
        from websockets.server import ServerProtocol

        kind, logger = direct.direct(watched_connection(self.refuse)), websocket_log()

        def make(stranger: Stranger) -> ServerConnection:
            spoken = ServerProtocol(max_size=protocol.MAX_TO_COORDINATOR, logger=logger)
            connection = kind(spoken, server, ping_interval=None)
            connection.stranger = stranger  # type: ignore[attr-defined]
            return connection

        async def listen() -> Front:
            front = Front(make, watched(self.identity.context, self.refuse), self.refuse)
            await front.open(host)
            return front

        server = serve(
            self._session, open_timeout=SHOW_S, logger=logger, process_request=self._admit, server_header=None
        )
        server.create_server = cast(Any, listen)  # websockets' own would accept whoever comes
        await server
        return server, next(iter(server.sockets)).getsockname()[1]

    def refuse(self, kind: str, text: str) -> None:
        """Count a refusal; log the first of its kind."""
        self.refused[kind] += 1
        if self.refused[kind] == 1:
            log.warning("refused: %s (further ones of this kind are only counted)", text)

    def renew(self) -> None:
        """Prolong every agent's lease; cut off those that have been silent, or took nothing, for its length."""
        now = time.monotonic()
        for session in list(self.agents.values()):
            patience_s = min(self._lease_s, self._listener.patience_s(session))
            if now - max(session.heard, getattr(session.connection, "heard", 0.0)) > patience_s:
                self.cut(session, f"no sign of life for {patience_s:g} s")
            elif session.clogged_s(now) > self._lease_s:
                self.cut(session, f"took no message for {self._lease_s:g} s")
            else:
                session.post(self._renew)

    def cut(self, session: Session, reason: str) -> None:
        """End a connection that is of no use any more; the agent ends by its lease."""
        session.connection.transport.abort()
        session.was_cut = True
        self._forget(session, reason)

    def _forget(self, session: Session, reason: str) -> None:
        if self.agents.pop(session.agent_id, None) is not None:
            self._listener.left(session, reason)

    # ------------------------------------------------------------------------------------------ one connection

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Before the upgrade: nobody without the token gets further."""
        offered = "\n".join(request.headers.get_all("Authorization"))  # two of them are none
        if hmac.compare_digest(offered.encode(errors="surrogateescape"), f"Bearer {self.token}".encode()):
            connection.stranger.left()  # type: ignore[attr-defined]
            return None
        self.refuse("token", f"{connection.remote_address} came without the token of this application")
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "hopsml: a token is needed\n")

    async def _session(self, connection: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        session: Session | None = None

        def take(frame: bytes) -> None:
            nonlocal session
            if session is None:
                session = self._welcome(connection, frame)
                return
            session.heard = time.monotonic()
            if frame != _HEARTBEAT:
                self._listener.said(session, protocol.decode_for_coordinator(frame))

        def silent() -> None:
            if session is None:
                connection.give_up(TimeoutError())

        hello_due = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, silent)
        try:
            await connection.receive(take)
        except msgspec.MsgspecError as error:
            self.refuse("message", f"{connection.remote_address} sent what is no message of ours: {error}")
            await connection.close(1008, "not a message of this protocol")
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == 1009:
                self.refuse("size", f"{connection.remote_address} sent too large a message: {closed.sent.reason}")
        except TimeoutError:
            self.refuse("silence", f"{connection.remote_address} did not say who it is")
        except OSError:
            pass
        finally:
            hello_due.cancel()
            if session is not None:
                self._forget(session, "its connection broke: the executor or the agent in it was ended")

    def _welcome(self, connection: ServerConnection, frame: bytes) -> Session:
        hello = protocol.decode_for_coordinator(frame)
        if not isinstance(hello, protocol.Hello) or hello.version != protocol.VERSION:
            raise msgspec.DecodeError(f"expected a hello of version {protocol.VERSION}, got {hello!r:.200}")
        self._welcomed += 1
        session = Session(f"a{self._welcomed}", connection, hello, hello.port, time.monotonic())
        self.agents[session.agent_id] = session
        session.post(protocol.Welcome(session.agent_id, self._lease_s))
        self._listener.joined(session)
        return session
