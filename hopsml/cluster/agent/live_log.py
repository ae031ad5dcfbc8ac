"""Transmission of a worker's output to the driver while it runs, with a bound on its volume.

At most ``WINDOW`` bytes that the driver has not acknowledged are in transit. Of a flood the beginning is sent, then, at
intervals, a line with the number of skipped lines, followed by the newest lines. The complete output is in the run
directory's log.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

WINDOW = 256 << 10  # bytes in transit that the driver has not acknowledged
TAIL = 16 << 10  # bytes of the newest lines of a flood; reserved within the window
RATE = 128 << 10  # bytes per second that can be sent permanently
EVERY_S = 2.0  # seconds between two notes about a flood
POLL_S = 0.2
PIECE = 64_000  # bytes per message
COUNTED = 256 << 20  # bytes whose lines are counted; the number beyond is estimated
LAST_S = 5.0  # seconds for sending the last lines of a worker that has exited


@dataclass
class Flow:
    """Flow control of a growing log: decides which part is sent next.

    Pure; positions are bytes from the log's start.
    """

    position: int = 0
    in_flight: int = 0
    burst: float = WINDOW
    looked: float = 0.0  # seconds: time of the last call of ``next_parts``
    flooded: float | None = None  # seconds: start of the flood, or time of the last note about it

    def next_parts(self, size: int, now: float, last: bool = False) -> tuple[int, int, int]:
        """Return the next parts as (head, tail, end): send up to ``head``, skip to ``tail``, send up to ``end``.

        Args:
            size: length of the log, in bytes.
            now: monotonic time, in seconds.
            last: True if the log is complete.
        """
        self.burst = min(WINDOW, self.burst + (now - self.looked) * RATE)
        self.looked = now
        room = max(0, WINDOW - TAIL - self.in_flight)
        self.position = min(self.position, size)  # the worker may truncate it
        waiting = size - self.position
        if waiting <= min(room, self.burst):
            self.flooded = None
            return self._send(size, size, size)
        head = self.position
        if self.flooded is None:
            self.flooded = now
            head += int(min(room, self.burst))
        elif not last and (now - self.flooded < EVERY_S or room < TAIL):
            return self._send(head, head, head)
        if not last and head > self.position:
            return self._send(head, head, head)
        self.flooded = now
        return self._send(head, max(head, size - TAIL), size)

    def taken(self, count: int) -> None:
        """Record that the driver has acknowledged ``count`` bytes."""
        self.in_flight = max(0, self.in_flight - count)

    def _send(self, head: int, tail: int, end: int) -> tuple[int, int, int]:
        """Record what is sent next, and return its bounds."""
        sent = head - self.position + end - tail
        self.position = end
        self.in_flight += sent
        self.burst = max(0.0, self.burst - sent)
        return head, tail, end


@dataclass
class LiveLog:
    """Sender of one growing log.

    ``send(text, size)`` sends text that covers ``size`` bytes of the log to the driver.
    """

    path: Path
    url: str  # URL of the complete log
    send: Callable[[str, int], None]
    _flow: Flow = field(default_factory=Flow)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _at_line_start: bool = True

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._flow.looked = time.monotonic()

    def taken(self, size: int) -> None:
        """Record that the driver has acknowledged ``size`` bytes."""
        self._flow.taken(size)

    async def follow(self) -> None:
        """Send the output as it is written, until ``finish`` has been called and the last lines are sent."""
        last = False
        while not last:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), POLL_S)
            last = self._over.is_set()  # read before the size, so that all output until then is included
            size = await asyncio.to_thread(_size, self.path)
            start = self._flow.position
            head, tail, end = self._flow.next_parts(size, time.monotonic(), last)
            await self._send(start, head)
            if tail > head:
                lines, line_start = await asyncio.to_thread(skip, self.path, head, tail, end)
                self._flow.taken(line_start - tail)
                tail = line_start
                self._say_skipped(lines, tail - head)
            await self._send(tail, end)

    def finish(self) -> None:
        """Let ``follow`` return after the output that exists now."""
        self._over.set()

    async def _send(self, start: int, end: int) -> None:
        """Send the bytes from ``start`` to ``end`` in pieces."""
        while start < end:
            data = await asyncio.to_thread(_read, self.path, start, min(PIECE, end - start))
            if not data:  # truncated by the worker
                self._flow.taken(end - start)
                return
            start += len(data)
            self._at_line_start = data.endswith(b"\n")
            self.send(self._decoder.decode(data), len(data))

    def _say_skipped(self, lines: str, count: int) -> None:
        """Send a line with the number of skipped lines."""
        self._decoder.reset()
        begin = "" if self._at_line_start else "\n"
        self._at_line_start = True
        self.send(f"{begin}… {lines} lines ({count / 1e6:.1f} MB) skipped here; the whole log: {self.url}\n", 0)


def skip(path: Path, start: int, tail: int, end: int) -> tuple[str, int]:
    """Return the number of lines from ``start`` to ``tail``, as text, and ``tail`` moved forward to a line's start."""
    with open(path, "rb") as log:
        log.seek(tail)
        cut = log.read(end - tail).find(b"\n") + 1
        tail += cut
        log.seek(start)
        lines, left = 0, min(COUNTED, tail - start)
        while left > 0 and (piece := log.read(min(1 << 20, left))):
            lines += piece.count(b"\n")
            left -= len(piece)
    if tail - start > COUNTED:
        return f"about {int(lines * (tail - start) / COUNTED)}", tail
    return str(lines), tail


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, start: int, count: int) -> bytes:
    with open(path, "rb") as log:
        log.seek(start)
        return log.read(count)
