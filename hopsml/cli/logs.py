"""``hopsml logs RUN``: what a rank printed."""

from __future__ import annotations

import sys


def logs(run: str, rank: int = 0, generation: int | None = None) -> None:
    """Print what one rank of a run has printed, in all generations or in one; RUN is its URL, its path or its id.

    Of a search: what its trials have printed, and of the lanes that carry them out what one of a generation has.
    """
    from hopsml import settings
    from hopsml.cli import searches
    from hopsml.storage import run_logs
    from hopsml.storage.run_dir import find

    directory = find(run, settings.project_url())
    search = searches.seen(directory, directory.read_run()) if generation is None else None
    if search is not None:
        search.more()
    for piece in run_logs.pieces(directory, rank, generation) if search is None else search.output():
        sys.stdout.buffer.write(piece)
