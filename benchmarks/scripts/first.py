"""The report of a first step, the same for every launcher."""

from __future__ import annotations

import os
import time
from pathlib import Path


def report(folder: str, rank: int) -> None:
    """Say that ``rank`` has finished its first step now, by the clock that all processes of the machine share."""
    now = time.monotonic()
    aside = Path(folder, f"{rank}.first.tmp")
    aside.write_text(repr(now))
    os.replace(aside, Path(folder, f"{rank}.first"))
