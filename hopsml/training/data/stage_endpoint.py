"""Server of a stage that receives Arrow files from Spark's JVM: over TLS, with the token.

A task sends the token and the file name, each preceded by its length in two bytes; then pieces of the file, each
preceded by its length in four bytes; then a length of 0. The reply is an error message preceded by its length in two
bytes, empty if the file is stored. The client is ``native/spark_push``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import BinaryIO

from hopsml.cluster.shared.acceptor import Acceptor, ConnectionLimits, Pending, logged_once
from hopsml.core.callbacks import nonblocking_logger
from hopsml.training.data.stage_folder import StageFolder

log = nonblocking_logger("hopsml.data")

_HEAD_S = 15.0  # deadline for the TLS handshake, token and name
_MOST_PENDING = 256  # unauthenticated connections, each with a thread
_SILENCE_S = 60  # idle time after which TCP keepalive checks the other machine
_PIECE = 1 << 20
_MOST_HEAD = 1 << 10  # longest token or name, in bytes
_SHORT, _LONG = struct.Struct(">H"), struct.Struct(">i")


class StageEndpoint:
    """Server that receives files on its own threads until the process ends."""

    def __init__(self, listening: socket.socket, context: ssl.SSLContext, token: str, folder: StageFolder) -> None:
        self._listening, self._context, self._token, self._folder = listening, context, token.encode(), folder
        self._thread: threading.Thread | None = None
        self._end: Callable[[], object] = lambda: None
        self.port: int = listening.getsockname()[1]

    def serve(self) -> None:
        """Start to accept connections, on a thread."""
        begun: Future[Callable[[], object]] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._accept(begun)), name="hopsml-stage-door", daemon=True
        )
        thread.start()
        self._thread = thread
        self._end = begun.result()

    def close(self) -> None:
        """Stop accepting connections, and wait for the accepting thread."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._end()
        if self._thread is not None:
            self._thread.join()  # the acceptor closes the listening socket

    async def _accept(self, begun: Future[Callable[[], object]]) -> None:
        """Run the acceptor until ``close``; ``begun`` receives the function that ends it."""
        acceptor = Acceptor(refuse=logged_once(log), in_thread=self._let_in)
        limits = acceptor.limits
        most = min(limits.pending, _MOST_PENDING)
        acceptor.limits = ConnectionLimits(most, most * 3 // 4, limits.descriptors)
        acceptor.adopt(self._listening)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        begun.set_result(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        acceptor.close()

    def _let_in(self, pending: Pending) -> None:
        """Serve one connection, and release its slot of pending connections."""
        try:
            self._receive(pending)
        finally:
            pending.release()

    def _receive(self, pending: Pending) -> None:
        """Authenticate a connection, receive one file, and send the reply."""
        plain = pending.connection
        with contextlib.suppress(OSError, EOFError), plain:
            plain.settimeout(_HEAD_S)
            with self._context.wrap_socket(plain, server_side=True) as connection, connection.makefile("rb") as pieces:
                if not hmac.compare_digest(_text(pieces), self._token):
                    return
                pending.release()
                name = _text(pieces).decode(errors="replace")
                connection.settimeout(None)
                for option, value in ((socket.TCP_KEEPIDLE, _SILENCE_S), (socket.TCP_KEEPINTVL, _SILENCE_S // 4)):
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                problem = self._take(name, pieces).encode()[:_MOST_HEAD]
                connection.sendall(_SHORT.pack(len(problem)) + problem)

    def _take(self, name: str, pieces: BinaryIO) -> str:
        """Store a file; return an error message, empty if it is stored. Raises EOFError if the connection breaks."""
        coming = _Pieces(pieces)
        try:
            with self._folder.keeping(name) as file:
                for piece in coming:
                    while piece:
                        piece = piece[file.write(piece) :]
        except (OSError, ValueError) as error:
            for _ in coming:  # the client reads the reply only after it has sent everything
                pass
            return str(getattr(error, "strerror", None) or error)
        return ""


class _Pieces:
    """Iterator over the received pieces until the length of 0.

    It stays exhausted. Raises EOFError if the connection breaks, or a length is negative.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._left, self._is_over = source, 0, False
        self._buffer = memoryview(bytearray(_PIECE))

    def __iter__(self) -> _Pieces:
        return self

    def __next__(self) -> memoryview:
        """Return the next piece; it is valid until the following call."""
        if not self._left and not self._is_over:
            self._left = _LONG.unpack(_exactly(self._source, _LONG.size))[0]
            if self._left < 0:
                raise EOFError
            self._is_over = not self._left
        if self._is_over:
            raise StopIteration
        got = self._source.readinto(self._buffer[: min(self._left, _PIECE)])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        self._left -= got
        return self._buffer[:got]


def _text(pieces: BinaryIO) -> bytes:
    """Read a byte string preceded by its length in two bytes. Raises EOFError if it is too long or incomplete."""
    size = _SHORT.unpack(_exactly(pieces, _SHORT.size))[0]
    if size > _MOST_HEAD:
        raise EOFError
    return _exactly(pieces, size)


def _exactly(pieces: BinaryIO, size: int) -> bytes:
    """Read ``size`` bytes. Raises EOFError if the connection ends before."""
    found = pieces.read(size)
    if len(found) < size:
        raise EOFError
    return found
