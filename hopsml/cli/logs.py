"""``hopsml runs logs``: output of one rank of a run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hopsml.cli.options import RunArgument


def logs(
    run: RunArgument,
    rank: Annotated[int, typer.Option(help="Rank of the worker.")] = 0,
    generation: Annotated[
        int | None, typer.Option(help="Generation of the group, from 0. Default: all generations.")
    ] = None,
) -> None:
    """Print the output of one rank of a run; of a search, the output of its trials.

    With --generation, the output of a search is that of the trial slot with this rank.
    """
    from hopsml.cli import searches
    from hopsml.core import settings
    from hopsml.storage import run_logs
    from hopsml.storage.run_dir import find

    directory = find(run, settings.project_url())
    search = searches.seen(directory, directory.read_run()) if generation is None else None
    if search is not None:
        search.more()
    for piece in run_logs.pieces(directory, rank, generation) if search is None else search.output():
        sys.stdout.buffer.write(piece)
