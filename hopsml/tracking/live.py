"""Readers of a running run's directory: its printed output and its reported metrics."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

from hopsml.errors import PathNotFound
from hopsml.storage import run_logs
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir, parse_lines

CHUNK = 1 << 20
TAIL = 64 << 10  # bytes at the file's end that are searched for the last report


class TextReader:
    """Incremental reader of a text file that others append to; the file need not exist yet.

    ``offset`` is the byte at which reading begins.
    """

    def __init__(self, url: str, offset: int = 0) -> None:
        self.url, self._offset = url, offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> Iterator[str]:
        """Return the text added since the last call, in pieces; raises StorageError."""
        for piece in run_logs.read_on(self.url, self._offset, CHUNK):
            self._offset += len(piece)
            yield self._decoder.decode(piece)


class Output:
    """Incremental reader of the printed output of one rank, generation after generation."""

    def __init__(self, directory: RunDir, rank: int) -> None:
        self._directory, self._rank = directory, rank
        self._file: TextReader | None = None
        self._generation = -1

    def more(self) -> Iterator[str]:
        """Return the text added since the last call, in pieces; raises StorageError."""
        for log in run_logs.of_rank(self._directory, self._rank):
            if log.generation < self._generation:
                continue
            if log.generation > self._generation:
                self._generation, self._file = log.generation, TextReader(log.url)
            if self._file is not None:
                yield from self._file.more()


class Reports:
    """Incremental reader of the lines of ``metrics.jsonl``."""

    def __init__(self, directory: RunDir) -> None:
        self._file, self._partial = TextReader(directory.metrics), ""

    def more(self) -> Iterator[dict[str, Any]]:
        """Return the reports since the last call; raises StorageError."""
        for piece in self._file.more():
            complete, _, self._partial = (self._partial + piece).rpartition("\n")
            yield from parse_lines(complete)


def last_report(directory: RunDir) -> dict[str, Any]:
    """Return the newest line of ``metrics.jsonl``; empty if nothing was reported."""
    system = for_url(directory.metrics)
    try:
        length = system.status(directory.metrics).length
        data = system.read_range(directory.metrics, max(0, length - TAIL), TAIL)
    except PathNotFound:
        return {}
    reports = parse_lines(data.decode(errors="replace"))
    return reports[-1] if reports else {}
