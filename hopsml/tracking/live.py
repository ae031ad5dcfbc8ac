"""A run that goes on, seen from its directory alone: what it prints, what it has reported, how it stands."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from hopsml.errors import PathNotFound
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

CHUNK = 1 << 20
TAIL = 64 << 10  # bytes in which the last report is looked for
_LOG = re.compile(r"^g(\d+)-rank(\d+)\.log$")


class Growing:
    """A file of text that others append to; it need not be there yet."""

    def __init__(self, url: str, offset: int = 0) -> None:
        self.url, self._offset = url, offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> Iterator[str]:
        """What has come since the last call, in pieces. Raises StorageError."""
        system = for_url(self.url)
        while True:
            try:
                data = system.read_range(self.url, self._offset, CHUNK)
            except PathNotFound:
                return
            if not data:
                return
            self._offset += len(data)
            yield self._decoder.decode(data)


class Output:
    """What one rank prints, generation after generation."""

    def __init__(self, directory: RunDir, rank: int) -> None:
        self._directory, self._rank = directory, rank
        self._file: Growing | None = None
        self._generation = -1

    def more(self) -> Iterator[str]:
        """What has come since the last call. Raises StorageError."""
        for generation in generations(self._directory, self._rank):
            if generation < self._generation:
                continue
            if generation > self._generation:
                self._generation, self._file = generation, Growing(self._directory.log(generation, self._rank))
            if self._file is not None:
                yield from self._file.more()


class Reports:
    """The lines of ``metrics.jsonl`` as they come."""

    def __init__(self, directory: RunDir) -> None:
        self._file, self._partial = Growing(directory.metrics), ""

    def more(self) -> Iterator[dict[str, Any]]:
        """Reports since the last call. Raises StorageError."""
        for piece in self._file.more():
            *lines, self._partial = (self._partial + piece).split("\n")
            yield from _parsed(lines)


def generations(directory: RunDir, rank: int) -> list[int]:
    """Those of which there is a log of this rank, in order."""
    try:
        entries = for_url(directory.logs).list_dir(directory.logs)
    except PathNotFound:
        return []
    found = [_LOG.match(urls.name(entry.url)) for entry in entries]
    return sorted(int(match[1]) for match in found if match is not None and int(match[2]) == rank)


def last_report(directory: RunDir) -> dict[str, Any]:
    """The newest line of ``metrics.jsonl``; empty where nothing was reported."""
    system = for_url(directory.metrics)
    try:
        length = system.status(directory.metrics).length
        data = system.read_range(directory.metrics, max(0, length - TAIL), TAIL)
    except PathNotFound:
        return {}
    reports = list(_parsed(data.decode(errors="replace").split("\n")))
    return reports[-1] if reports else {}


def _parsed(lines: list[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:  # cut at its beginning, or half written
            continue
        if isinstance(content, dict):
            yield content
