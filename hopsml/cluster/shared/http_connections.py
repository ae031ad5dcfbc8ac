"""Limits on the connections of uvicorn's servers: unauthenticated connections cannot displace authenticated ones.

uvicorn itself accepts every connection, and waits indefinitely for the end of a request's head. Here a connection is
pending, in the acceptor's sense, until a request on it has carried a valid token (``admit_authenticated``). A pending
connection without a complete head after ten seconds is closed; one whose requests are answered without a token, such
as health checks, remains open, and is the first to be closed where there are too many. Connections that send single
bytes but never another request are closed after ``KEEP_ALIVE_S``. Where tokens belong to users, one user may have a
quarter of the connections that the process may open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from typing import Any, cast

from hopsml.cluster.shared.acceptor import AT_ONCE, Acceptor, ConnectionLimits, Pending, Refuse

KEEP_ALIVE_S = 75.0  # longer than the time for which usual load balancers retain an idle connection
LOOK_S = 1.0  # seconds between two checks for connections without a new request
MOST_HEAD_BYTES = 256 << 10  # of a request, beyond those received with its first bytes; and of what follows its body
FEWEST_OF_A_USER = 8  # connections allowed per user even with few descriptors
_RECOGNISED = "hopsml_recognised"  # key in the state of a request's scope

_uvicorn_log = logging.getLogger("uvicorn.error")
MOST_WARNINGS = 100  # different ones of uvicorn that are logged


def admit_authenticated(scope: MutableMapping[str, Any], user: str = "") -> bool:
    """Count the connection of a request with a valid token for its user, and as pending no more.

    Args:
        scope: ASGI scope of the request.
        user: owner of the token; "" where all callers have the same one.

    Returns:
        True if it is admitted; False if that user has too many connections already: the caller must refuse the
        request and close its connection.
    """
    return bool(scope.get("state", {}).get(_RECOGNISED, lambda user: True)(user))


class UserConnections:
    """Connections counted by the user of their newest request, with a limit of ``most`` per user."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._users: dict[object, str] = {}
        self._counts = Counter[str]()

    def admit(self, connection: object, user: str) -> bool:
        """Count a connection for a user; return False if the user has reached the limit."""
        if self._users.get(connection) == user:
            return True
        if self._counts[user] >= self._most:
            return False
        self.remove(connection)
        self._users[connection] = user
        self._counts[user] += 1
        return True

    def remove(self, connection: object) -> None:
        """Remove a connection that has ended."""
        if (user := self._users.pop(connection, None)) is not None:
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user]


class _WarningsOnce(logging.Filter):
    """Filter that passes each warning once: uvicorn logs one for each invalid request, which anybody may send."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True for a record that is logged."""
        if record.levelno != logging.WARNING:
            return True
        message = record.getMessage()
        is_new = message not in self._known and len(self._known) < MOST_WARNINGS
        if is_new:
            self._known.add(message)
        return is_new


class IdleConnectionCloser:
    """Closer of idle uvicorn connections, on which no new request has started within ``KEEP_ALIVE_S``."""

    def __init__(self) -> None:
        self._waiting: dict[
            Any, tuple[Any, float]
        ] = {}  # connection -> its last request, and the time it was first seen

    def close_idle(self, connections: Iterable[Any], now: float) -> None:
        """Close the idle ones of these connections; a request in progress is bounded by its own deadline.

        Args:
            connections: the server's open connections.
            now: monotonic time, in seconds.
        """
        before, self._waiting = self._waiting, {}
        for one in set(connections):
            if one.cycle is not None and not one.cycle.response_complete:
                continue
            last, since = before.get(one, (one.cycle, now))
            if last is not one.cycle:  # another request has been served
                since = now
            if now - since >= KEEP_ALIVE_S:
                one.transport.close()
            else:
                self._waiting[one] = (one.cycle, since)


@contextlib.asynccontextmanager
async def accepting(
    server: Any,
    listener: socket.socket,
    tls: ssl.SSLContext | None = None,
    refuse: Refuse = lambda kind, text: None,
    at_once: int = AT_ONCE,
    pause_s: Callable[[], float] | None = None,
) -> AsyncIterator[Acceptor]:
    """Accept connections of a listening socket for a ``uvicorn.Server``, which is served with ``sockets=[]``.

    Accepting ends with the block, or when the server starts its shutdown; the listener is closed then.

    Args:
        server: a ``uvicorn.Server`` whose configuration is loaded.
        listener: a bound socket, which may be shared with other processes.
        tls: context that encrypts the connections; None for plain HTTP.
        refuse: called with the kind and the text of each refusal.
        at_once: number of connections accepted before other tasks of the event loop run.
        pause_s: returns the seconds to wait before further connections are accepted; None to not wait.

    Yields:
        The acceptor of the connections.
    """
    kind = _watched(server.config.http_protocol_class)
    users = UserConnections(max(FEWEST_OF_A_USER, ConnectionLimits.of_this_process().descriptors // 4))

    def make(pending: Pending) -> asyncio.BaseProtocol:
        def recognised(user: str) -> bool:
            if user and not users.admit(pending, user):
                return False
            pending.release()
            return True

        def lost() -> None:
            pending.release()
            users.remove(pending)

        state = {**server.lifespan.state, _RECOGNISED: recognised}
        protocol: Any = kind(lost, config=server.config, server_state=server.server_state, app_state=state)
        pending.is_served = lambda: protocol.cycle is not None
        return cast(asyncio.BaseProtocol, protocol)

    acceptor = Acceptor(make, tls, refuse, at_once=at_once, pause_s=pause_s)
    shut_down = server.shutdown

    async def shutdown(sockets: list[socket.socket] | None = None) -> None:
        acceptor.close()
        await shut_down(sockets)

    server.shutdown = shutdown
    watching = asyncio.create_task(_watch_heads(server))
    once = _WarningsOnce()
    _uvicorn_log.addFilter(once)
    acceptor.adopt(listener)
    try:
        yield acceptor
    finally:
        watching.cancel()
        acceptor.close()
        _uvicorn_log.removeFilter(once)


async def _watch_heads(server: Any) -> None:
    """Check the server's connections every ``LOOK_S`` seconds."""
    heads = IdleConnectionCloser()
    while True:
        await asyncio.sleep(LOOK_S)
        heads.close_idle(server.server_state.connections, time.monotonic())


def _watched(base: Any) -> Any:
    """Return a subclass of uvicorn's protocol class with bounded heads, whose connections are released at their end."""
    parses_itself = hasattr(base, "on_message_begin")

    class WatchedConnection(base):  # type: ignore[misc]
        """Protocol that releases its connection at its end, and aborts one whose head exceeds ``MOST_HEAD_BYTES``.

        h11 limits heads itself; ``httptools`` does not.
        """

        def __init__(self, lost: Callable[[], None], **settings: Any) -> None:
            super().__init__(**settings)
            self._lost, self._head_bytes = lost, 0

        def on_message_begin(self) -> None:
            self._head_bytes = 0
            super().on_message_begin()

        def on_body(self, body: bytes) -> None:
            self._head_bytes = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._head_bytes = 0
            super().on_message_complete()

        def data_received(self, data: bytes) -> None:
            self._head_bytes += len(data) if parses_itself else 0
            super().data_received(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._lost()
            super().connection_lost(exc)

    return WatchedConnection
