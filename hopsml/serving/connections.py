"""HTTP connections between the front of a serving and its replicas, reused and closed with their replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

CONNECT_TIMEOUT_S = 5.0
KEPT_S = 30.0  # less than the keep-alive time of replicas

Headers = list[tuple[bytes, bytes]]


class NotReached(ConnectionError):
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


class Connections:
    """Pool of connections to all replicas, by replica number."""

    def __init__(self) -> None:
        self._idle: dict[int, list[_Connection]] = {}
        self._all: dict[int, set[_Connection]] = {}

    def end(self, replica: int) -> None:
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
            raise ReplicaLost(f"replica {replica} went away: {type(error).__name__}: {error}") from error
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
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*address), CONNECT_TIMEOUT_S)
        except OSError as error:  # includes TimeoutError
            raise NotReached(f"replica {replica} at {address[0]}:{address[1]} is not there: {error}") from error
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
