"""List of the log files of a run or trial, with their ranks and lengths."""

from __future__ import annotations

import re

import msgspec

from hopsml.errors import PathNotFound
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

_OF_RANK = re.compile(r"g(\d+)-rank(\d+)\.log")
_OF_TRIAL = "output.log"


class LogFile(msgspec.Struct, frozen=True):
    """A log file of a run or trial.

    Attributes:
        name: Name of the file.
        url: URL of the file.
        generation: Generation of the group that printed it.
        rank: Rank of the worker; None for the log of a trial in a trial slot (lane).
        bytes: Length of the file when it was listed.
    """

    name: str
    url: str
    generation: int
    rank: int | None
    bytes: int


def found_logs(directory: RunDir) -> list[LogFile]:
    """List all logs by generation and rank; the list is empty if nothing was printed. Raises StorageError."""
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
