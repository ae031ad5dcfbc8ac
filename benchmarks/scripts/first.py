"""Report of a worker's first step, the same for every launcher."""

from __future__ import annotations

import os
import time
from pathlib import Path


def report(folder: str, rank: int) -> None:
    """Write the present monotonic time as the end of the first step of ``rank``."""
    now = time.monotonic()
    aside = Path(folder, f"{rank}.first.tmp")
    aside.write_text(repr(now))
    os.replace(aside, Path(folder, f"{rank}.first"))
