"""Which of a cache's files go, that the others have room; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class CachedPiece:
    """A file of the cache."""

    name: str
    size: int  # bytes
    used_s: float  # when it was last read, or written; seconds since 1970


_FREE = 8  # the part of the bound that is left free, for what other processes write before they look
_LEFT_OF_DISK, _LEFT_BYTES = 10, 10 << 30  # a tenth of the disk is others', or 10 GiB of a large one


def room(most_bytes: int, cached: int, disk_free: int, disk_total: int) -> int:
    """What a cache with ``cached`` bytes in it may hold: within its bound, and with the disk not full by it; 0 or more."""
    others = min(disk_total // _LEFT_OF_DISK, _LEFT_BYTES)
    return max(0, min(most_bytes - most_bytes // _FREE, cached + disk_free - others))


def to_remove(pieces: Iterable[CachedPiece], room: int) -> list[str]:
    """Those that have not been used for longest, until the others have ``room`` bytes at most."""
    newest_first = sorted(pieces, key=lambda piece: (piece.used_s, piece.name), reverse=True)
    kept, removed = 0, list[str]()
    for piece in newest_first:
        if removed or kept + piece.size > room:
            removed.append(piece.name)
        else:
            kept += piece.size
    return removed[::-1]


def missing_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges ``begin, end`` of those that follow one another: each is fetched at once."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
