"""Interface of a store for ``adapter.RemoteFileSystem``, stores by scheme, and the channel to a storage helper's process.

A frame on the channel is one letter (``M`` a msgpack message, ``D`` raw bytes), a length of four bytes, and the body.
"""

from __future__ import annotations

import importlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import msgspec

from hopsml.storage.filesystem import FileStatus, StoreCapacity

CHUNK_BYTES = 4 << 20
_MAX_FRAME_BYTES = 64 << 20
_HEADER = struct.Struct(">cI")
_decoder = msgspec.msgpack.Decoder(dict[str, Any])


class ChannelClosed(ConnectionError):
    """Error: the other side has closed the connection, or sent an invalid frame."""


class FrameChannel:
    """Sender and receiver of frames over a connected stream socket, for one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, message: dict[str, Any], timeout_s: float | None = None) -> None:
        """Send a message to the other side; TimeoutError if it is not accepted within ``timeout_s``."""
        self._send(b"M", msgspec.msgpack.encode(message), timeout_s)

    def send_data(self, data: bytes | memoryview, timeout_s: float | None = None) -> None:
        """Send one chunk of raw bytes, at most 64 MiB; TimeoutError if it is not accepted within ``timeout_s``."""
        self._send(b"D", data, timeout_s)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | bytearray:
        """Return the next frame: a message as a dict, a chunk as a bytearray.

        Raises:
            TimeoutError: none arrived within ``timeout_s``.
            ChannelClosed: the other side has closed the connection.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        kind, length = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if kind not in (b"M", b"D") or length > _MAX_FRAME_BYTES:
            raise ChannelClosed(f"not a frame: kind {kind!r}, {length} bytes")
        body = self._read(length, deadline)
        return _decoder.decode(body) if kind == b"M" else body

    def close(self) -> None:
        """Close the socket, so that the other side reads its end."""
        self._socket.close()

    def _send(self, kind: bytes, body: bytes | memoryview, timeout_s: float | None) -> None:
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(_HEADER.pack(kind, len(body)))
            self._socket.sendall(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed("the other process has ended") from error

    def _read(self, count: int, deadline: float | None) -> bytearray:
        buffer = bytearray(count)
        view, got = memoryview(buffer), 0
        while got < count:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
            else:
                self._socket.settimeout(None)
            try:
                taken = self._socket.recv_into(view[got:])
            except ConnectionResetError as error:
                raise ChannelClosed("the other process has ended") from error
            if not taken:
                raise ChannelClosed("the other process has ended")
            got += taken
        return buffer


_FOLDER = "hopsml.storage.remote"
_STORES = {  # scheme -> module and class
    "hdfs": ("hdfs", "HdfsStore"),
    "hopsfs": ("hdfs", "HdfsStore"),
    "viewfs": ("hdfs", "HdfsStore"),
    "webhdfs": ("webhdfs", "WebHdfsStore"),
    "swebhdfs": ("webhdfs", "WebHdfsStore"),
}
_OTHERS = ("fsspec", "FsspecStore")


class RemoteStore(Protocol):
    """Interface of the client of one store; it is used in a helper process, one call at a time.

    Every method takes whole URLs. It may block, since its process is killed then, and it raises what its library
    raises: ``causes`` distinguishes errors by the names of their types and their texts. NotImplementedError is for
    operations that a kind of store does not have: ``RemoteFileSystem`` then raises a StorageError with its text.
    """

    # On an object store ``write`` shows a file when it is complete, and reserves its name; it cannot append.
    is_object_store: ClassVar[bool]

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        """Create the client of one store.

        Args:
            url: any URL of the store.
            options: what the static method ``options`` returned in the calling process.
        """

    @staticmethod
    def options(url: str) -> dict[str, Any]:
        """Return settings of the store that only the calling process has; ArgumentError for an unknown scheme."""

    @staticmethod
    def addresses(url: str) -> list[str]:
        """Return ``host:port`` of each server behind the store, if known, to report which one does not respond."""

    @staticmethod
    def proxy_note(url: str) -> str:
        """Return the part of an error message that names the proxy of requests to the store; empty for none."""
        return ""

    @staticmethod
    def is_in_this_process(url: str) -> bool:
        """Return True if the store's files are in the calling process itself, so that no other one could read them."""

    def status(self, url: str) -> FileStatus:
        """Return the attributes of one file or directory; FileNotFoundError if there is none."""

    def list_dir(self, url: str) -> list[FileStatus]:
        """Return the entries of a directory in any order; NotADirectoryError for a file."""

    def read(self, url: str, offset: int, length: int | None) -> tuple[int, Iterator[bytes]]:
        """Return the number of bytes from ``offset`` on, and the bytes in pieces.

        At most ``length`` bytes; None: to the end.
        """

    def write(self, url: str, pieces: Iterator[bytes], overwrite: bool) -> None:
        """Write a new file from these pieces; missing parents are created."""

    def make_dirs(self, url: str, mode: int | None) -> None:
        """Create a directory with its parents; arguments as for ``FileSystem.make_dirs``."""

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        """Rename a file or directory; arguments as for ``FileSystem.rename``.

        FileExistsError, or the library's own error, if the target exists.
        """

    def delete(self, url: str, recursive: bool) -> bool:
        """Delete a file or directory; arguments as for ``FileSystem.delete``.

        An OSError with the text "not empty" for a directory with entries.
        """

    # Methods that object stores do not have:

    def append(self, url: str, pieces: Iterator[bytes]) -> None:
        """Append pieces to a file, which is created if missing; not called for an object store."""
        raise NotImplementedError("this store cannot append")

    def set_permission(self, url: str, mode: int) -> None:
        """Change the permission bits to ``mode``; NotImplementedError where the store has none."""
        raise NotImplementedError("this store has no permissions")

    def set_owner(self, url: str, owner: str | None, group: str | None) -> None:
        """Change owner and group by name; NotImplementedError where the store has none."""
        raise NotImplementedError("this store has no owners")

    def capacity(self, url: str) -> StoreCapacity:
        """Return size and use of the store; NotImplementedError where they are not available."""
        raise NotImplementedError("this store does not report its size")


def store_class(scheme: str) -> type[RemoteStore]:
    """Return the class of the store for a scheme; its client library is not imported yet."""
    module, name = _STORES.get(scheme, _OTHERS)
    found: type[RemoteStore] = getattr(importlib.import_module(f"{_FOLDER}.{module}"), name)
    return found
