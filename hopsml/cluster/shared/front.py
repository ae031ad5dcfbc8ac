"""The front of a server: it accepts connections within limits, so that strangers take neither its descriptors nor its time.

A connection is a stranger's until it has shown the token. There is a limit of strangers, and a share of it for one address;
where they are too many, accepting rests (the kernel lets the others wait), and who has been there for longest is cut off.
Where the other side has to speak first, who says nothing is not even accepted for a while. Some descriptors of the process
are never given away: files must be written when a run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

SHOW_S = 10.0  # to show the token, from the moment of being accepted: TLS and all
MOST_STRANGERS = 2048  # more than a thousand agents of one host, which all join at once and may be slow
REST_S = 0.1  # between two looks while accepting rests
PATIENCE = 30  # looks; between two of them everybody who has said something was heard, however busy this process is
AT_ONCE = 32  # connections that are accepted before anybody else has a turn
BACKLOG = 4096
Refuse = Callable[[str, str], None]  # kind, what happened


@dataclass(frozen=True)
class Limits:
    """Of one server. ``descriptors``: the highest that a connection may have."""

    strangers: int
    of_one_peer: int
    descriptors: int

    @classmethod
    def of_this_process(cls) -> Limits:
        """By what the process may open: a quarter for strangers, an eighth for nobody."""
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if open_files == resource.RLIM_INFINITY:
            open_files = 1 << 20
        strangers = max(8, min(MOST_STRANGERS, open_files // 4))
        return cls(strangers, strangers * 3 // 4, open_files - max(24, min(256, open_files // 8)))


@dataclass(eq=False)
class Stranger:
    """A connection that has not shown the token; ``left`` is to be called when it has, or is gone."""

    connection: socket.socket
    peer: str
    left: Callable[[], None]
    deadline: asyncio.TimerHandle | None = None
    looks: int = 0  # for which there have been too many, with this one among them
    was_cut: bool = False

    def cut(self) -> None:
        """End it, at whatever stage it is: what is above it sees an end of file."""
        self.was_cut = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def to_cut(strangers: Collection[Stranger], limits: Limits) -> Stranger | None:
    """Who has to go, if anybody: of the address with most of them the oldest that has had its time. The oldest come first.

    Where there is room, only of an address that has more than its share. Pure.
    """
    if len(strangers) < limits.strangers and len(strangers) <= limits.of_one_peer:
        return None  # wherever they come from, so that a group that joins is not counted anew for each of its agents
    there = [each for each in strangers if not each.was_cut]
    peers = Counter(each.peer for each in there)
    if not peers:
        return None
    peer, count = max(peers.items(), key=lambda item: item[1])
    if count <= limits.of_one_peer and len(there) < limits.strangers:
        return None
    return next((each for each in there if each.peer == peer and each.looks >= PATIENCE), None)


class Front:
    """Listens on one address; ``make(stranger)`` gives the protocol of a new connection. To others an ``asyncio.Server``."""

    def __init__(
        self,
        make: Callable[[Stranger], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
        refuse: Refuse = lambda kind, text: None,
    ) -> None:
        self._make, self._tls, self._refuse = make, tls, refuse
        self._loop = asyncio.get_running_loop()
        self._strangers: dict[Stranger, None] = {}  # in the order of coming
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._is_open = False
        self.limits = Limits.of_this_process()
        self.sockets: tuple[socket.socket, ...] = ()

    async def open(self, host: str) -> int:
        """Listen on a free port; returns it. Raises OSError."""
        found = await self._loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._tls is not None:  # whose clients speak first
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(SHOW_S))
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        listener.setblocking(False)
        self.sockets, self._is_open = (listener,), True
        self._loop.add_reader(listener.fileno(), self._accept)
        return int(listener.getsockname()[1])

    def is_serving(self) -> bool:
        """Whether others may come."""
        return self._is_open

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """As of asyncio."""
        return self._loop

    def close(self) -> None:
        """Nobody may come any more; strangers go, the others stay."""
        if not self._is_open:
            return
        self._is_open = False
        if self._resting is not None:
            self._resting.cancel()
        for listener in self.sockets:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        for stranger in list(self._strangers):
            stranger.cut()

    async def wait_closed(self) -> None:
        """Until no stranger is left on the way in."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ------------------------------------------------------------------------------------------ coming in

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
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

    def _has_room(self) -> bool:
        """Whether one more may come; cuts off who has been here for too long where not, or where a peer has too many."""
        enough = _lowest_free() < self.limits.descriptors
        if not enough:
            self._refuse(
                "descriptors",
                f"all but {self.limits.descriptors} descriptors of this process are open, and the rest is kept for files: "
                "connections wait; raise the limit (ulimit -n)",
            )
        limits = self.limits if enough else Limits(0, 0, 0)
        while (late := to_cut(self._strangers, limits)) is not None:
            self._refuse("crowd", f"{late.peer} keeps connections open without the token of this application")
            late.cut()
        return enough and len(self._strangers) < self.limits.strangers

    def _rest(self) -> None:
        """Accept nobody for a moment: the loop would be told of them again and again."""
        if self._resting is None:
            self._loop.remove_reader(self.sockets[0].fileno())
            self._resting = self._loop.call_later(REST_S, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        for stranger in self._strangers:
            stranger.looks += 1
        if self._is_open:
            self._loop.add_reader(self.sockets[0].fileno(), self._accept)
            self._accept()

    def _let_try(self, connection: socket.socket, peer: str) -> None:
        connection.setblocking(False)
        stranger = Stranger(connection, peer, lambda: self._left(stranger))
        stranger.deadline = self._loop.call_later(SHOW_S, self._too_late, stranger)
        self._strangers[stranger] = None
        task = self._loop.create_task(self._greet(stranger))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _too_late(self, stranger: Stranger) -> None:
        self._refuse("silence", f"{stranger.peer} did not show the token of this application within {SHOW_S:g} s")
        stranger.cut()

    async def _greet(self, stranger: Stranger) -> None:
        came_in = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make(stranger),
                stranger.connection,
                ssl=self._tls,
                ssl_handshake_timeout=SHOW_S if self._tls is not None else None,
            )
            came_in = True
        except OSError:  # it does not speak TLS, or nothing at all
            pass
        finally:
            if not came_in:
                stranger.connection.close()
                stranger.left()

    def _left(self, stranger: Stranger) -> None:
        if stranger.deadline is not None:
            stranger.deadline.cancel()
        self._strangers.pop(stranger, None)


def with_streams(
    serve: Callable[[Stranger, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], limit: int = 1 << 16
) -> Callable[[Stranger], asyncio.BaseProtocol]:
    """``make`` of a front for a coroutine that reads and writes; ``limit`` as of ``asyncio.start_server``."""

    async def serve_quietly(stranger: Stranger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(stranger, reader, writer)
        except asyncio.CancelledError:  # the loop ends: asyncio would show a traceback for each connection
            pass

    def make(stranger: Stranger) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit)
        return asyncio.StreamReaderProtocol(reader, lambda reader, writer: serve_quietly(stranger, reader, writer))

    return make


def _lowest_free() -> int:
    """The descriptor that the next connection would have: the kernel takes the lowest."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 1 << 30
    os.close(descriptor)
    return descriptor
