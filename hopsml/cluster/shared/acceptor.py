"""Connection acceptor with limits, so that unauthenticated peers exhaust neither a server's descriptors nor its time.

A connection is pending until its peer has sent the token. The number of pending connections is limited, in total and
per address; beyond the limit, accepting pauses (the kernel queues further connections), and the oldest one is closed.
Where the client has to send first, a silent connection is not accepted for a while. Some of the process's descriptors
are never used for connections: files must be written when a run ends; the requirements on the limit of open files
(``ulimit -n``) are checked before operations fail.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import errno
import logging
import os
import random
import resource
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from hopsml.core import settings

LEAST = 64  # for an agent, or a driver with few agents: connections, pipes, logs, reserved sockets
_OF_DRIVER = 24  # for a driver without agents
_KEPT = 24, 256  # bounds of the part, an eighth of the limit, that is reserved for files


def open_file_limit() -> int:
    """Return the number of files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def reserved_for_files(open_files: int) -> int:
    """Return the number of descriptors that are reserved for files, out of a limit of ``open_files``."""
    least, most = _KEPT
    return max(least, min(most, open_files // 8))


def open_files_needed(agents: int) -> int:
    """Return the smallest limit with which a driver can have a connection to each of its agents."""
    least = max(LEAST, _OF_DRIVER + agents)
    return next(
        number
        for number in range(least, 2 * least + sum(_KEPT))
        if number - reserved_for_files(number) >= _OF_DRIVER + agents
    )


def open_files_problem(agents: int = 0) -> str:
    """Return the error text, with a remedy, if this process's limit is too low, else "".

    Args:
        agents: number of agents if this process is a driver, else 0.
    """
    found, least = open_file_limit(), open_files_needed(agents)
    if found >= least:
        return ""
    whose = f"a driver of {agents} workers" if agents else "hopsml"
    return (
        f"this process can open {found} files (ulimit -n), but {whose} needs {least}; raise the limit (ulimit -n, "
        "LimitNOFILE)"
    )


SHOW_S = 10.0  # seconds to send the token, from the moment of acceptance, including TLS
MOST_PENDING = 2048  # enough for a thousand agents of one host that join at once and may be slow
REST_S = 0.1  # seconds between two checks while accepting is paused
# checks that a pending connection survives; between two of them all received data is handled, whatever the load
PATIENCE = 30
AT_ONCE = 32  # connections accepted before other tasks of the event loop run
BACKLOG = 4096
_TLS_BUFFER = 32 << 10  # bytes


class _SmallTls(asyncio.sslproto.SSLProtocol):
    """TLS over a transport; asyncio's own buffer of 256 KiB would give peers without the token half a gigabyte."""

    max_size = _TLS_BUFFER


Refuse = Callable[[str, str], None]  # called with the kind of a refusal and its description


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one server: pending connections in total and per address, and a connection's highest descriptor."""

    pending: int
    of_one_peer: int
    descriptors: int

    @classmethod
    def of_this_process(cls) -> ConnectionLimits:
        """Return limits derived from this process's file limit.

        A quarter is for pending connections, an eighth for files.
        """
        limit = open_file_limit()
        pending = max(8, min(MOST_PENDING, limit // 4))
        return cls(pending, pending * 3 // 4, limit - reserved_for_files(limit))


@dataclass(eq=False)
class Pending:
    """Connection whose peer has not sent the token.

    Call ``release`` when it has, or when the connection has ended.
    """

    connection: socket.socket
    peer: str
    release: Callable[[], None]
    deadline: asyncio.TimerHandle | None = None
    looks: int = 0  # checks at which there were too many connections, this one among them
    was_cut: bool = False
    is_released: bool = False
    is_served: Callable[[], bool] = lambda: (
        False
    )  # True if its requests are answered without a token: it is closed later than others

    def cut(self) -> None:
        """Close the connection at whatever stage it is: the protocol on it receives an end of file."""
        self.was_cut = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def pending_to_close(pending: Collection[Pending], limits: ConnectionLimits) -> Pending | None:
    """Return the pending connection to close so that others can connect; None if none has to be closed.

    It is the oldest connection of the address with most of them, provided it has survived ``PATIENCE`` checks. While
    there is room in total, only an address that exceeds its share is considered. Pure.

    Args:
        pending: pending connections, the oldest first.
        limits: limits of the server.
    """
    if len(pending) < limits.pending and len(pending) <= limits.of_one_peer:
        return None  # whatever their addresses: a group that joins is then not counted again for each of its agents
    there = [each for each in pending if not each.was_cut]
    peers = Counter(each.peer for each in there)
    if not peers:
        return None
    peer, count = max(peers.items(), key=lambda item: item[1])
    if count <= limits.of_one_peer and len(there) < limits.pending:
        return None
    return next((each for each in there if each.peer == peer and each.looks >= PATIENCE), None)


class Acceptor:
    """Listener on one address that accepts connections within limits."""

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
        """Create the acceptor, which accepts nothing yet.

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
        self._pending: dict[Pending, None] = {}  # in order of acceptance
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._is_open = False
        self.limits = ConnectionLimits.of_this_process()
        self.sockets: tuple[socket.socket, ...] = ()

    async def open(self, host: str, port_range: tuple[int, int] | None = None) -> int:
        """Listen on a free port of ``host``, within the range if one is given, and return the port.

        Raises OSError.
        """
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
            raise OSError(errno.EADDRINUSE, settings.no_free_port_text(first, last, host))
        self._begin(listener)
        return int(listener.getsockname()[1])

    def adopt(self, listener: socket.socket) -> None:
        """Accept connections of a bound socket whose clients send first, and take ownership of the socket."""
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(SHOW_S))
        listener.listen(BACKLOG)
        self._begin(listener)

    def _begin(self, listener: socket.socket) -> None:
        """Start accepting connections of a listening socket."""
        listener.setblocking(False)
        self.sockets, self._is_open = (listener,), True
        self._loop.add_reader(listener.fileno(), self._accept)

    def _listening(self, found: tuple[Any, ...], port: int) -> socket.socket:
        """Return a socket that listens on this address."""
        family, kind, protocol, _, address = found
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._tls is not None:  # TLS clients send first
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(SHOW_S))
            listener.bind((address[0], port, *address[2:]))
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Stop accepting, and close the pending connections; authenticated ones remain open."""
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

    # ------------------------------------------------------------------------------------------ accepting

    def _accept(self) -> None:
        """Accept waiting connections, at most ``at_once``, within the limits."""
        for _ in range(self._at_once):
            if not self._has_room():
                self._rest()
                return
            try:
                connection, address = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # the machine's limit, or a descriptor that another thread has just taken
                self._refuse("descriptors", f"no connection can be accepted: {error.strerror}")
                self._rest()
                return
            self._let_try(connection, str(address[0]))
        if self._pause_s is not None:
            self._rest(self._pause_s(), is_crowded=False)

    def _has_room(self) -> bool:
        """Return True if another connection can be accepted; close old ones if not, or if an address has too many."""
        enough = _lowest_free() < self.limits.descriptors
        if not enough:
            self._refuse(
                "descriptors",
                f"all but {self.limits.descriptors} descriptors of this process are open, and the rest is reserved "
                "for files, so connections wait; raise the limit (ulimit -n)",
            )
        limits = self.limits if enough else ConnectionLimits(0, 0, 0)
        while (late := pending_to_close(self._pending, limits)) is not None:
            self._refuse("crowd", f"{late.peer} keeps connections open without the token of this application")
            late.cut()
        return enough and len(self._pending) < self.limits.pending

    def _rest(self, seconds: float = REST_S, is_crowded: bool = True) -> None:
        """Pause accepting: otherwise the event loop would report the waiting connections again and again."""
        if self._resting is None:
            self._loop.remove_reader(self.sockets[0].fileno())
            self._resting = self._loop.call_later(seconds, self._go_on, is_crowded)

    def _go_on(self, was_crowded: bool) -> None:
        """Resume accepting after a pause."""
        self._resting = None
        for pending in self._pending if was_crowded else ():
            pending.looks += 1
        if self._is_open:
            self._loop.add_reader(self.sockets[0].fileno(), self._accept)
            self._accept()

    def _let_try(self, connection: socket.socket, peer: str) -> None:
        """Serve an accepted connection until its peer has authenticated or ``SHOW_S`` seconds have passed."""
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
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._release, pending)

    def _too_late(self, pending: Pending) -> None:
        """Close a connection whose peer has not authenticated in time."""
        if pending.is_served():
            return
        self._refuse("silence", f"{pending.peer} did not send the token of this application within {SHOW_S:g} s")
        pending.cut()

    async def _greet(self, pending: Pending) -> None:
        """Do the TLS handshake and attach the protocol; close the connection if that fails."""
        came_in = False
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: self._make(pending), pending.connection)
            else:
                await self._greet_encrypted(pending, self._tls)
            came_in = True
        except OSError:  # the peer does not use TLS, or has sent nothing
            pass
        finally:
            if not came_in:
                pending.connection.close()
                pending.release()

    async def _greet_encrypted(self, pending: Pending, tls: ssl.SSLContext) -> None:
        """Do the TLS handshake with buffers of ``_TLS_BUFFER`` bytes. Raises OSError."""
        done: asyncio.Future[None] = self._loop.create_future()
        limit_s: Any = SHOW_S  # typeshed wants an int
        encrypted = _SmallTls(
            self._loop, self._make(pending), tls, done, server_side=True, ssl_handshake_timeout=limit_s
        )
        transport, _ = await self._loop.connect_accepted_socket(lambda: encrypted, pending.connection)
        try:
            await done
        except BaseException:
            transport.close()
            raise

    def _release(self, pending: Pending) -> None:
        """Remove a connection from the pending ones."""
        pending.is_released = True
        if pending.deadline is not None:
            pending.deadline.cancel()
        self._pending.pop(pending, None)


def report_failed_handshakes(context: ssl.SSLContext, refuse: Refuse) -> ssl.SSLContext:
    """Make a TLS context report failed handshakes, which asyncio ignores, to ``refuse``; return the context."""

    class Handshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                refuse("tls", f"a TLS connection to this server failed: {error}")
                raise

    context.sslobject_class = Handshake
    return context


def with_streams(
    serve: Callable[[Pending, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], limit: int = 1 << 16
) -> Callable[[Pending], asyncio.BaseProtocol]:
    """Return an acceptor's ``make`` argument that serves each connection by a coroutine with streams.

    Args:
        serve: Handles one connection; it releases the pending one as soon as its peer has presented the token.
        limit: Bytes that are read ahead, as for ``asyncio.start_server``.
    """

    async def serve_quietly(pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(pending, reader, writer)
        except asyncio.CancelledError:  # the event loop ends; asyncio would log a traceback for each connection
            pass
        finally:
            if not pending.is_released:  # a stranger: closing TLS would wait half a minute for its answer
                writer.transport.abort()
                pending.release()

    def make(pending: Pending) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit)
        return asyncio.StreamReaderProtocol(reader, lambda reader, writer: serve_quietly(pending, reader, writer))

    return make


def log_once_per_kind(log: logging.Logger) -> Refuse:
    """Return a function that logs the first refusal of each kind: an attack would cause thousands."""
    kinds: set[str] = set()

    def refuse(kind: str, text: str) -> None:
        if kind not in kinds:
            kinds.add(kind)
            log.warning("refused: %s (further refusals of this kind are not logged)", text)

    return refuse


def _lowest_free() -> int:
    """Return the descriptor that the next connection would get: the kernel assigns the lowest."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 1 << 30
    os.close(descriptor)
    return descriptor
