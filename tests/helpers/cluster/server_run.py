"""Helpers that inspect runs of a chief and its servers."""

from __future__ import annotations

import os
from pathlib import Path

from hopsml.experiment.run import Run
from tests.helpers.cluster.workloads import wait_until


def process_of(run: Run, rank: int) -> int:
    """Return the process of a rank's newest start: the one that writes its log."""

    def found() -> list[tuple[int, int]]:
        writers = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                log = os.readlink(entry / "fd" / "1")
            except OSError:
                continue
            name = os.path.basename(log)
            if f"/{run.run_id}/logs/" in log and name.endswith(f"-rank{rank}.log"):
                writers.append((int(name[1:].partition("-")[0]), int(entry.name)))
        return writers

    return int(max(wait_until(found, f"a process of rank {rank}"))[1])


def noted(run: Run, words: str, times: int = 1) -> None:
    """Wait until a note with these words exists so many times."""

    def is_noted() -> bool:
        assert not run.state.is_over, run.state.error
        return sum(words in note for note in run.state.notes) >= times

    wait_until(is_noted, words, 180)
