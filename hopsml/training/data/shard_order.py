"""Row order of a data set, and its division among the workers; pure functions.

A shard is the unit of reading: a row group of a Parquet file, or a file. An epoch covers all shards, in an order that
depends on the seed. Each worker has one contiguous stretch of it, so that only the shards at the ends of stretches are
read by two workers; it shuffles the rows within windows of its stretch. A global batch consists of the next rows of
every worker.

If the group changes in the middle of an epoch, the unread rows of all workers, in their order, are divided again: the
leg of the epoch that begins then continues exactly after the rows where the last one stopped.

Shards that are still being produced when the training begins arrive in waves, each with its own leg in the first epoch:
the full batches of the available rows are divided, and the remaining rows come before those of the next wave.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Wave:
    """Shards that become known together: the number of rows of each, by the shard's number."""

    shards: Mapping[int, int]
    is_last: bool


class Shards(Protocol):
    """Interface of the shards of a data set, which may become known in waves; identical on all workers."""

    @property
    def identity(self) -> Mapping[str, int]:
        """Numbers that distinguish the data set from others, as far as they are known from the beginning."""

    @property
    def is_complete(self) -> bool:
        """True if all shards are known."""

    def wave(self, number: int) -> Wave:
        """Return the wave with this number, from 0, in the order in which waves become known; waits for it."""

    def all_shards(self) -> Mapping[int, int]:
        """Return all shards in an order that does not depend on the waves; waits for the last one."""


class KnownShards:
    """Shards that are all known from the beginning, numbered in the order of ``rows``."""

    is_complete = True

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = tuple(rows)

    @property
    def identity(self) -> dict[str, int]:
        """Total number of rows, and a checksum of the row counts of all shards."""
        return {"rows": sum(self._rows), "shards": zlib.crc32(",".join(map(str, self._rows)).encode())}

    def wave(self, number: int) -> Wave:
        """Return the only wave, with all shards."""
        return Wave(self.all_shards(), True)

    def all_shards(self) -> dict[int, int]:
        """Return the row counts of all shards, by number."""
        return dict(enumerate(self._rows))


def first_nonempty_shard(shards: Shards) -> int | None:
    """Return the first shard that has rows, the same on all workers; None if the data has no rows. May wait."""
    for number in itertools.count():
        wave = shards.wave(number)
        filled = next((shard for shard, rows in wave.shards.items() if rows), None)
        if filled is not None or wave.is_last:
            return filled
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class Span:
    """Rows from ``begin`` up to, not including, ``end`` of a shard."""

    shard: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """Rows ``begin`` to ``end`` of the permutation, seeded by ``key``, of the rows of ``parts``."""

    parts: tuple[Piece, ...]
    key: tuple[int, ...]
    begin: int
    end: int

    @property
    def full_window(self) -> Window:
        """Window of all rows that are shuffled together."""
        return Window(self.parts, self.key, 0, sum(map(row_count, self.parts)))


Piece = Span | Window


@dataclass(frozen=True, slots=True)
class EpochLeg:
    """Part of an epoch with a fixed group: ``done`` batches of ``batch_size`` rows, read by ``workers`` workers.

    ``waves`` is the number of waves whose rows it includes. ``is_last`` is True if no further wave follows; otherwise
    only full batches are divided.
    """

    workers: int
    batch_size: int
    done: int = 0
    waves: int = 1
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Settings of the row order that are constant in a training; ``window`` rows are shuffled together, 0 for none."""

    seed: int
    window: int
    drop_last: bool

    def ordered_rows(self, shards: Mapping[int, int], key: tuple[int, ...]) -> list[Piece]:
        """Return all rows of these shards in the order in which a leg divides them among the workers.

        Args:
            shards: number of rows of each shard.
            key: seeds the order, together with ``seed``.
        """
        numbers = list(shards)
        if self.window:
            numbers = [numbers[place] for place in _permutation((self.seed, *key), len(numbers))]
        return [Span(shard, 0, shards[shard]) for shard in numbers if shards[shard]]

    def count_batches(self, left: int, leg: EpochLeg) -> int:
        """Return the number of global batches of a leg with ``left`` rows."""
        return left // leg.batch_size if self._leaves_rest(leg) else -(-left // leg.batch_size)

    def _leaves_rest(self, leg: EpochLeg) -> bool:
        """Return True if rows that do not fill a batch are left out, or left to the next leg."""
        return self.drop_last or not leg.is_last

    def divide_rows(self, left: Sequence[Piece], leg: EpochLeg) -> list[list[Piece]]:
        """Divide the rows of a leg.

        Return the stretch of each worker, not shuffled, and last the rows that this leg leaves out.
        """
        full, rest = divmod(total_rows(left), leg.batch_size)
        last = 0 if self._leaves_rest(leg) else rest
        sizes = [
            full * share_size(leg.batch_size, r, leg.workers) + share_size(last, r, leg.workers)
            for r in range(leg.workers)
        ]
        return list(split_rows(left, [*sizes, rest - last]))

    def reading_order(self, stretch: Sequence[Piece], key: tuple[int, ...]) -> Iterator[Piece]:
        """Yield the rows of a stretch in the order in which its worker reads them.

        Args:
            stretch: rows of the worker.
            key: seeds the shuffling, together with ``seed``; unique to the worker, leg and epoch.
        """
        if not self.window:
            yield from stretch
            return
        sizes = itertools.repeat(self.window, -(-total_rows(stretch) // self.window))
        for number, parts in enumerate(split_rows(stretch, sizes)):
            yield Window(tuple(parts), (self.seed, *key, number), 0, total_rows(parts))

    def unread_rows(self, left: Sequence[Piece], leg: EpochLeg, key: tuple[int, ...]) -> list[Piece]:
        """Return the unread rows at the end of a leg: those of every worker in rank order, then those left out.

        Args:
            left: rows at the beginning of the leg.
            leg: the leg, with the number of its batches that have been read.
            key: seeds the shuffling of the leg.
        """
        *stretches, unread = self.divide_rows(left, leg)
        found: list[Piece] = []
        for rank, stretch in enumerate(stretches):
            seen = leg.done * share_size(leg.batch_size, rank, leg.workers)
            _, rest = split_rows(self.reading_order(stretch, (*key, rank)), [seen, total_rows(stretch) - seen])
            found += rest
        return found + unread


def share_size(batch: int, rank: int, workers: int) -> int:
    """Return the number of rows of a global batch for the worker with this rank; numbers differ by at most one."""
    base, more = divmod(batch, workers)
    return base + (rank < more)


def row_count(piece: Piece) -> int:
    """Return the number of rows of a piece."""
    return piece.end - piece.begin


def total_rows(pieces: Iterable[Piece]) -> int:
    """Return the number of rows of all pieces."""
    return sum(map(row_count, pieces))


def split_rows(pieces: Iterable[Piece], sizes: Iterable[int]) -> Iterator[list[Piece]]:
    """Yield the rows in parts of these sizes; the last parts are shorter or empty if there are too few rows."""
    waiting, rest = iter(pieces), list[Piece]()
    for size in sizes:
        part: list[Piece] = []
        while size:
            piece = rest.pop() if rest else next(waiting, None)
            if piece is None:
                break
            if row_count(piece) > size:
                rest.append(_cut(piece, size, row_count(piece)))
                piece = _cut(piece, 0, size)
            part.append(piece)
            size -= row_count(piece)
        yield part


def merge_adjacent(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the same rows with adjacent pieces merged."""
    found: list[Piece] = []
    for piece in pieces:
        if found and _follows(piece, found[-1]):
            found[-1] = _cut(found[-1], 0, row_count(found[-1]) + row_count(piece))
        else:
            found.append(piece)
    return found


def _follows(piece: Piece, last: Piece) -> bool:
    """Return True if ``piece`` begins in the same shard or window where ``last`` ends."""
    if isinstance(piece, Span) and isinstance(last, Span):
        return (last.shard, last.end) == (piece.shard, piece.begin)
    if isinstance(piece, Window) and isinstance(last, Window):
        return (last.key, last.end, last.parts) == (piece.key, piece.begin, piece.parts)
    return False


def _cut(piece: Piece, begin: int, end: int) -> Piece:
    """Return rows ``begin`` to ``end`` of a piece, counted from its beginning."""
    if isinstance(piece, Span):
        return Span(piece.shard, piece.begin + begin, piece.begin + end)
    return Window(piece.parts, piece.key, piece.begin + begin, piece.begin + end)


class RowLocations(NamedTuple):
    """Locations of the rows of a piece in shards.

    Attributes:
        shards: Number of each shard with rows of the piece -> number of rows that it must have at least.
        places: Index of each row's shard among these, of shape (rows,).
        rows: Number of each row within its shard, of shape (rows,).
    """

    shards: dict[int, int]
    places: NDArray[np.uint32]
    rows: NDArray[np.int64]


def locate_rows(piece: Piece) -> RowLocations:
    """Return the locations of a piece's rows; shards are in the order of their first rows before shuffling."""
    there = dict[int, tuple[int, int]]()
    places, rows = _located(piece, there)
    return RowLocations({shard: least for shard, (_, least) in there.items()}, places, rows)


def _located(piece: Piece, there: dict[int, tuple[int, int]]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return shard indices and row numbers of a piece.

    ``there`` maps each shard to its index and the number of rows that it must have; the piece's shards are added.
    """
    import numpy as np

    if isinstance(piece, Span):
        place, least = there.get(piece.shard, (len(there), 0))
        there[piece.shard] = place, max(least, piece.end)
        return np.full(row_count(piece), place, np.uint32), np.arange(piece.begin, piece.end)
    order = _permutation(piece.key, total_rows(piece.parts))[piece.begin : piece.end]
    places, rows = zip(*(_located(part, there) for part in piece.parts), strict=True)
    return np.concatenate(places)[order], np.concatenate(rows)[order]


def _permutation(key: tuple[int, ...], size: int) -> NDArray[Any]:
    """Return a permutation of ``size`` numbers that depends on ``key`` alone."""
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key))).permutation(size)


class Source(Protocol):
    """Interface of a source of shards, the units in which rows are read."""

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of rows of each shard."""

    @property
    def row_bytes(self) -> float:
        """Approximate memory that a row takes, in bytes; the same in all processes."""

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return one shard's columns, which are read-only."""


def shards_of(source: Source) -> Shards:
    """Return the shards of a source, from its ``arriving`` attribute if not all of them are known yet."""
    arriving: Shards | None = getattr(source, "arriving", None)
    return KnownShards(source.shard_sizes) if arriving is None else arriving
