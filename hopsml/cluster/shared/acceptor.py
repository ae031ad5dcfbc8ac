"""Accepts a server's connections within limits, so that those without the token take neither its descriptors nor its time.

A connection is pending until its peer has shown the token. There is a limit of pending ones, and a share of it for one
address; where there are too many, accepting pauses (the kernel lets the others wait), and the one that has been there for
longest is cut off. Where the other side has to speak first, one that says nothing is not even accepted for a while. Some
descriptors of the process are never given away: files must be written when a run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from hopsml import settings
from hopsml.cluster.shared import open_files

SHOW_S = 10.0  # to show the token, from the moment of being accepted: TLS and all
MOST_PENDING = 2048  # more than a thousand agents of one host, which all join at once and may be slow
REST_S = 0.1  # between two looks while accepting rests
PATIENCE = 30  # looks; between two of them everybody who has said something was heard, however busy this process is
AT_ONCE = 32  # connections that are accepted before anybody else has a turn
BACKLOG = 4096
Refuse = Callable[[str, str], None]  # kind, what happened


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections of one server may be pending, in all and of one address; the highest descriptor for one."""

    pending: int
    of_one_peer: int
    descriptors: int

    @classmethod
    def of_this_process(cls) -> ConnectionLimits:
        """By what this process may open: a quarter for pending connections, an eighth kept free for files."""
        limit = open_files.limit()
        pending = max(8, min(MOST_PENDING, limit // 4))
        return cls(pending, pending * 3 // 4, limit - open_files.kept(limit))


@dataclass(eq=False)
class Pending:
    """A connection whose peer has not shown the token; ``release`` is to be called when it has, or is gone."""

    connection: socket.socket
    peer: str
    release: Callable[[], None]
    deadline: asyncio.TimerHandle | None = None
    looks: int = 0  # for which there have been too many, with this one among them
    was_cut: bool = False
    is_released: bool = False
    is_served: Callable[[], bool] = lambda: (
        False
    )  # True if its requests are answered without a token: it is closed later than others

    def cut(self) -> None:
        """End it, at whatever stage it is: the protocol on it sees an end of file."""
        self.was_cut = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def to_cut(pending: Collection[Pending], limits: ConnectionLimits) -> Pending | None:
    """The connection to end so that others can come: of the address with most of them the oldest that has had its time.

    Where there is room, only of an address that has more than its share; None where nobody has to go. ``pending``: the
    oldest first. Pure.
    """
    if len(pending) < limits.pending and len(pending) <= limits.of_one_peer:
        return None  # wherever they come from, so that a group that joins is not counted anew for each of its agents
    there = [each for each in pending if not each.was_cut]
    peers = Counter(each.peer for each in there)
    if not peers:
        return None
    peer, count = max(peers.items(), key=lambda item: item[1])
    if count <= limits.of_one_peer and len(there) < limits.pending:
        return None
    return next((each for each in there if each.peer == peer and each.looks >= PATIENCE), None)


class Acceptor:
    """Listens on one address; ``make(pending)`` gives the protocol of a new connection."""

    def __init__(
        self,
        make: Callable[[Pending], asyncio.BaseProtocol] = lambda pending: asyncio.Protocol(),
        tls: ssl.SSLContext | None = None,
        refuse: Refuse = lambda kind, text: None,
        *,
        at_once: int = AT_ONCE,
        pause_s: Callable[[], float] | None = None,
        in_thread: Callable[[Pending], None] | None = None,
    ) -> None:
        """Accept nothing yet.

        Args:
            make: returns the protocol of a connection.
            tls: context that encrypts the connections; None for plain TCP.
            refuse: called with the kind and the text of each refusal.
            at_once: number of connections accepted before a pause.
            pause_s: returns the length of that pause, in seconds; None for no pause.
            in_thread: replaces ``make``: serves a connection by blocking calls, in a separate thread, and closes it.
        """
        self._make, self._tls, self._refuse = make, tls, refuse
        self._at_once, self._pause_s, self._in_thread = at_once, pause_s, in_thread
        self._loop = asyncio.get_running_loop()
        self._pending: dict[Pending, None] = {}  # in the order of coming
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._is_open = False
        self.limits = ConnectionLimits.of_this_process()
        self.sockets: tuple[socket.socket, ...] = ()

    async def open(self, host: str, port_range: tuple[int, int] | None = None) -> int:
        """Listen on a free port, of the range where one is given; returns it. Raises OSError."""
        found = await self._loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        first, last = port_range or (0, 0)
        for port in random.sample(range(first, last + 1), last - first + 1):
            try:
                listener = self._listening(found[0], port)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        else:
            raise OSError(errno.EADDRINUSE, settings.no_free_port(first, last, host))
        self._begin(listener)
        return int(listener.getsockname()[1])

    def adopt(self, listener: socket.socket) -> None:
        """Accept connections of a bound socket whose clients send first, and take ownership of the socket."""
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(SHOW_S))
        listener.listen(BACKLOG)
        self._begin(listener)

    def _begin(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self.sockets, self._is_open = (listener,), True
        self._loop.add_reader(listener.fileno(), self._accept)

    def _listening(self, found: tuple[Any, ...], port: int) -> socket.socket:
        family, kind, protocol, _, address = found
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._tls is not None:  # whose clients speak first
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(SHOW_S))
            listener.bind((address[0], port, *address[2:]))
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Accept nobody any more, and end the pending connections. The others stay."""
        if not self._is_open:
            return
        self._is_open = False
        if self._resting is not None:
            self._resting.cancel()
        for listener in self.sockets:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        for pending in list(self._pending):
            pending.cut()

    async def wait_closed(self) -> None:
        """Wait until no connection is in its TLS handshake any more."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ------------------------------------------------------------------------------------------ coming in

    def _accept(self) -> None:
        for _ in range(self._at_once):
            if not self._has_room():
                self._rest()
                return
            try:
                connection, address = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # of the whole machine, or taken by another thread meanwhile
                self._refuse("descriptors", f"no connection can be accepted: {error.strerror}")
                self._rest()
                return
            self._let_try(connection, str(address[0]))
        if self._pause_s is not None:
            self._rest(self._pause_s(), is_crowded=False)

    def _has_room(self) -> bool:
        """Whether one more may come; cuts off who has been here for too long where not, or where a peer has too many."""
        enough = _lowest_free() < self.limits.descriptors
        if not enough:
            self._refuse(
                "descriptors",
                f"all but {self.limits.descriptors} descriptors of this process are open, and the rest is kept for files: "
                "connections wait; raise the limit (ulimit -n)",
            )
        limits = self.limits if enough else ConnectionLimits(0, 0, 0)
        while (late := to_cut(self._pending, limits)) is not None:
            self._refuse("crowd", f"{late.peer} keeps connections open without the token of this application")
            late.cut()
        return enough and len(self._pending) < self.limits.pending

    def _rest(self, seconds: float = REST_S, is_crowded: bool = True) -> None:
        """Accept nobody for a moment: the loop would be told of them again and again."""
        if self._resting is None:
            self._loop.remove_reader(self.sockets[0].fileno())
            self._resting = self._loop.call_later(seconds, self._go_on, is_crowded)

    def _go_on(self, was_crowded: bool) -> None:
        self._resting = None
        for pending in self._pending if was_crowded else ():
            pending.looks += 1
        if self._is_open:
            self._loop.add_reader(self.sockets[0].fileno(), self._accept)
            self._accept()

    def _let_try(self, connection: socket.socket, peer: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending = Pending(connection, peer, lambda: self._release(pending))
        pending.deadline = self._loop.call_later(SHOW_S, self._too_late, pending)
        self._pending[pending] = None
        if self._in_thread is not None:
            pending.release = lambda: self._release_later(pending)
            connection.setblocking(True)
            threading.Thread(target=self._in_thread, args=(pending,), name="hopsml-connection", daemon=True).start()
            return
        task = self._loop.create_task(self._greet(pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _release_later(self, pending: Pending) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._release, pending)

    def _too_late(self, pending: Pending) -> None:
        if pending.is_served():
            return
        self._refuse("silence", f"{pending.peer} did not show the token of this application within {SHOW_S:g} s")
        pending.cut()

    async def _greet(self, pending: Pending) -> None:
        came_in = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make(pending),
                pending.connection,
                ssl=self._tls,
                ssl_handshake_timeout=SHOW_S if self._tls is not None else None,
            )
            came_in = True
        except OSError:  # it does not speak TLS, or nothing at all
            pass
        finally:
            if not came_in:
                pending.connection.close()
                pending.release()

    def _release(self, pending: Pending) -> None:
        pending.is_released = True
        if pending.deadline is not None:
            pending.deadline.cancel()
        self._pending.pop(pending, None)


def reporting(context: ssl.SSLContext, refuse: Refuse) -> ssl.SSLContext:
    """The same context; every handshake that fails is told to ``refuse``, because asyncio passes over it in silence."""

    class Handshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                refuse("tls", f"a connection that does not speak TLS as this server does: {error}")
                raise

    context.sslobject_class = Handshake
    return context


def with_streams(
    serve: Callable[[Pending, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], limit: int = 1 << 16
) -> Callable[[Pending], asyncio.BaseProtocol]:
    """Return the ``make`` of an acceptor for a coroutine that reads and writes.

    Args:
        serve: handles one connection; it releases the pending one as soon as its peer has shown the token.
        limit: bytes that are read ahead, as for ``asyncio.start_server``.
    """

    async def serve_quietly(pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(pending, reader, writer)
        except asyncio.CancelledError:  # the loop ends: asyncio would show a traceback for each connection
            pass
        finally:
            if not pending.is_released:  # a stranger: closing TLS would wait half a minute for its answer
                writer.transport.abort()
                pending.release()

    def make(pending: Pending) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit)
        return asyncio.StreamReaderProtocol(reader, lambda reader, writer: serve_quietly(pending, reader, writer))

    return make


def logged_once(log: logging.Logger) -> Refuse:
    """Return a function that logs the first refusal of each kind: an attack would cause thousands."""
    kinds: set[str] = set()

    def refuse(kind: str, text: str) -> None:
        if kind not in kinds:
            kinds.add(kind)
            log.warning("refused: %s (further ones of this kind are not logged)", text)

    return refuse


def _lowest_free() -> int:
    """The descriptor that the next connection would have: the kernel takes the lowest."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 1 << 30
    os.close(descriptor)
    return descriptor
