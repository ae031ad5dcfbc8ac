"""Readers of a running run's directory: its printed output and its reported metrics."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

import msgspec

from hopsml.errors import PathNotFound
from hopsml.search.metric import is_of_batch
from hopsml.storage import run_logs
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir, parse_lines
from hopsml.tracking import catalog

CHUNK = 1 << 20
LONGEST_LINE = 8 << 20  # most characters of a report
TAIL = 64 << 10  # bytes at the file's end that are searched for the last report
_decoder = msgspec.json.Decoder(dict[str, Any])


def empty_log_note(directory: RunDir, rank: int, generation: int | None = None) -> str:
    """Return a sentence on the logs of a rank that have no content; "" if one has. Raises StorageError."""
    logs = run_logs.found_logs(directory)
    own = [log for log in logs if log.rank == rank and generation in (None, log.generation)]
    if any(log.bytes for log in own):
        return ""
    others = sorted({log.rank for log in logs if log.rank not in (rank, None) and log.bytes})
    return (
        f"rank {rank} of run {directory.run_id} has printed nothing: {', '.join(log.url for log in own)} "
        f"{'is' if len(own) == 1 else 'are'} empty (state of the run: {catalog.read(directory, brief=True).state}); "
        + (f"output of other ranks: {', '.join(map(str, others))}" if others else "no rank has printed anything")
    )


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
    """Incremental reader of a JSON lines file that other processes append to."""

    def __init__(self, url: str) -> None:
        self._file, self._partial = TextReader(url), ""
        self._has_reports = True

    def more(self) -> Iterator[dict[str, Any]]:
        """Yield the reports that were appended since the last call."""
        for piece in self._file.more() if self._has_reports else ():
            complete, _, self._partial = (self._partial + piece).rpartition("\n")
            # not written by hopsml: reading a sparse file to its end would take hours
            if len(self._partial) > LONGEST_LINE:
                self._has_reports, self._partial = False, ""
                return
            try:
                yield from _decoder.decode_lines(complete)
            # a NaN, which Python writes but JSON does not allow; or invalid JSON
            except (msgspec.MsgspecError, RecursionError):
                yield from parse_lines(complete)


def last_report(directory: RunDir) -> dict[str, Any]:
    """Return the newest line of ``metrics.jsonl``; empty if nothing was reported."""
    reports = _last_reports(directory)
    return reports[-1] if reports else {}


def newest_values(directory: RunDir) -> dict[str, Any]:
    """Return the newest value of each metric among the last reports, those within epochs after all others."""
    values = {name: value for report in _last_reports(directory) for name, value in report.items()}
    return {name: values[name] for name in sorted(values, key=is_of_batch) if name not in ("step", "time")}


def _last_reports(directory: RunDir) -> list[dict[str, Any]]:
    """Return the reports at the end of ``metrics.jsonl``, oldest first."""
    system = for_url(directory.metrics)
    try:
        length = system.status(directory.metrics).length
        data = system.read_range(directory.metrics, max(0, length - TAIL), TAIL)
    except PathNotFound:
        return []
    return parse_lines(data.decode(errors="replace"))
