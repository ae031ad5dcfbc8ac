"""Interceptor between two members of a group: records all traffic, and may corrupt one record of one connection."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from tests.helpers.collective.together import listeners

CONTROL, DATA = 0, 1
HELLO, PROOF = 64, 32  # bytes of the handshake sent by the connecting side
SIZE = struct.Struct("<I")  # of the ciphertext, before it
AROUND = SIZE.size + 16
Harm = Callable[[list[bytes]], list[bytes] | None]  # two records -> what passes instead; None: the connection is cut


def flip(records: list[bytes]) -> list[bytes]:
    """One bit of the first."""
    changed = bytearray(records[0])
    changed[len(changed) // 2] ^= 1
    return [bytes(changed), *records[1:]]


def flip_size(records: list[bytes]) -> list[bytes]:
    """Replace the size in the record's head by an invalid one."""
    return [b"\xff\xff\xff\xff" + records[0][4:], *records[1:]]


def repeat(records: list[bytes]) -> list[bytes]:
    """The first, twice."""
    return [records[0], *records]


def leave_out(records: list[bytes]) -> list[bytes]:
    """The first."""
    return records[1:]


def swap(records: list[bytes]) -> list[bytes]:
    """The two."""
    return records[::-1]


def invent(records: list[bytes]) -> list[bytes]:
    """One before them."""
    return [SIZE.pack(500) + os.urandom(516), *records]


def cut(records: list[bytes]) -> None:
    """In the midst of the first."""


class Tap:
    """Between the member whose address this is of and all that connect to it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.seen = bytearray()
        self.harmed = threading.Event()
        self._target, self._listener = target, listeners(1)[0]
        self._harm: tuple[int, int, int, Harm] | None = None
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """Address that members connect to instead."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def spoil(self, rank: int, channel: int, harm: Harm, record: int = 0) -> None:
        """Of what the member ``rank`` sends on this channel the record of this number, and the next one."""
        self._harm = (rank, channel, record, harm)

    def close(self) -> None:
        """End all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one = self._listener.accept()[0]
                other = socket.create_connection(self._target)
                self._sockets += [one, other]
                for work in (self._carry_there, self._carry_back):
                    thread = threading.Thread(target=work, args=(one, other), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _carry_back(self, one: socket.socket, other: socket.socket) -> None:
        self._carry(other, one)

    def _carry_there(self, one: socket.socket, other: socket.socket) -> None:
        try:
            hello = exactly(one, HELLO)
            rank, channel = struct.unpack_from("<i", hello, 16)[0], struct.unpack_from("<H", hello, 28)[0]
            other.sendall(hello)
            other.sendall(exactly(one, PROOF))
            if self._harm is not None and self._harm[:2] == (rank, channel):
                self._carry_with_harm(one, other, *self._harm[2:])
        except OSError:
            return
        self._carry(one, other)

    def _carry_with_harm(self, one: socket.socket, other: socket.socket, record: int, harm: Harm) -> None:
        for _ in range(record):
            other.sendall(next_record(one))
        first = next_record(one)
        # Of notices there is one at a time.
        rest = [] if harm in (flip, flip_size, cut) else [next_record(one)]
        self.harmed.set()
        passed = harm([first, *rest])
        if passed is None:
            other.sendall(first[: len(first) // 2])
            other.shutdown(socket.SHUT_RDWR)
            one.shutdown(socket.SHUT_RDWR)
            return
        for each in passed:
            other.sendall(each)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either side is closed
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def tap(target: tuple[str, int]) -> Iterator[Tap]:
    """Yield a tap that ends with the block."""
    made = Tap(target)
    try:
        yield made
    finally:
        made.close()


def exactly(one: socket.socket, size: int) -> bytes:
    """So many bytes; ConnectionError at the end of the connection."""
    got = b""
    while len(got) < size:
        more = one.recv(size - len(got))
        if not more:
            raise ConnectionError("the connection ended")
        got += more
    return got


def next_record(one: socket.socket) -> bytes:
    """The next record, as it is on the wire."""
    head = exactly(one, SIZE.size)
    return head + exactly(one, SIZE.unpack(head)[0] + AROUND - SIZE.size)
