"""``hopsml logs RUN``: what a rank printed."""

from __future__ import annotations

import sys


def logs(run: str, rank: int = 0, generation: int = 0) -> None:
    """Print the log of one rank of a run; RUN is its URL, its path or its id."""
    from hopsml import settings
    from hopsml.storage.filesystem import for_url
    from hopsml.storage.runs import find

    directory = find(run, settings.project_url())
    url = directory.log(generation, rank)
    sys.stdout.buffer.write(for_url(url).read_bytes(url))
