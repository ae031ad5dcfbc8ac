"""``hopsml logs RUN``: what a rank printed."""

from __future__ import annotations

import sys


def logs(run: str, rank: int = 0, generation: int | None = None) -> None:
    """Print what one rank of a run has printed, in all generations or in one; RUN is its URL, its path or its id."""
    from hopsml import settings
    from hopsml.storage import run_logs
    from hopsml.storage.runs import find

    directory = find(run, settings.project_url())
    for piece in run_logs.pieces(directory, rank, generation):
        sys.stdout.buffer.write(piece)
