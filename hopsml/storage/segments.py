"""Lines that are kept as they come, in files that are always complete: a folder of segments, on any store.

    journal/0001-000001.jsonl  0001-000002.jsonl  ...  0002-000001.jsonl

The newest segment is written anew, aside and renamed, with every batch of lines until it is long: a store that cannot append
does as well as any other. On a local disk lines are appended, as a rename over a file waits for the disk there. A line that
its writer did not live to end is none. Each writer has a number, larger than those before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hopsml.errors import PathExists, PathNotFound
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record

LONG_BYTES = 128 << 10  # of a segment: what one more line costs to write, at most
_NAME = re.compile(r"^(\d{4,})-(\d{6,})\.jsonl$")


@dataclass(frozen=True)
class Segment:
    """One file of lines; ``writer`` and ``number`` count from 1."""

    writer: int
    number: int
    url: str


class SegmentWriter:
    """Adds lines; for one thread. The lines of a call that has returned are in the store."""

    def __init__(self, folder: str, writer: int, first: bytes = b"", timeout_s: float | None = None) -> None:
        """``first``: what the first segment holds already."""
        self._folder, self._writer, self._timeout_s = folder, writer, timeout_s
        self._number, self._kept = 1, first
        self._torn = False
        self._appends = urls.is_local(folder)

    def add(self, lines: Sequence[str]) -> None:
        """Keep these lines, in their order. Raises StorageError; then none of them counts, and they may be added again."""
        text = self._kept + _bytes(lines)
        url = urls.join(self._folder, _name(self._writer, self._number))
        system = for_url(url, self._timeout_s)
        if self._appends and not self._torn:
            self._torn = True  # until it is known that all of it is there
            system.append_bytes(url, text[len(self._kept) :])
        else:
            system.write_bytes(url, text)
        self._torn = False
        self._kept = text
        if len(text) >= LONG_BYTES:
            self._number, self._kept = self._number + 1, b""


def begin(folder: str, first: Sequence[str], timeout_s: float | None = None) -> tuple[SegmentWriter, int]:
    """The next writer of a folder, and its number; of several that begin at once, each gets a number of its own.

    ``first``: lines that stand before all others of this writer.
    """
    head = _bytes(first)
    number = max((segment.writer for segment in listed(folder, timeout_s)), default=0) + 1
    while True:
        url = urls.join(folder, _name(number, 1))
        try:
            for_url(url, timeout_s).write_bytes(url, head, overwrite=False)
        except PathExists:
            number += 1
        else:
            return SegmentWriter(folder, number, head, timeout_s), number


def listed(folder: str, timeout_s: float | None = None) -> list[Segment]:
    """The segments of a folder, oldest first; none where there is no folder."""
    try:
        entries = for_url(folder, timeout_s).list_dir(folder)
    except PathNotFound:
        return []
    found = [(_NAME.match(entry.name), entry.url) for entry in entries]
    segments = [Segment(int(match.group(1)), int(match.group(2)), url) for match, url in found if match]
    return sorted(segments, key=lambda segment: (segment.writer, segment.number))


def lines_of(folder: str, timeout_s: float | None = None) -> dict[int, list[str]]:
    """All lines, by the writer's number, oldest writer first."""
    lines: dict[int, list[str]] = {}
    for segment in listed(folder, timeout_s):
        text = read_record(segment.url, timeout_s).decode()
        lines.setdefault(segment.writer, []).extend(text.split("\n")[:-1])
    return lines


class SegmentReader:
    """The lines of a folder as they come, for who does not write them; only the newest segment is read again."""

    def __init__(self, folder: str, timeout_s: float | None = None) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self._at, self._lines = (0, 0), 0  # the segment that was read last, and how many of its lines

    def new_lines(self) -> list[str]:
        """Complete lines that have come since the last call, in order. Raises StorageError."""
        found = []
        for segment in listed(self._folder, self._timeout_s):
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
