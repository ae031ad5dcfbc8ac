"""Memory of a process that no other process shares, from the kernel's account of its mappings; Linux.

A plain unique set size does not measure the cost of an addition: pages of a library are unique to a process until
another process maps the same library, and then the number falls although no memory was freed. So dirty pages always
count, and clean pages of a file only if the file was not mapped before the addition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
_HEAD = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S{4} \S+ \S+ (\d+) *(.*)$")


@dataclass(frozen=True)
class Unique:
    """Bytes that belong to one process alone."""

    dirty: int  # written by the process, anonymous or not
    clean: dict[str, int]  # by file

    @property
    def total_mb(self) -> float:
        """Unique set size in MiB."""
        return (self.dirty + sum(self.clean.values())) / MIB

    def added_mb(self, before: Unique) -> float:
        """Return the MiB added since ``before``: all dirty pages, and clean ones of newly mapped files."""
        new = sum(size for file, size in self.clean.items() if file not in before.clean)
        return (self.dirty - before.dirty + new) / MIB


def of_process(pid: int) -> Unique:
    """Return the present memory of a process.

    Raises:
        OSError: the process has ended, or is another user's.
    """
    return parse(Path(f"/proc/{pid}/smaps").read_text())


def of_family(pids: Sequence[int]) -> int:
    """Return the bytes that related processes have written; a page that several of them share counts once."""
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/smaps").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Dirty:")) * 1024


def parse(smaps: str) -> Unique:
    """Return the memory that the text of /proc/PID/smaps describes."""
    dirty, clean = 0, dict[str, int]()
    for file, kind, size in _private_sizes(smaps):
        if kind == "Private_Dirty":
            dirty += size
        else:
            clean[file] = clean.get(file, 0) + size
    return Unique(dirty, clean)


def _private_sizes(smaps: str) -> Iterator[tuple[str, str, int]]:
    """Yield (mapped file or kind of memory, Private_Clean or Private_Dirty, bytes)."""
    file = ""
    for line in smaps.splitlines():
        if head := _HEAD.match(line):
            file = head[2]
        elif line.startswith(("Private_Clean:", "Private_Dirty:")):
            kind, size, _ = line.split()
            yield file, kind.rstrip(":"), int(size) * 1024
