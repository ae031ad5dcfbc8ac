"""Local folders of one worker, their mirror if the run directory is remote, and its output, sent while it runs.

At most ``WINDOW`` bytes of output that the driver has not acknowledged are in transit. Of a flood the beginning is sent,
then, at intervals, a line with the number of skipped lines, followed by the newest ones. The log has all of them.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.worker_events import NEWEST_FILES
from hopsml.core import processes
from hopsml.core.newer_python import asyncio_wait_for
from hopsml.storage import local, urls

if TYPE_CHECKING:
    from hopsml.storage.mirror import MirrorProcess


WINDOW = 256 << 10  # bytes in transit that the driver has not acknowledged
TAIL = 16 << 10  # bytes of the newest lines of a flood; reserved within the window
RATE = 128 << 10  # bytes per second that can be sent permanently
EVERY_S = 2.0  # seconds between two notes about a flood
POLL_S = 0.2
PIECE = 64_000  # bytes per message
COUNTED = 256 << 20  # bytes whose lines are counted; the number beyond is estimated
LAST_S = 5.0  # seconds for sending the last lines of a worker that has exited
STOP_S = 2.0  # seconds for a mirror to end after its last flush


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

    def record_acknowledged(self, count: int) -> None:
        """Record that the driver has acknowledged ``count`` more bytes."""
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

    def record_acknowledged(self, size: int) -> None:
        """Record that the driver has acknowledged ``size`` more bytes."""
        self._flow.record_acknowledged(size)

    async def follow(self) -> None:
        """Send the output as it is written, until ``finish`` has been called and the last lines are sent."""
        last = False
        while not last:
            with contextlib.suppress(TimeoutError):
                await asyncio_wait_for(self._over.wait(), POLL_S)
            last = self._over.is_set()  # read before the size, so that all output until then is included
            size = await asyncio.to_thread(_size, self.path)
            start = self._flow.position
            head, tail, end = self._flow.next_parts(size, time.monotonic(), last)
            await self._send(start, head)
            if tail > head:
                lines, line_start = await asyncio.to_thread(count_skipped_lines, self.path, head, tail, end)
                self._flow.record_acknowledged(line_start - tail)
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
                self._flow.record_acknowledged(end - start)
                return
            start += len(data)
            self._at_line_start = data.endswith(b"\n")
            self.send(self._decoder.decode(data), len(data))

    def _say_skipped(self, lines: str, count: int) -> None:
        """Send a line with the number of skipped lines."""
        self._decoder.reset()
        begin = "" if self._at_line_start else "\n"
        self._at_line_start = True
        self.send(f"{begin}… {lines} lines ({count / 1e6:.1f} MB) were skipped here; the whole log is {self.url}\n", 0)


def count_skipped_lines(path: Path, start: int, tail: int, end: int) -> tuple[str, int]:
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


HELD_LIMIT = 3  # consecutive heartbeats
_FOLDERS = ("events", "logs", "checkpoints", "export")


@dataclass(frozen=True)
class MissingFiles:
    """Files of a tree that are not on shared storage, each with the reason; at most 50 of ``count`` are named."""

    texts: tuple[str, ...] = ()  # "path: reason"
    count: int = 0

    def and_also(self, *texts: str) -> MissingFiles:
        """Return these files and further ones."""
        return MissingFiles((*self.texts, *texts), self.count + len(texts))


class LocalTree:
    """Local copy of a run directory, mirrored to the run's URL if that is remote.

    ``base`` is the run directory itself if it is local, else a folder whose path ends in the run's URL. The URL inside
    the path lets user code and the ``hdfs`` helpers derive the final location of a file:
    ``/scratch/a1/hdfs://nn:8020/Projects/p/Experiments/app_1/events``.
    """

    def __init__(self, run_url: str, folder: Path, timeout_s: float, on_problem: Callable[[str, int], None]) -> None:
        self.run_url, self.timeout_s, self.on_problem = run_url, timeout_s, on_problem
        scheme, _, path = urls.split(run_url)
        own = path if scheme in ("", "file") else None
        self.is_mirrored = own is None
        # A string join: pathlib would collapse the two slashes of the URL.
        self.base_text = own if own is not None else f"{folder}/mirror/{run_url}"
        self.base = Path(self.base_text)
        self._mirror: MirrorProcess | None = None
        self._is_closing = False
        self._held = 0  # heartbeats for which the mirror has been stopped
        self.fails = False  # True while copies to shared storage fail

    def url(self, name: str) -> str:
        """Return the final URL of a file of the tree."""
        return f"{self.run_url.rstrip('/')}/{name}"

    def open_for_appending(self, name: str) -> int:
        """Open a file of the tree for appending, with the folder's access permissions; return the descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return local.open_with_folder_permission(f"{self.base_text}/{name}", flags)

    def end_of(self, name: str, size: int) -> str:
        """Return the last ``size`` bytes of a file of the tree as text; "" if it cannot be read."""
        try:
            with open(self.base / name, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - size))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    async def open(self) -> None:
        """Create the folders and start mirroring; idempotent."""
        if self._mirror is not None:
            return
        for name in _FOLDERS:
            local.make_dirs(f"{self.base_text}/{name}")
        if self.is_mirrored:
            from hopsml.storage.mirror import MirrorProcess

            loop = asyncio.get_running_loop()
            self._mirror = MirrorProcess(
                self.base,
                self.run_url,
                timeout_s=self.timeout_s,
                on_message=lambda message: self._pass_on(loop, message),
            )
            self._mirror.start()  # on this thread, which lives as long as the agent

    async def close(self, flush_s: float, retry_s: float = 0.0, cut: asyncio.Event | None = None) -> MissingFiles:
        """Store the remaining files within ``flush_s`` seconds, and end the mirror; return what is not stored.

        Failed copies are retried for ``retry_s`` seconds. ``cut`` ends the wait early.
        """
        mirror = self._mirror
        if mirror is None or self._is_closing:
            return MissingFiles()
        self._is_closing = True
        cut = cut or asyncio.Event()
        cutting = asyncio.create_task(_cut(mirror, cut))
        try:
            return await asyncio.to_thread(_flush_and_stop, mirror, flush_s, retry_s, cut)
        except asyncio.CancelledError:  # the agent ends, which must not wait for the retries
            cut.set()
            mirror.shorten_flush()
            raise
        finally:
            cutting.cancel()
            self._mirror, self._is_closing = None, False

    async def wait_until_stored(self, checkpoint: str, patience_s: float) -> bool:
        """Wait until a checkpoint's local folder is on shared storage; return False after ``patience_s`` seconds.

        Returns True at once if the folder is not mirrored.
        """
        mirror = self._mirror
        if mirror is None or not Path(checkpoint).is_relative_to(self.base):
            return True
        report = await asyncio.to_thread(mirror.flush, patience_s)
        name = str(Path(checkpoint).relative_to(self.base))
        all_named = len(report.behind) == report.behind_count
        return report.answered and all_named and name not in (late.path for late in report.behind)

    def check_health(self) -> str:
        """Wake a stopped mirror, or replace one that remains stopped or has died.

        Called with each heartbeat.

        Returns:
            A note for the user, or "".
        """
        mirror = self._mirror
        if mirror is None or mirror.process is None:
            return ""
        who = f"the process that mirrors files to shared storage on this host (process {mirror.process.pid})"
        self._held = self._held + 1 if processes.is_stopped(mirror.process.pid) else 0
        if self._held == 1:
            mirror.process.send_signal(signal.SIGCONT)
            return f"{who} was stopped (SIGSTOP), and is resumed"
        if self._held >= HELD_LIMIT:
            self._held = 0
            mirror.process.kill()
            return f"{who} is still stopped (SIGSTOP), and is killed"
        if not mirror.is_alive and not self._is_closing:
            try:
                mirror.start()
            except OSError as error:
                return f"{who} has ended, and cannot be started again: {error}"
            return f"{who} has ended, and is started again"
        return ""

    def _pass_on(self, loop: asyncio.AbstractEventLoop, message: dict[str, Any]) -> None:
        """Pass a message of the mirror's reading thread to the event loop."""
        loop.call_soon_threadsafe(self._on_mirror, message)

    def _on_mirror(self, message: dict[str, Any]) -> None:
        """Report a delay of the mirror, or its recovery ("")."""
        self.fails = message["event"] != "recovered"
        if not self.fails:
            self.on_problem("", 0)
            return
        first = message["behind"][0] if message["behind"] else {"path": "", "reason": ""}
        more = message["behind_count"] - 1
        self.on_problem(
            f"mirroring is behind: {first['path']}{f' and {more} more' if more > 0 else ''}: {first['reason']}",
            message["behind_count"],
        )


async def _cut(mirror: MirrorProcess, cut: asyncio.Event) -> None:
    """Cut the mirror's last flush short when the event is set."""
    await cut.wait()
    mirror.shorten_flush()


def _flush_and_stop(mirror: MirrorProcess, flush_s: float, retry_s: float, cut: asyncio.Event) -> MissingFiles:
    """Flush and end the mirror; return the files that are not stored, with the reason."""
    began = time.monotonic()
    report = mirror.flush(flush_s, retry_s) if flush_s > 0 else mirror.stop(0.0)
    left_s = flush_s - (time.monotonic() - began)
    if (
        not report.answered and left_s > 0 and not cut.is_set() and _has_died(mirror)
    ):  # a new one determines what is missing
        report = mirror.flush(left_s, min(left_s, retry_s))
    last = mirror.stop(STOP_S)
    report = last if last.answered else report
    if report.is_complete:
        return MissingFiles()
    if not report.answered:
        return MissingFiles((f"{NEWEST_FILES}: the mirror did not answer in time",), 1)
    return MissingFiles(tuple(f"{late.path}: {late.reason}" for late in report.behind), report.behind_count)


def _has_died(mirror: MirrorProcess) -> bool:
    """Return True if the mirror has exited; its pipe closes shortly before."""
    if mirror.process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            mirror.process.wait(1.0)
    return not mirror.is_alive
