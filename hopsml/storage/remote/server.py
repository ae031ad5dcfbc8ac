"""Helper process of the storage adapter: started by ``pool`` as ``python -m hopsml.storage.remote.server``.

Requests arrive over a socket, one at a time. After each step (a client created, a chunk moved) a ``{"step": bytes}``
message is sent, so that the other side's deadline applies to each step; ``{"ready": true}`` requests the next chunk.
Files on this machine are read and written here, so that their bytes do not cross the socket. The process ends with its
parent: at the end of the socket, and when the parent dies by whatever cause, even in the middle of a blocked call.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hopsml.core import processes, redact
from hopsml.errors import ArgumentError
from hopsml.storage import urls
from hopsml.storage.remote.store import CHUNK_BYTES, ChannelClosed, FrameChannel, RemoteStore, store_class

_IDLE_S = 90.0  # longer than the pool lends an idle process
_PLAIN_CALLS = frozenset(
    ("status", "list_dir", "make_dirs", "rename", "delete", "set_permission", "set_owner", "capacity")
)  # the response is the store's return value


class LocalFileError(Exception):
    """Error of this machine's disk during a transfer; carries the errno."""


class StoreServer:
    """Server of the requests of one channel, one at a time; retains a client for each store."""

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel
        self._clients: dict[str, RemoteStore] = {}

    def serve(self) -> None:
        """Handle requests until the other side has disconnected, or has sent none for ``_IDLE_S`` seconds.

        It then raises ChannelClosed or TimeoutError.
        """
        while True:
            request = self._channel.receive(_IDLE_S)
            if not isinstance(request, dict):
                raise ChannelClosed("raw bytes without a request")
            try:
                answer: dict[str, Any] = {"ok": self._carry_out(request)}
            except ChannelClosed:
                raise
            except LocalFileError as error:
                answer = {"local_errno": error.args[0]}
            except ArgumentError as error:
                answer = {"argument": str(error)}
            except Exception as error:  # noqa: BLE001  the caller converts all causes
                # HdfsCLI has the name of the Java class in ``exception``. Only this process has the store's secrets.
                kind = str(getattr(error, "exception", "") or type(error).__name__)
                answer = {"error": kind, "text": redact.text(str(error))}
            self._channel.send(answer)

    def _carry_out(self, request: dict[str, Any]) -> Any:
        transfers: dict[str, Callable[..., int]] = {
            "read": self._read,
            "download": self._download,
            "write": self._write,
            "append": self._append,
            "upload": self._upload,
        }
        verb, url, arguments = request["verb"], request["url"], request["arguments"]
        client = self._client(request["base"], request["options"])
        if verb in _PLAIN_CALLS:
            return getattr(client, verb)(url, **arguments)
        return transfers[verb](client, url, **arguments)

    def _client(self, base: str, options: dict[str, Any]) -> RemoteStore:
        key = f"{base} {options!r}"
        if key not in self._clients:
            self._clients[key] = store_class(urls.split(base)[0])(base, options)
            self._step(0)  # a client library may take a second to import
        return self._clients[key]

    # ------------------------------------------------------------------ transfers: each returns the number of its bytes

    def _read(self, client: RemoteStore, url: str, offset: int, length: int | None, most: int | None) -> int:
        """Send the content, and return its length; nothing is sent of more than ``most`` bytes."""
        total, pieces = client.read(url, offset, length)
        if most is not None and total > most:
            return total
        for piece in _checked(total, pieces):
            self._channel.send_data(piece)
        return total

    def _download(self, client: RemoteStore, url: str, local: str) -> int:
        total, pieces = client.read(url, 0, None)
        with _local(open, local, "xb", 0) as file:
            for piece in _checked(total, pieces):
                _local(_write_all, file, piece)
                self._step(len(piece))
        return total

    def _write(self, client: RemoteStore, url: str, overwrite: bool) -> int:
        counted = _Counted(self._received())
        client.write(url, counted, overwrite)
        return counted.total

    def _append(self, client: RemoteStore, url: str) -> int:
        counted = _Counted(self._received())
        client.append(url, counted)
        return counted.total

    def _upload(self, client: RemoteStore, url: str, local: str) -> int:
        with _local(open, local, "rb", 0) as file:
            counted = _Counted(self._from_disk(file))
            client.write(url, counted, True)
        return counted.total

    def _received(self) -> Iterator[bytes]:
        """Yield the caller's raw chunks until a message ends them.

        Each is requested when the one before has been written.
        """
        self._channel.send({"ready": True})
        while isinstance(chunk := self._channel.receive(), bytearray):
            yield bytes(chunk)
            self._channel.send({"ready": True})

    def _from_disk(self, file: Any) -> Iterator[bytes]:
        while piece := _local(file.read, CHUNK_BYTES):
            yield piece
            self._step(len(piece))

    def _step(self, count: int) -> None:
        self._channel.send({"step": count})


class _Counted(Iterator[bytes]):
    """Iterator over pieces that counts the bytes taken."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.total = 0

    def __next__(self) -> bytes:
        piece = next(self._pieces)
        self.total += len(piece)
        return piece


def _checked(total: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces; EOFError if they have not ``total`` bytes together: a short piece is not the end."""
    got = 0
    for piece in pieces:
        got += len(piece)
        yield piece
    if got != total:
        raise EOFError(f"unexpected end of file: only {got} of {total} bytes were received")


def _write_all(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:  # an unbuffered write may write a part
        view = view[file.write(view) :]


def _local(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call on this machine's disk; its errors become LocalFileError, to separate them from the store's."""
    try:
        return call(*arguments)
    except OSError as error:
        raise LocalFileError(error.errno or 0) from error


@contextlib.contextmanager
def serve_in_thread() -> Iterator[FrameChannel]:
    """Yield a channel to a server that runs in a thread of this process during the block, and cannot be killed."""
    ours, theirs = socket.socketpair()
    with theirs, ours:
        thread = threading.Thread(target=_serve, args=(FrameChannel(theirs),), name="storage", daemon=True)
        thread.start()
        try:
            yield FrameChannel(ours)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(channel: FrameChannel) -> None:
    with contextlib.suppress(ChannelClosed, TimeoutError):
        StoreServer(channel).serve()


def main(arguments: list[str]) -> None:
    """Run the helper process.

    Args:
        arguments: descriptor of the socket, the parent's process id and its pidfd (-1: none), as ``pool`` passes them.
    """
    socket_fd, parent_pid, parent = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=processes.exit_with_parent, args=(parent_pid, parent), daemon=True).start()
    _serve(FrameChannel(socket.socket(fileno=socket_fd)))
    os._exit(0)  # the client's own threads may be stuck


if __name__ == "__main__":
    main(sys.argv[1:])
