"""Selection of the cached files to remove, and of the blocks to fetch together; pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class CachedPiece:
    """One file of the cache, with its size and time of last use."""

    name: str
    size: int  # bytes
    used_s: float  # time of the last read or write; seconds since 1970


_FREE = 8  # 1/8 of the bound stays free, for what other processes write between their checks
_LEFT_OF_DISK, _LEFT_BYTES = 10, 10 << 30  # space reserved for others: a tenth of the disk, at most 10 GiB


def room(most_bytes: int, cached: int, disk_free: int, disk_total: int) -> int:
    """Return how many bytes the cache may hold, within its bound and without filling the disk; 0 or more.

    Args:
        most_bytes: bound of the cache.
        cached: bytes that it holds now.
        disk_free: free bytes of its disk.
        disk_total: bytes of its disk.
    """
    others = min(disk_total // _LEFT_OF_DISK, _LEFT_BYTES)
    return max(0, min(most_bytes - most_bytes // _FREE, cached + disk_free - others))


def to_remove(pieces: Iterable[CachedPiece], room: int) -> list[str]:
    """Return the names of the least recently used files, whose removal leaves ``room`` bytes at most.

    The oldest comes first.
    """
    newest_first = sorted(pieces, key=lambda piece: (piece.used_s, piece.name), reverse=True)
    kept, removed = 0, list[str]()
    for piece in newest_first:
        if removed or kept + piece.size > room:
            removed.append(piece.name)
        else:
            kept += piece.size
    return removed[::-1]


def missing_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the maximal runs of consecutive numbers as ranges (begin, end); each range is fetched by one request.

    Args:
        numbers: block numbers, ascending.
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
