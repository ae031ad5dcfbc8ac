"""Append-only lines in files that are always complete: a folder of segments, on any store.

    journal/0001-000001.jsonl  0001-000002.jsonl  ...  0002-000001.jsonl

The newest segment is rewritten under a temporary name and renamed, with every batch of lines until it is long, so that
stores that cannot append can be used. On a local disk lines are appended instead, since a rename over a file waits for
the disk there. A line whose writer died before its end is ignored. Each writer has a number, larger than those before
it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hopsml.errors import PathExists, PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record

LONG_BYTES = 128 << 10  # size at which a segment ends, which limits the cost of writing one more line
_NAME = re.compile(r"^(\d{4,})-(\d{6,})\.jsonl$")


@dataclass(frozen=True)
class Segment:
    """One file of a folder of segments; ``writer`` and ``number`` count from 1."""

    writer: int
    number: int
    url: str


class SegmentWriter:
    """Writer of lines to a folder of segments, for one thread.

    The lines of a call that has returned are in the store.
    """

    def __init__(self, folder: str, writer: int, first: bytes = b"", timeout_s: float | None = None) -> None:
        """Create the writer with the number ``writer``; ``first`` is the present content of its first segment."""
        self._folder, self._writer, self._timeout_s = folder, writer, timeout_s
        self._number, self._kept = 1, first
        self._torn = False
        self._appends = urls.is_local(folder)

    def add(self, lines: Sequence[str]) -> None:
        """Store these lines in their order.

        If StorageError is raised, no line counts as stored, and they may be added again.
        """
        text = self._kept + _bytes(lines)
        url = urls.join(self._folder, _name(self._writer, self._number))
        system = for_url(url, self._timeout_s)
        if self._appends and not self._torn:
            self._torn = True  # until the append has succeeded
            system.append_bytes(url, text[len(self._kept) :])
        else:
            system.write_bytes(url, text)
        self._torn = False
        self._kept = text
        if len(text) >= LONG_BYTES:
            self._number, self._kept = self._number + 1, b""


def register_writer(folder: str, first: Sequence[str], timeout_s: float | None = None) -> tuple[SegmentWriter, int]:
    """Register the next writer of a folder, and return it with its number.

    Concurrent writers get different numbers.

    Args:
        folder: URL of the folder.
        first: lines before all others of this writer.
        timeout_s: deadline of one storage step, in seconds.
    """
    head = _bytes(first)
    number = max((segment.writer for segment in list_segments(folder, timeout_s)), default=0) + 1
    while True:
        url = urls.join(folder, _name(number, 1))
        try:
            for_url(url, timeout_s).write_bytes(url, head, overwrite=False)
        except PathExists:
            number += 1
        else:
            return SegmentWriter(folder, number, head, timeout_s), number


def list_segments(folder: str, timeout_s: float | None = None) -> list[Segment]:
    """Return the segments of a folder, oldest first; empty if there is no folder."""
    try:
        entries = for_url(folder, timeout_s).list_dir(folder)
    except PathNotFound:
        return []
    found = [(_NAME.match(entry.name), entry.url) for entry in entries]
    segments = [Segment(int(match.group(1)), int(match.group(2)), url) for match, url in found if match]
    return sorted(segments, key=lambda segment: (segment.writer, segment.number))


def read_lines_by_writer(folder: str, timeout_s: float | None = None) -> dict[int, list[str]]:
    """Return all lines, by the writer's number, oldest writer first. Raises StorageError."""
    lines: dict[int, list[str]] = {}
    for segment in list_segments(folder, timeout_s):
        try:
            text = read_record(segment.url, timeout_s).decode()
        except UnicodeDecodeError as error:
            raise StorageError(
                f"cannot read {segment.url}: it is not UTF-8 ({error}), so it was changed or damaged; restore the file",
                segment.url,
            ) from error
        lines.setdefault(segment.writer, []).extend(text.split("\n")[:-1])
    return lines


class SegmentReader:
    """Incremental reader of a folder's lines for other processes; only the newest segment is read again."""

    def __init__(self, folder: str, timeout_s: float | None = None) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self._at, self._lines = (0, 0), 0  # the segment that was read last, and the number of its lines read

    def read_new_lines(self) -> list[str]:
        """Return the complete lines added since the last call, in order. Raises StorageError."""
        found = []
        for segment in list_segments(self._folder, self._timeout_s):
            at = (segment.writer, segment.number)
            if at < self._at:
                continue
            text = read_record(segment.url, self._timeout_s).decode(errors="replace")
            lines = text.split("\n")[:-1]
            found += lines[self._lines if at == self._at else 0 :]
            self._at, self._lines = at, len(lines)
        return found


def _bytes(lines: Sequence[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def _name(writer: int, number: int) -> str:
    return f"{writer:04d}-{number:06d}.jsonl"
