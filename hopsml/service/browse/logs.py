"""Merged and filtered view of all log lines of a run, in the order of their times, for scrolling in a page; zip archive.

A log is read once, in pieces; eight bytes per line are stored, with its position. The text is read again when it is
displayed, so that a log of many gigabytes needs memory for the positions of its lines only. A line without a time
follows the line before it; in logs without any times, the ranks follow one another as far as each was read. The archive
of all logs is created while it is sent: about a megabyte is in memory, whatever their length.
"""

from __future__ import annotations

import functools
import heapq
import io
import re
import sys
import threading
import time
import zipfile
from array import array
from collections.abc import Iterator
from datetime import datetime

import msgspec

from hopsml.core.harmless_output import is_harmless
from hopsml.errors import ArgumentError, StorageError
from hopsml.service.browse import files
from hopsml.storage import run_logs, urls
from hopsml.storage.filesystem import exists, for_url
from hopsml.storage.run_dir import RunDir
from hopsml.storage.run_logs import LogFile, list_logs


class _Sink(io.RawIOBase):
    """Output of the zip writer that was not sent yet; it is not seekable."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        """Return True, as the zip writer requires."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # the signature that the zip writer uses
        """Append bytes, and return their number."""
        self._pieces.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        """Return the bytes that were written since the last call."""
        whole, self._pieces = b"".join(self._pieces), []
        return whole


def zip_logs(directory: RunDir, now: float) -> Iterator[bytes]:
    """Yield the zip archive of a run's logs in pieces.

    A log that grows is included with the length that it has at the start.

    Args:
        directory: The run's directory.
        now: The time, in seconds since 1970, for the entries.

    Raises:
        StorageError: A log cannot be read.
    """
    logs, sink = list_logs(directory), _Sink()
    moment = time.gmtime(now)[:6]
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for log in logs:
            entry = zipfile.ZipInfo(f"{directory.run_id}/{log.name}", moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                for piece in files.read_pieces(log.url, 0, log.bytes):
                    member.write(piece)
                    if ready := sink.taken():
                        yield ready
    yield sink.taken()


LEVELS = ("debug", "info", "warning", "error")
_TIME = re.compile(rb"\D{0,3}(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_HEAD = 160  # bytes of a line that are searched for its level
_LEVEL = re.compile(
    rb"\b(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b"
    rb"|^(?:(?=[IWEF]\d{4} )|\d{4}-\d\d-\d\d [\d:.]+: (?=[IWEF] ))([IWEF])"
    rb"|^(Traceback \(most recent call last\))|^(\w*(?:Error|Exception))\b"
)
_OF_WORD = {b"DEBUG": 0, b"INFO": 1, b"WARN": 2, b"WARNING": 2, b"ERROR": 3, b"CRITICAL": 3, b"FATAL": 3}
_OF_LETTER = {b"I": 1, b"W": 2, b"E": 3, b"F": 3}


def time_of(line: bytes) -> float | None:
    """Return the time at the beginning of a line, in seconds since 1970; None if there is none."""
    found = _TIME.match(line)
    if not found:
        return None
    whole = _seconds(*found.groups()[:6])
    return whole if whole is None or not found[7] else whole + float(b"0." + found[7])


@functools.lru_cache(1024)
def _seconds(*parts: bytes) -> float | None:
    """Return the time of day in seconds since 1970; cached, as many lines share a second and time zones are slow."""
    year, month, day, hour, minute, second = map(int, parts)
    try:
        return datetime(year, month, day, hour, minute, second).timestamp()
    except (ValueError, OverflowError):  # an invalid date, such as the 31st of February
        return None


def level_of(line: bytes) -> int | None:
    """Return the index in ``LEVELS`` of the level that a line names near its beginning; None if it names none.

    Messages of TensorFlow and XLA that report no problem, such as the missing driver of a host without a GPU, are "info".
    """
    found = _LEVEL.search(line[:_HEAD])
    if not found:
        return None
    named = _OF_WORD[found[1]] if found[1] else _OF_LETTER[found[2]] if found[2] else 3
    return 1 if named > 1 and is_harmless(line) else named


CHUNK = 1 << 20
SLICE_S = 0.3  # seconds of reading in one call; the next call continues
LONGEST_LINE = 16 << 10  # most bytes of a line that are displayed
MOST_LINES = 2_000  # most lines of one response
_FILE_BITS = 20  # bits of a line's position for the number of its file; the others are the offset in the file


_Found = tuple[float, int, int, int, bytes]  # time, file, offset, level, line


class LogQuery(msgspec.Struct, frozen=True):
    """Filter of log lines.

    Attributes:
        rank: Rank of the worker; None for all.
        level: Lowest level; empty for all.
        text: Text that lines contain, in any case; empty for all.
    """

    rank: int | None = None
    level: str = ""
    text: str = ""


class LogLine(msgspec.Struct, frozen=True):
    """A log line that matches a query.

    Attributes:
        number: Number among the matching lines, from 0.
        rank: Rank of the worker; None for a trial.
        generation: Generation of the group.
        level: Level that the line names; empty if none.
        time: Time that the line names, in seconds since 1970; None if none.
        text: Text of the line.
    """

    number: int
    rank: int | None
    generation: int
    level: str
    time: float | None
    text: str


class LogPage(msgspec.Struct, frozen=True):
    """A page of the lines that match a query.

    Attributes:
        lines: The lines of the page.
        total: Number of matching lines that were found so far.
        read: Bytes of the logs that were searched so far.
        bytes: Length of the logs, in bytes.
        ranks: Ranks that have logs.
    """

    lines: list[LogLine]
    total: int
    read: int
    bytes: int
    ranks: list[int]


class _Tail:
    """Reader of one file's lines while it grows; an incomplete last line is withheld until it is complete."""

    def __init__(self, index: int, log: LogFile, levels: bool) -> None:
        """Start at the beginning of a file.

        Args:
            index: Number of the file in the view.
            log: The file.
            levels: True if levels must be parsed, as the query filters by them.
        """
        self.index, self.log, self._levels = index, log, levels
        self.offset = 0  # of the first byte after the last complete line
        self.time, self.level = 0.0, 1

    def lines(self, ended: bool) -> Iterator[_Found]:
        """Yield each complete line after the last one that was read.

        Args:
            ended: True if the log does not grow any more, so that its last line is complete.

        Raises:
            StorageError: The file cannot be read.
        """
        rest = b""
        for data in run_logs.read_from_offset(self.log.url, self.offset, CHUNK):
            *complete, rest = (rest + data).split(b"\n")
            for line in complete:
                yield self._found(line, 1)
            if len(rest) > CHUNK:  # a progress bar that never ends its line is split somewhere
                yield self._found(rest, 0)
                rest = b""
        if rest and ended:
            yield self._found(rest, 0)

    def _found(self, line: bytes, end: int) -> _Found:
        """Return a line with its time, position and level, and advance the offset; ``end`` is 1 for a line break."""
        begin, self.offset = self.offset, self.offset + len(line) + end
        own_time = time_of(line)
        self.time = self.time if own_time is None else max(self.time, own_time)
        if self._levels:
            own_level = level_of(line)
            # An indented line without a level belongs to the line before it, as in a traceback.
            if own_level is not None or not line.startswith((b" ", b"\t")):
                self.level = 1 if own_level is None else own_level
        return self.time, self.index, begin, self.level, line


class LogView:
    """Lines that match one query; ``more`` reads on. Thread-safe."""

    def __init__(self, directory: RunDir, query: LogQuery) -> None:
        """Initialize the view without reading. Raises ArgumentError for an unknown level."""
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
        self.held_bytes = 0  # memory in bytes, after the last read

    def more(self, slice_s: float = SLICE_S) -> None:
        """Search new text for about ``slice_s`` seconds. Raises StorageError."""
        with self._lock:
            if self._merged is None:
                ended = self._is_over()
                self._merged = heapq.merge(*(tail.lines(ended) for tail in self._due()))
            try:
                self._take(self._merged, time.monotonic() + slice_s)
            except StorageError:  # lines that were read and not stored are lost: the next call starts at the beginning
                self._lines, self._tails, self._files, self._merged = array("Q"), {}, [], None
                raise
            finally:
                pieces = 2 * CHUNK * len(self._tails) if self._merged is not None else 0
                self.held_bytes = sys.getsizeof(self._lines) + pieces

    def _take(self, merged: Iterator[_Found], until: float) -> None:
        """Store the positions of matching lines until a time, or until all lines were read."""
        lines = self._lines
        for number, (_, file, offset, level, line) in enumerate(merged, 1):
            if level >= self._lowest and (not self._text or self._text in line.lower()):
                lines.append(offset << _FILE_BITS | file)
            if number % 1024 == 0 and time.monotonic() > until:
                return
        self._merged = None

    def _is_over(self) -> bool:
        """Return True if the run or trial has ended."""
        records = self._directory.status_json, urls.join(self._directory.url, "trial.json")
        return any(exists(one) for one in records)

    def _due(self) -> list[_Tail]:
        """Return readers of all files that match the query; new files are added."""
        logs = list_logs(self._directory)
        self._ranks = sorted({log.rank for log in logs if log.rank is not None})
        wanted = [log for log in logs if self._query.rank in (None, log.rank)]
        self._bytes = sum(log.bytes for log in wanted)
        for log in wanted:
            if log.url not in self._tails:
                self._tails[log.url] = _Tail(len(self._files), log, bool(self._lowest))
                self._files.append(log)
        return list(self._tails.values())

    def page(self, offset: int, limit: int) -> LogPage:
        """Return a page of lines from ``offset`` on, which counts from the end if negative.

        Raises ArgumentError, StorageError.
        """
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
        """Return the number of the next matching line that contains a text; None if there is none.

        Args:
            text: The text, in any case.
            begin: Number of the first line to search.
            backwards: True to search towards the beginning.
        """
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
        """Convert the bytes of a line to a ``LogLine``."""
        log, line = found
        level = level_of(line)
        text = line.rstrip(b"\r").decode(errors="replace")
        return LogLine(number, log.rank, log.generation, "" if level is None else LEVELS[level], time_of(line), text)


def _texts(files: list[LogFile], places: array[int]) -> list[tuple[LogFile, bytes]]:
    """Return the text of the lines at these positions.

    Lines of a file that are close together are read in one piece.
    """
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
    """Group ascending offsets that are close enough to be read in one piece."""
    group: list[int] = []
    for offset in offsets:
        if group and (offset - group[-1] > LONGEST_LINE or offset - group[0] > CHUNK):
            yield group
            group = []
        group.append(offset)
    if group:
        yield group
