"""Framing of messages in a byte stream: four bytes of length, then the message.

It is for hopsml's own pipes and sockets. Other framings in the code base, and the reasons:
``docs/decisions/2026-11-22-framing.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from asyncio import StreamReader

MAX_FRAME = 1 << 30  # bytes
_HEADER = 4


def framed(data: bytes) -> bytes:
    """Return the message as a frame: its length in four bytes, most significant first, then the message."""
    return len(data).to_bytes(_HEADER, "big") + data


def _size(header: bytes | bytearray, most: int) -> int:
    """Return the length in a header; raise ValueError if it exceeds ``most``."""
    size = int.from_bytes(header, "big")
    if size > most:
        raise ValueError(f"a frame has {size} bytes, more than the {most} that can be sent; the stream is damaged")
    return size


def read_frame(file: BinaryIO) -> bytes:
    """Read the next message from a blocking file.

    Raises:
        EOFError: if the file ends before.
    """
    header = file.read(_HEADER)
    data = file.read(size := _size(header, MAX_FRAME))
    if len(header) < _HEADER or len(data) < size:
        raise EOFError("the stream ended within a frame")
    return data


async def receive_frame(reader: StreamReader, most: int = MAX_FRAME) -> bytes:
    """Read the next message from an asyncio stream.

    Raises:
        ValueError: for a message of more than ``most`` bytes, else as ``readexactly``.
    """
    return await reader.readexactly(_size(await reader.readexactly(_HEADER), most))


class FrameDecoder:
    """Decoder that assembles messages from pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that this piece completes.

        Raises:
            ValueError: if the stream contains no frames.
        """
        self._buffer += piece
        complete: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _HEADER:
            size = _size(self._buffer[start : start + _HEADER], MAX_FRAME)
            if len(self._buffer) - start - _HEADER < size:
                break
            complete.append(bytes(self._buffer[start + _HEADER : start + _HEADER + size]))
            start += _HEADER + size
        del self._buffer[:start]
        return complete
