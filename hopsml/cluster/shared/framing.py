"""Messages in a stream of bytes: four bytes of length, then the message. For pipes and sockets between processes of ours.

Where else there is a framing, and why: ``docs/decisions/2026-11-22-framing.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from asyncio import StreamReader

MAX_FRAME = 1 << 30  # bytes
_HEADER = 4


def framed(data: bytes) -> bytes:
    """The message as a frame: its length in four bytes, most significant first, then itself."""
    return len(data).to_bytes(_HEADER, "big") + data


def _size(header: bytes | bytearray, most: int) -> int:
    size = int.from_bytes(header, "big")
    if size > most:
        raise ValueError(f"a frame of {size} bytes: the stream is broken, at most {most} are sent")
    return size


def read_frame(file: BinaryIO) -> bytes:
    """The next message of a file that blocks. EOFError where it ends before."""
    header = file.read(_HEADER)
    data = file.read(size := _size(header, MAX_FRAME))
    if len(header) < _HEADER or len(data) < size:
        raise EOFError("the stream ended within a frame")
    return data


async def receive_frame(reader: StreamReader, most: int = MAX_FRAME) -> bytes:
    """The next message of an asyncio stream. ValueError for one of more than ``most`` bytes, else as ``readexactly``."""
    return await reader.readexactly(_size(await reader.readexactly(_HEADER), most))


class Frames:
    """Puts messages together again from pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The messages that this piece completes. ValueError where the stream holds no frames."""
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
