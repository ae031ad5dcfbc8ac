"""Times at which each worker had finished its first step, from files that the training scripts write.

The clock is the machine's monotonic one, which all of its processes share.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.launched import Launched

TIMEOUT_S = 170.0


def times(folder: Path) -> dict[int, float]:
    """Return rank -> time of the workers that have finished their first step."""
    return {int(path.stem): float(path.read_text()) for path in folder.glob("*.first")}


def wait(launched: Launched, folder: Path, workers: int, timeout_s: float = TIMEOUT_S) -> float:
    """Return the time at which the last of ``workers`` had finished its first step.

    Raises:
        RuntimeError: a process failed, or a worker made no step within ``timeout_s`` seconds.
    """
    launched.wait_until(lambda: len(times(folder)) >= workers, timeout_s, f"the first step of {workers} workers")
    return max(times(folder).values())
