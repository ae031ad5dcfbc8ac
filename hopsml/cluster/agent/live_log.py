"""What a worker prints, as the driver sees it while it prints: bounded, however much it is.

At most WINDOW bytes are under way that the driver has not acknowledged. Of a flood the beginning is sent, then now and then
one line that says how much was left out, with the newest lines; the whole of it is in the run directory's log.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

WINDOW = 256 << 10  # bytes that the driver has not acknowledged
TAIL = 16 << 10  # the newest lines of a flood; room for them is kept
RATE = 128 << 10  # bytes a second that may go on for ever
EVERY_S = 2.0  # between two words about a flood
POLL_S = 0.2
PIECE = 64_000  # bytes of one message
COUNTED = 256 << 20  # bytes whose lines are counted; more would take long
LAST_S = 5.0  # for the last lines of a worker that is gone


@dataclass
class Flow:
    """Decides what is to be sent next of a log that grows; pure. Positions are bytes from the log's beginning."""

    position: int = 0
    in_flight: int = 0
    burst: float = WINDOW
    looked: float = 0.0  # seconds, as of ``look``
    flooded: float | None = None  # since when it has been too much; or since the last word about that

    def look(self, size: int, now: float, last: bool = False) -> tuple[int, int, int]:
        """Of a log that is ``size`` bytes long: (head, tail, end).

        To be sent up to ``head``, to be left out from there to ``tail``, to be sent from there to ``end``. ``last``: the log
        is complete.
        """
        self.burst = min(WINDOW, self.burst + (now - self.looked) * RATE)
        self.looked = now
        room = max(0, WINDOW - TAIL - self.in_flight)
        self.position = min(self.position, size)  # whoever prints may cut it
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
        """The driver has acknowledged so many bytes."""
        self.in_flight = max(0, self.in_flight - count)

    def _send(self, head: int, tail: int, end: int) -> tuple[int, int, int]:
        sent = head - self.position + end - tail
        self.position = end
        self.in_flight += sent
        self.burst = max(0.0, self.burst - sent)
        return head, tail, end


@dataclass
class LiveLog:
    """Follows one log; ``send(text, size)`` brings text to the driver, which stands for ``size`` bytes of the log."""

    path: Path
    url: str  # where the whole log will be found
    send: Callable[[str, int], None]
    _flow: Flow = field(default_factory=Flow)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _at_line_start: bool = True

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._flow.looked = time.monotonic()

    def taken(self, size: int) -> None:
        """The driver has acknowledged so many bytes."""
        self._flow.taken(size)

    async def follow(self) -> None:
        """Send what is printed, until ``finish`` has been called and the last lines are sent."""
        last = False
        while not last:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), POLL_S)
            last = self._over.is_set()  # before the look: what was printed until then is seen
            size = await asyncio.to_thread(_size, self.path)
            start = self._flow.position
            head, tail, end = self._flow.look(size, time.monotonic(), last)
            await self._send(start, head)
            if tail > head:
                lines, line_start = await asyncio.to_thread(skip, self.path, head, tail, end)
                self._flow.taken(line_start - tail)
                tail = line_start
                self._say_skipped(lines, tail - head)
            await self._send(tail, end)

    def finish(self) -> None:
        """Let ``follow`` return after what has been printed by now."""
        self._over.set()

    async def _send(self, start: int, end: int) -> None:
        while start < end:
            data = await asyncio.to_thread(_read, self.path, start, min(PIECE, end - start))
            if not data:  # cut by whoever prints
                self._flow.taken(end - start)
                return
            start += len(data)
            self._at_line_start = data.endswith(b"\n")
            self.send(self._decoder.decode(data), len(data))

    def _say_skipped(self, lines: str, count: int) -> None:
        self._decoder.reset()
        begin = "" if self._at_line_start else "\n"
        self._at_line_start = True
        self.send(f"{begin}… {lines} lines ({count / 1e6:.1f} MB) skipped here; the whole log: {self.url}\n", 0)


def skip(path: Path, start: int, tail: int, end: int) -> tuple[str, int]:
    """How many lines, in words, there are from ``start`` to ``tail``; and ``tail``, moved on to the beginning of a line."""
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
