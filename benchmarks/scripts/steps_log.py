"""Log of every finished step of every worker, with its time, from which recoveries are measured for every launcher."""

from __future__ import annotations

import os
import time
from pathlib import Path


class StepsLog:
    """Log of lines ``step time`` in ``<generation>.<rank>.<pid>.steps``; the clock is the machine's monotonic one."""

    def __init__(self, folder: str, rank: int, generation: int = 0) -> None:
        self.generation = generation
        self._descriptor = os.open(
            Path(folder, f"{generation}.{rank}.{os.getpid()}.steps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )

    def finished(self, step: int) -> None:
        """Record that this worker has finished a step."""
        os.write(self._descriptor, f"{step} {time.monotonic()!r}\n".encode())
