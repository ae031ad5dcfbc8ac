"""When each worker had finished its first step: files that the training scripts write themselves.

The clock is the machine's monotonic one, which all of its processes share.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.launched import Launched

TIMEOUT_S = 170.0


def times(folder: Path) -> dict[int, float]:
    """Rank -> time of the workers that are there already."""
    return {int(path.stem): float(path.read_text()) for path in folder.glob("*.first")}


def wait(launched: Launched, folder: Path, workers: int, timeout_s: float = TIMEOUT_S) -> float:
    """The time at which the last of ``workers`` had finished its first step. Raises RuntimeError when one has not."""
    launched.wait_until(lambda: len(times(folder)) >= workers, timeout_s, f"the first step of {workers} workers")
    return max(times(folder).values())
