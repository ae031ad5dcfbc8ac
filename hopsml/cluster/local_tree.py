"""The local folders of one worker and, where the run directory is remote, the process that mirrors them there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.storage import urls

if TYPE_CHECKING:
    from hopsml.storage.mirror import MirrorProcess

_FOLDERS = ("events", "logs", "checkpoints", "export")


class LocalTree:
    """``base`` is the run directory itself where it is local, else a folder whose path ends in the run's URL.

    The URL inside the path lets user code and the ``hdfs`` helpers see where a file will be:
    ``/scratch/a1/hdfs://nn:8020/Projects/p/Experiments/app_1/events``.
    """

    def __init__(self, run_url: str, folder: Path, timeout_s: float, on_problem: Callable[[str], None]) -> None:
        self.run_url, self.timeout_s, self.on_problem = run_url, timeout_s, on_problem
        scheme, _, path = urls.split(run_url)
        local = path if scheme in ("", "file") else None
        self.is_mirrored = local is None
        # A string join: pathlib would collapse the two slashes of the URL.
        self.base_text = local if local is not None else f"{folder}/mirror/{run_url}"
        self.base = Path(self.base_text)
        self._mirror: MirrorProcess | None = None

    def url(self, name: str) -> str:
        """Where a file of the tree will be found by others."""
        return f"{self.run_url.rstrip('/')}/{name}"

    async def open(self) -> None:
        """Make the folders; start mirroring. Does nothing where that is done."""
        if self._mirror is not None:
            return
        for name in _FOLDERS:
            (self.base / name).mkdir(parents=True, exist_ok=True)
        if self.is_mirrored:
            from hopsml.storage.mirror import MirrorProcess

            loop = asyncio.get_running_loop()
            self._mirror = MirrorProcess(
                self.base,
                self.run_url,
                timeout_s=self.timeout_s,
                on_message=lambda message: self._pass_on(loop, message),
            )
            self._mirror.start()  # on this thread: it lives as long as the agent

    async def close(self, flush_s: float) -> list[str]:
        """Bring the rest to shared storage within ``flush_s`` seconds; returns what is not there, with the reason."""
        if self._mirror is None:
            return []
        mirror, self._mirror = self._mirror, None
        return await asyncio.to_thread(_flush_and_stop, mirror, flush_s)

    def _pass_on(self, loop: asyncio.AbstractEventLoop, message: dict[str, Any]) -> None:
        """From the mirror's reading thread to the agent's."""
        loop.call_soon_threadsafe(self._on_mirror, message)

    def _on_mirror(self, message: dict[str, Any]) -> None:
        if message["event"] == "recovered":
            self.on_problem("")
            return
        first = message["behind"][0] if message["behind"] else {"path": "", "reason": ""}
        more = message["behind_count"] - 1
        self.on_problem(
            f"mirroring is behind: {first['path']}{f' and {more} more' if more > 0 else ''}: {first['reason']}"
        )


def _flush_and_stop(mirror: MirrorProcess, flush_s: float) -> list[str]:
    report = mirror.flush(flush_s) if flush_s > 0 else mirror.stop(0.0)
    mirror.stop(2.0)
    if report.is_complete:
        return []
    if not report.answered:
        return ["everything written last: the mirror did not answer in time"]
    return [f"{late.path}: {late.reason}" for late in report.behind]
