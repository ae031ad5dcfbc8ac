"""Local folders of one worker, and the process that mirrors them if the run directory is remote."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared import processes
from hopsml.storage import local, urls

if TYPE_CHECKING:
    from hopsml.storage.mirror import MirrorProcess

HELD_LIMIT = 3  # consecutive heartbeats
_FOLDERS = ("events", "logs", "checkpoints", "export")


class LocalTree:
    """Local copy of a run directory, mirrored to the run's URL if that is remote.

    ``base`` is the run directory itself if it is local, else a folder whose path ends in the run's URL. The URL inside
    the path lets user code and the ``hdfs`` helpers derive the final location of a file:
    ``/scratch/a1/hdfs://nn:8020/Projects/p/Experiments/app_1/events``.
    """

    def __init__(self, run_url: str, folder: Path, timeout_s: float, on_problem: Callable[[str], None]) -> None:
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

    def url(self, name: str) -> str:
        """Return the final URL of a file of the tree."""
        return f"{self.run_url.rstrip('/')}/{name}"

    def append_to(self, name: str) -> int:
        """Open a file of the tree for appending, with the folder's access permissions; return the descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return local.as_open_as_its_folder(f"{self.base_text}/{name}", flags)

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

    async def close(self, flush_s: float) -> list[str]:
        """Store the remaining files within ``flush_s`` seconds, and end the mirror; return what is not stored."""
        if self._mirror is None or self._is_closing:
            return []
        self._is_closing = True
        try:
            return await asyncio.to_thread(_flush_and_stop, self._mirror, flush_s)
        finally:
            self._mirror, self._is_closing = None, False

    async def has_stored(self, checkpoint: str, patience_s: float) -> bool:
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
            return f"{who} was stopped (SIGSTOP); it is woken"
        if self._held >= HELD_LIMIT:
            self._held = 0
            mirror.process.kill()
            return f"{who} stays stopped; it is ended"
        if not mirror.is_alive and not self._is_closing:
            try:
                mirror.start()
            except OSError as error:
                return f"{who} has ended, and no other can be started: {error}"
            return f"{who} has ended; another one takes its place"
        return ""

    def _pass_on(self, loop: asyncio.AbstractEventLoop, message: dict[str, Any]) -> None:
        """Pass a message of the mirror's reading thread to the event loop."""
        loop.call_soon_threadsafe(self._on_mirror, message)

    def _on_mirror(self, message: dict[str, Any]) -> None:
        """Report a delay of the mirror, or its recovery ("")."""
        if message["event"] == "recovered":
            self.on_problem("")
            return
        first = message["behind"][0] if message["behind"] else {"path": "", "reason": ""}
        more = message["behind_count"] - 1
        self.on_problem(
            f"mirroring is behind: {first['path']}{f' and {more} more' if more > 0 else ''}: {first['reason']}"
        )


def _flush_and_stop(mirror: MirrorProcess, flush_s: float) -> list[str]:
    """Flush and end the mirror; return the files that are not stored, with the reason."""
    began = time.monotonic()
    report = mirror.flush(flush_s) if flush_s > 0 else mirror.stop(0.0)
    left_s = flush_s - (time.monotonic() - began)
    if not report.answered and left_s > 0 and _has_died(mirror):  # a new process determines what is missing
        report = mirror.flush(left_s)
    mirror.stop(2.0)
    if report.is_complete:
        return []
    if not report.answered:
        return ["everything written last: the mirror did not answer in time"]
    return [f"{late.path}: {late.reason}" for late in report.behind]


def _has_died(mirror: MirrorProcess) -> bool:
    """Return True if the mirror has exited; its pipe closes shortly before."""
    if mirror.process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            mirror.process.wait(1.0)
    return not mirror.is_alive
