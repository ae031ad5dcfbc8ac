"""Messages in a stream of bytes: four bytes of length, then the message. For pipes and sockets between processes."""

from __future__ import annotations

MAX_FRAME = 1 << 30  # bytes
_HEADER = 4


def framed(data: bytes) -> bytes:
    """The message with its length before it."""
    return len(data).to_bytes(_HEADER, "big") + data


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
            size = int.from_bytes(self._buffer[start : start + _HEADER], "big")
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes: the stream is broken, at most {MAX_FRAME} are sent")
            if len(self._buffer) - start - _HEADER < size:
                break
            complete.append(bytes(self._buffer[start + _HEADER : start + _HEADER + size]))
            start += _HEADER + size
        del self._buffer[:start]
        return complete
