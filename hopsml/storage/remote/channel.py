"""Messages and raw chunks between a process and its storage helper, over one socket.

A frame is one letter (``M`` a msgpack message, ``D`` raw bytes), a length of four bytes, and the body.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import msgspec

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
