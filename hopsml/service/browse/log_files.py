"""The logs of a run or of a trial: which there are, of which rank, and how long."""

from __future__ import annotations

import re

import msgspec

from hopsml.errors import PathNotFound
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

_OF_RANK = re.compile(r"g(\d+)-rank(\d+)\.log")
_OF_TRIAL = "output.log"


class LogFile(msgspec.Struct, frozen=True):
    """``rank`` is None for what a trial printed in a lane; ``bytes``: its length when it was looked at."""

    name: str
    url: str
    generation: int
    rank: int | None
    bytes: int


def found_logs(directory: RunDir) -> list[LogFile]:
    """All logs, by generation and rank; none where nothing was printed. Raises StorageError."""
    found = []
    for folder in (directory.logs, directory.url):
        try:
            entries = for_url(folder).list_dir(folder)
        except PathNotFound:
            continue
        for entry in entries:
            match = _OF_RANK.fullmatch(entry.name)
            if match and folder == directory.logs:
                found.append(LogFile(entry.name, entry.url, int(match[1]), int(match[2]), entry.length))
            elif entry.name == _OF_TRIAL:
                found.append(LogFile(entry.name, entry.url, 0, None, entry.length))
    return sorted(found, key=lambda log: (log.generation, -1 if log.rank is None else log.rank))
