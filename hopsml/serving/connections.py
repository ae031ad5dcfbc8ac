"""HTTP between the front of a serving and its replicas: connections that are kept, and end with their replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

CONNECT_TIMEOUT_S = 5.0
KEPT_S = 30.0  # less than a replica keeps a connection that nobody uses

Headers = list[tuple[bytes, bytes]]


class NotReached(ConnectionError):
    """The replica was not connected to: it has seen nothing of the request."""


class ReplicaLost(ConnectionError):
    """The replica went away with the request in it."""


@dataclass(frozen=True)
class ReplicaAnswer:
    """What a replica answered."""

    status: int
    headers: Headers
    body: bytes


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.used_s = time.monotonic()


class Connections:
    """Those to all replicas; each is known by its number."""

    def __init__(self) -> None:
        self._idle: dict[int, list[_Connection]] = {}
        self._all: dict[int, set[_Connection]] = {}

    def end(self, replica: int) -> None:
        """Close all of a replica that is gone: who waits for an answer hears of it."""
        self._idle.pop(replica, None)
        for one in self._all.pop(replica, ()):
            one.writer.transport.abort()

    async def ask(
        self, replica: int, address: tuple[str, int], method: bytes, target: bytes, headers: Headers, body: bytes
    ) -> ReplicaAnswer:
        """Its answer. Raises NotReached, ReplicaLost."""
        connection = await self._connected(replica, address)
        try:
            connection.writer.write(_head(method, target, [*headers, (b"content-length", b"%d" % len(body))]) + body)
            answer, keeps = await _answer(connection.reader, method)
        except (OSError, asyncio.IncompleteReadError, ValueError, IndexError) as error:
            self._drop(replica, connection)
            raise ReplicaLost(f"replica {replica} went away: {type(error).__name__}: {error}") from error
        except BaseException:  # whoever asked has gone: an answer may be on its way
            self._drop(replica, connection)
            raise
        connection.used_s = time.monotonic()
        if keeps and connection in self._all.get(replica, ()):
            self._idle.setdefault(replica, []).append(connection)
        else:
            self._drop(replica, connection)
        return answer

    async def _connected(self, replica: int, address: tuple[str, int]) -> _Connection:
        idle = self._idle.get(replica, [])
        while idle:
            kept = idle.pop()
            if time.monotonic() - kept.used_s < KEPT_S and not kept.reader.at_eof():
                return kept
            self._drop(replica, kept)
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*address), CONNECT_TIMEOUT_S)
        except OSError as error:  # TimeoutError is one
            raise NotReached(f"replica {replica} at {address[0]}:{address[1]} is not there: {error}") from error
        connection = _Connection(reader, writer)
        self._all.setdefault(replica, set()).add(connection)
        return connection

    def _drop(self, replica: int, connection: _Connection) -> None:
        self._all.get(replica, set()).discard(connection)
        connection.writer.transport.abort()


def _head(method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", *(name + b": " + value for name, value in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, method: bytes) -> tuple[ReplicaAnswer, bool]:
    """What comes, and whether the connection can be used again. A replica says how long each body is."""
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
