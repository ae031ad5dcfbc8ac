"""The lines of all logs of a run in the order of their times, filtered, as a list that a page scrolls through.

A log is read once, piece by piece, and kept as eight bytes a line: where it lies. Its text is read again when it is shown,
so that a log of many gigabytes costs the memory of its lines' places alone. A line without a time of its own stands with the
line before it; of logs without any times, the ranks follow one another as far as each has been read.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
from array import array
from collections.abc import Iterator

import msgspec

from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.service.browse.log_files import LogFile, found_logs
from hopsml.service.browse.log_line import LEVELS, level_of, time_of
from hopsml.storage import urls
from hopsml.storage.filesystem import exists, for_url
from hopsml.storage.run_dir import RunDir

CHUNK = 1 << 20
SLICE_S = 0.3  # of reading in one call: the next one goes on
LONGEST_LINE = 16 << 10  # bytes that are shown of a line
MOST_LINES = 2_000  # of one answer
_FILE_BITS = 20  # of the place of a line: which file; the rest is the offset in it


_Found = tuple[float, int, int, int, bytes]  # time, file, offset, level, line


class LogQuery(msgspec.Struct, frozen=True):
    """Which lines: of one rank, from a level on, with a text in them (whatever its case); None and "" ask for all."""

    rank: int | None = None
    level: str = ""
    text: str = ""


class LogLine(msgspec.Struct, frozen=True):
    """``number`` counts from 0 among the lines that were asked for; ``time`` is the text's own, seconds since 1970."""

    number: int
    rank: int | None
    generation: int
    level: str
    time: float | None
    text: str


class LogPage(msgspec.Struct, frozen=True):
    """``total``: lines found so far; ``read`` of ``bytes`` bytes have been looked through."""

    lines: list[LogLine]
    total: int
    read: int
    bytes: int
    ranks: list[int]


class _Tail:
    """One file's lines as they come; one that has no end yet is held back while the file grows."""

    def __init__(self, index: int, log: LogFile, levels: bool) -> None:
        """``levels``: whether anybody asks for them."""
        self.index, self.log, self._levels = index, log, levels
        self.offset = 0  # of the first byte that has not been made a line
        self.time, self.level = 0.0, 1

    def lines(self, ended: bool) -> Iterator[_Found]:
        """Each complete line from the last one on; ``ended``: nobody will complete the last one. Raises StorageError."""
        system, read, rest = for_url(self.log.url), self.offset, b""
        while True:
            try:
                data = system.read_range(self.log.url, read, CHUNK)
            except PathNotFound:
                return
            read += len(data)
            *complete, rest = (rest + data).split(b"\n")
            for line in complete:
                yield self._found(line, 1)
            if rest and ((not data and ended) or len(rest) > CHUNK):  # a bar that never ends its line is cut somewhere
                yield self._found(rest, 0)
                rest = b""
            if not data:
                return

    def _found(self, line: bytes, end: int) -> _Found:
        begin, self.offset = self.offset, self.offset + len(line) + end
        own_time = time_of(line)
        self.time = self.time if own_time is None else max(self.time, own_time)
        if self._levels:
            own_level = level_of(line)
            # A line without a level belongs to the one before it where it is indented, as a traceback's are.
            if own_level is not None or not line.startswith((b" ", b"\t")):
                self.level = 1 if own_level is None else own_level
        return self.time, self.index, begin, self.level, line


class LogView:
    """The lines that one query asks for; ``more`` goes on reading. For several threads."""

    def __init__(self, directory: RunDir, query: LogQuery) -> None:
        """Raises ArgumentError for a level that there is not."""
        if query.level and query.level not in LEVELS:
            raise ArgumentError(f"level={query.level!r}: it is one of {', '.join(LEVELS)}")
        self._directory, self._query = directory, query
        self._lowest = LEVELS.index(query.level) if query.level else 0
        self._text = query.text.lower().encode()
        self._lock, self._lines = threading.Lock(), array("Q")
        self._tails: dict[str, _Tail] = {}
        self._files: list[LogFile] = []
        self._merged: Iterator[_Found] | None = None
        self._bytes, self._ranks = 0, list[int]()
        self.held_bytes = 0  # of memory, after the last look

    def more(self, slice_s: float = SLICE_S) -> None:
        """Look through what has come, for about ``slice_s`` seconds. Raises StorageError."""
        with self._lock:
            if self._merged is None:
                ended = self._is_over()
                self._merged = heapq.merge(*(tail.lines(ended) for tail in self._due()))
            try:
                self._take(self._merged, time.monotonic() + slice_s)
            except StorageError:  # lines that had been read and not taken are lost: the next call begins anew
                self._lines, self._tails, self._files, self._merged = array("Q"), {}, [], None
                raise
            finally:
                pieces = 2 * CHUNK * len(self._tails) if self._merged is not None else 0
                self.held_bytes = sys.getsizeof(self._lines) + pieces

    def _take(self, merged: Iterator[_Found], until: float) -> None:
        lines = self._lines
        for number, (_, file, offset, level, line) in enumerate(merged, 1):
            if level >= self._lowest and (not self._text or self._text in line.lower()):
                lines.append(offset << _FILE_BITS | file)
            if number % 1024 == 0 and time.monotonic() > until:
                return
        self._merged = None

    def _is_over(self) -> bool:
        records = self._directory.status_json, urls.join(self._directory.url, "trial.json")
        return any(exists(one) for one in records)

    def _due(self) -> list[_Tail]:
        logs = found_logs(self._directory)
        self._ranks = sorted({log.rank for log in logs if log.rank is not None})
        wanted = [log for log in logs if self._query.rank in (None, log.rank)]
        self._bytes = sum(log.bytes for log in wanted)
        for log in wanted:
            if log.url not in self._tails:
                self._tails[log.url] = _Tail(len(self._files), log, bool(self._lowest))
                self._files.append(log)
        return list(self._tails.values())

    def page(self, offset: int, limit: int) -> LogPage:
        """Lines from ``offset`` on; a negative one counts from the end. Raises ArgumentError, StorageError."""
        if not 0 <= limit <= MOST_LINES:
            raise ArgumentError(f"limit={limit}: 0 to {MOST_LINES} lines at once")
        with self._lock:
            total = len(self._lines)
            begin = max(0, total + offset) if offset < 0 else offset
            places = self._lines[begin : begin + limit]
            read, size = sum(tail.offset for tail in self._tails.values()), self._bytes
        lines = [self._line(begin + at, place) for at, place in enumerate(_texts(self._files, places))]
        return LogPage(lines, total, read, max(size, read), self._ranks)

    def find(self, text: str, begin: int, backwards: bool = False) -> int | None:
        """The number of the next line, from ``begin`` on, that holds a text, whatever its case; None without one."""
        wanted = text.lower()
        with self._lock:
            total = len(self._lines)
        step = MOST_LINES
        starts = range(begin // step * step, -1, -step) if backwards else range(max(0, begin), total, step)
        for start in starts:
            page = self.page(start, min(step, begin - start + 1) if backwards else step)
            hits = [line.number for line in page.lines if wanted in line.text.lower()]
            if hits:
                return hits[-1] if backwards else hits[0]
        return None

    def _line(self, number: int, found: tuple[LogFile, bytes]) -> LogLine:
        log, line = found
        level = level_of(line)
        text = line.rstrip(b"\r").decode(errors="replace")
        return LogLine(number, log.rank, log.generation, "" if level is None else LEVELS[level], time_of(line), text)


def _texts(files: list[LogFile], places: array[int]) -> list[tuple[LogFile, bytes]]:
    """The lines at these places; those of one file that lie close together are read in one piece."""
    texts: dict[int, bytes] = {}
    by_file: dict[int, list[int]] = {}
    for place in places:
        by_file.setdefault(place & ((1 << _FILE_BITS) - 1), []).append(place >> _FILE_BITS)
    for file, offsets in by_file.items():
        for group in _close(sorted(offsets)):
            url = files[file].url
            data = for_url(url).read_range(url, group[0], group[-1] - group[0] + LONGEST_LINE)
            for offset in group:
                begin = offset - group[0]
                end = data.find(b"\n", begin, begin + LONGEST_LINE)
                texts[offset << _FILE_BITS | file] = data[begin : end if end >= 0 else begin + LONGEST_LINE]
    return [(files[place & ((1 << _FILE_BITS) - 1)], texts[place]) for place in places]


def _close(offsets: list[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for offset in offsets:
        if group and (offset - group[-1] > LONGEST_LINE or offset - group[0] > CHUNK):
            yield group
            group = []
        group.append(offset)
    if group:
        yield group
