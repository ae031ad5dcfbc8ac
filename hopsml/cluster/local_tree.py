"""The local folders of one worker and, where the run directory is remote, the process that mirrors them there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hopsml.storage import filesystem

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
        local = filesystem.local_path(run_url)
        self.is_mirrored = local is None
        # A string join: pathlib would collapse the two slashes of the URL.
        self.base_text = str(local) if local is not None else f"{folder}/mirror/{run_url}"
        self.base = Path(self.base_text)
        self._mirror: MirrorProcess | None = None
        self._watch: asyncio.Task[None] | None = None

    def url(self, name: str) -> str:
        """Where a file of the tree will be found by others."""
        return f"{self.run_url.rstrip('/')}/{name}"

    async def open(self) -> None:
        """Make the folders; start mirroring."""
        for name in _FOLDERS:
            (self.base / name).mkdir(parents=True, exist_ok=True)
        if self.is_mirrored:
            from hopsml.storage.mirror import MirrorProcess

            self._mirror = MirrorProcess(self.base, self.run_url, timeout_s=self.timeout_s)
            self._mirror.start()

    async def close(self, flush_s: float) -> list[str]:
        """Bring the rest to shared storage within ``flush_s`` seconds; returns what is not there, with the reason."""
        if self._mirror is None:
            return []
        mirror, self._mirror = self._mirror, None
        return await asyncio.to_thread(mirror.stop, flush_s)
