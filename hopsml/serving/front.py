"""Front of a serving on a cluster: its only address, which forwards each request to a replica over reused connections.

A replica is available once it follows a route, and lost from a broken connection until its next heartbeat. A request
whose replica is lost is sent once more. Predictions have no side effects, so one may be computed twice. Answers of
replicas are passed on unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from hopsml.cluster.shared.acceptor import log_once_per_kind
from hopsml.cluster.shared.http_connections import accepting, admit_authenticated
from hopsml.core.newer_python import asyncio_timeout_at, asyncio_wait_for
from hopsml.serving.balancer import Balancer, may_send_again
from hopsml.serving.definitions import ServingLimits
from hopsml.serving.messages import Command, SupervisorAnswer, decode_command
from hopsml.serving.receiving import Receive, RequestRefused, Send, check_token, http_server, receive_body, start_server

CONNECT_TIMEOUT_S = 5.0
KEPT_S = 30.0  # less than the keep-alive time of replicas

Headers = list[tuple[bytes, bytes]]


class ReplicaUnreachable(ConnectionError):
    """Error for a replica to which no connection could be opened, so that it has not received the request."""


class ReplicaLost(ConnectionError):
    """Error for a replica that disconnected while it had the request."""


@dataclass(frozen=True)
class ReplicaAnswer:
    """HTTP answer of a replica."""

    status: int
    headers: Headers
    body: bytes


class _Connection:
    """Open connection with the time of its last use."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.used_s = time.monotonic()


class ReplicaConnections:
    """Pool of connections to all replicas, by replica number."""

    def __init__(self) -> None:
        self._idle: dict[int, list[_Connection]] = {}
        self._all: dict[int, set[_Connection]] = {}

    def close_connections(self, replica: int) -> None:
        """Close all connections to a replica that has ended; waiting requests fail with ReplicaLost."""
        self._idle.pop(replica, None)
        for one in self._all.pop(replica, ()):
            one.writer.transport.abort()

    async def send_request(
        self, replica: int, address: tuple[str, int], method: bytes, target: bytes, headers: Headers, body: bytes
    ) -> ReplicaAnswer:
        """Send a request to a replica, and return its answer.

        Args:
            replica: Number of the replica.
            address: Host and port of the replica.
            method: HTTP method.
            target: Path and query.
            headers: Headers, without the content length.
            body: Body of the request.

        Raises:
            NotReached: No connection could be opened.
            ReplicaLost: The connection failed after that.
        """
        connection = await self._connected(replica, address)
        try:
            connection.writer.write(_head(method, target, [*headers, (b"content-length", b"%d" % len(body))]) + body)
            answer, keeps = await _answer(connection.reader, method)
        except (OSError, asyncio.IncompleteReadError, ValueError, IndexError) as error:
            self._drop(replica, connection)
            raise ReplicaLost(f"the connection to replica {replica} broke: {type(error).__name__}: {error}") from error
        except BaseException:  # the caller was cancelled, and an answer may still arrive
            self._drop(replica, connection)
            raise
        connection.used_s = time.monotonic()
        if keeps and connection in self._all.get(replica, ()):
            self._idle.setdefault(replica, []).append(connection)
        else:
            self._drop(replica, connection)
        return answer

    async def _connected(self, replica: int, address: tuple[str, int]) -> _Connection:
        """Return an idle connection, or open one."""
        idle = self._idle.get(replica, [])
        while idle:
            kept = idle.pop()
            if time.monotonic() - kept.used_s < KEPT_S and not kept.reader.at_eof():
                return kept
            self._drop(replica, kept)
        try:
            reader, writer = await asyncio_wait_for(asyncio.open_connection(*address), CONNECT_TIMEOUT_S)
        except OSError as error:  # includes TimeoutError
            raise ReplicaUnreachable(
                f"replica {replica} at {address[0]}:{address[1]} cannot be reached: {error}"
            ) from error
        connection = _Connection(reader, writer)
        self._all.setdefault(replica, set()).add(connection)
        return connection

    def _drop(self, replica: int, connection: _Connection) -> None:
        """Close a connection and remove it from the pool."""
        self._all.get(replica, set()).discard(connection)
        connection.writer.transport.abort()


def _head(method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the head of an HTTP request."""
    lines = [method + b" " + target + b" HTTP/1.1", *(name + b": " + value for name, value in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, method: bytes) -> tuple[ReplicaAnswer, bool]:
    """Read an HTTP answer; also return True if the connection can be reused.

    Replicas send the length of each body.
    """
    while True:
        first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        status = int(first.split(b" ", 2)[1])
        if status != 100:
            break
    pairs = [line.partition(b":")[::2] for line in lines]
    headers = [(name.strip().lower(), value.strip()) for name, value in pairs]
    known = dict(headers)
    length = 0 if method == b"HEAD" else int(known.get(b"content-length", b"0"))
    body = await reader.readexactly(length)
    return ReplicaAnswer(status, headers, body), known.get(b"connection", b"") != b"close"


log = logging.getLogger("hopsml.serving")

CONTROL = "/hopsml/control"  # path of commands to the supervisor; on one machine they go to its socket
_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", b"content-length"
}  # fmt: skip
_REPLICAS_OWN = _HOP_BY_HOP | {b"date", b"server"}
_OPEN = ("/v2/health/live", "/v2/health/ready")
_JSON = [(b"content-type", b"application/json")]
DRAIN_S = 30.0

Do = Callable[[Command], Awaitable[SupervisorAnswer]]


class Front:
    """ASGI application that forwards requests to replicas."""

    def __init__(self, name: str, limits: ServingLimits, token: str, control: str, do: Do) -> None:
        """Initialize the front without replicas.

        Args:
            name: Name of the serving.
            limits: Limits of requests.
            token: Token required for requests.
            control: Token required for commands.
            do: Function that carries out a command.
        """
        self._name, self._limits, self._token, self._control, self._do = name, limits, token, control, do
        self._balancer, self._connections = Balancer(), ReplicaConnections()
        self._changed = asyncio.Event()

    def add_replica(self, replica: int, address: tuple[str, int]) -> None:
        """Add a replica that answers at this address."""
        self._balancer.add_replica(replica, address)
        self._changed.set()

    def remove_replica(self, replica: int) -> None:
        """Remove a replica that has ended; its requests are sent to other replicas."""
        self._balancer.remove_replica(replica)
        self._connections.close_connections(replica)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one HTTP request; other ASGI events are ignored."""
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive)
        except RequestRefused as refused:
            headers = [(name.encode(), value.encode()) for name, value in refused.headers.items()]
            answer = ReplicaAnswer(refused.status, [*_JSON, *headers], msgspec.json.encode({"error": refused.text}))
        except Exception as error:
            log.exception("a request failed")
            text = f"{type(error).__name__}: {error}"[:1000]
            answer = ReplicaAnswer(500, _JSON, msgspec.json.encode({"error": text}))
        length = [] if scope["method"] == "HEAD" else [(b"content-length", b"%d" % len(answer.body))]
        headers = [*(one for one in answer.headers if one[0] not in _REPLICAS_OWN), *length]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive) -> ReplicaAnswer:
        """Authorize a request and forward it, or carry out a command."""
        headers, path = dict(scope["headers"]), scope["path"].rstrip("/")
        if path in _OPEN:
            ready = path == _OPEN[0] or self._balancer.available_count > 0
            key = path.rpartition("/")[2]
            return ReplicaAnswer(200 if ready else 503, _JSON, msgspec.json.encode({key: ready}))
        check_token(self._name, self._control if path == CONTROL else self._token, headers)
        admit_authenticated(scope)
        until = asyncio.get_running_loop().time() + self._limits.deadline_s
        body = await receive_body(self._limits, headers, receive, until)
        if path == CONTROL:
            return await self._commanded(body)
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        passed = [one for one in scope["headers"] if one[0] not in _HOP_BY_HOP]
        return await self._sent(scope["method"].encode(), target, passed, body, until)

    async def _commanded(self, body: bytes) -> ReplicaAnswer:
        """Carry out the command in a body."""
        try:
            command = decode_command(body)
        except msgspec.MsgspecError as error:
            raise RequestRefused(
                400, f"the command cannot be read: {error}; use the same version of hopsml as the server"
            ) from error
        return ReplicaAnswer(200, _JSON, msgspec.json.encode(await self._do(command)))

    async def _sent(self, method: bytes, target: bytes, headers: Headers, body: bytes, until: float) -> ReplicaAnswer:
        """Send a request to a replica, and once more to another one if that is lost; wait while there is none."""
        tried: set[int] = set()
        losses = 0
        while True:
            replica, address = await self._chosen(tried, until)
            tried.add(replica)
            self._balancer.begin_request(replica)
            try:
                return await self._connections.send_request(replica, address, method, target, headers, body)
            except ReplicaUnreachable:
                self._balancer.remove_replica(replica)
            except ReplicaLost as error:
                self._balancer.remove_replica(replica)
                losses += 1
                if not may_send_again(losses):
                    raise RequestRefused(
                        503,
                        f"{losses} replicas failed while they computed the request, the last one with: {error}; "
                        "try again",
                        {"retry-after": "1"},
                    ) from error
            finally:
                self._balancer.end_request(replica)

    async def _chosen(self, tried: set[int], until: float) -> tuple[int, tuple[str, int]]:
        """Return an available replica; wait until the deadline if there is none."""
        while (chosen := self._balancer.choose_replica(tried)) is None:
            self._changed.clear()
            try:
                async with asyncio_timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                raise RequestRefused(
                    503,
                    f"no replica has answered for {self._limits.deadline_s:g} s; check `hopsml serve show "
                    f"{self._name}`",
                    {"retry-after": "5"},
                ) from None
        return chosen


@asynccontextmanager
async def serve_front(front: Front, listener: socket.socket) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Answer requests at this socket; yields a function that stops it after all received requests are answered."""
    server = http_server(front, timeout_graceful_shutdown=int(DRAIN_S))
    server.capture_signals = contextlib.nullcontext  # the driver handles signals
    serving = await start_server(server)

    async def end() -> None:
        server.should_exit = True
        await asyncio.wait([serving])

    async with accepting(server, listener, refuse=log_once_per_kind(log)):
        try:
            yield end
        finally:
            await end()
