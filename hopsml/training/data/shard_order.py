"""Which rows of a data set each worker reads, and in what order; pure.

A shard is what is read as a whole: a row group of a Parquet file, a file. An epoch goes through all shards, in an order by
seed. Each worker has one stretch of it, so that no more than the shards at the ends of stretches are read by two; it
shuffles the rows within windows of its stretch. A global batch is the next rows of every worker.

Where the group changes in the middle of an epoch, what every worker has left, in its order, is divided anew: the leg of
the epoch that begins then goes on behind the very rows where the last one stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``begin`` to ``end`` of a shard."""

    shard: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """Rows ``begin`` to ``end`` of what ``parts`` hold, once these are shuffled by ``key``."""

    parts: tuple[Piece, ...]
    key: tuple[int, ...]
    begin: int
    end: int

    @property
    def whole(self) -> Window:
        """All that is shuffled together."""
        return Window(self.parts, self.key, 0, sum(map(length, self.parts)))


Piece = Span | Window


@dataclass(frozen=True, slots=True)
class Leg:
    """The part of an epoch in which the group stays as it is: ``done`` batches of ``batch_size`` rows by ``workers``."""

    workers: int
    batch_size: int
    done: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """What does not change within a training. ``window``: rows that are shuffled together, 0 for none."""

    shards: tuple[int, ...]  # their numbers of rows
    seed: int
    window: int
    drop_last: bool

    def epoch(self, number: int) -> list[Piece]:
        """All rows in the order in which the epoch's first leg divides them."""
        order: Iterable[int] = range(len(self.shards))
        if self.window:
            order = _permutation((self.seed, number), len(self.shards))
        return [Span(int(shard), 0, self.shards[shard]) for shard in order if self.shards[shard]]

    def batches(self, left: int, size: int) -> int:
        """In how many global batches so many rows are read."""
        return left // size if self.drop_last else -(-left // size)

    def stretches(self, left: Sequence[Piece], leg: Leg) -> list[list[Piece]]:
        """What each worker reads of ``left``, not shuffled; the last one is what nobody reads (``drop_last``)."""
        full, rest = divmod(total(left), leg.batch_size)
        last = 0 if self.drop_last else rest
        sizes = [full * share(leg.batch_size, r, leg.workers) + share(last, r, leg.workers) for r in range(leg.workers)]
        return list(chopped(left, [*sizes, rest - last]))

    def stream(self, stretch: Sequence[Piece], key: tuple[int, ...]) -> Iterator[Piece]:
        """The rows of a stretch in the order in which its worker reads them; ``key`` is that of nobody else."""
        if not self.window:
            yield from stretch
            return
        sizes = itertools.repeat(self.window, -(-total(stretch) // self.window))
        for number, parts in enumerate(chopped(stretch, sizes)):
            yield Window(tuple(parts), (self.seed, *key, number), 0, total(parts))

    def after(self, left: Sequence[Piece], leg: Leg, key: tuple[int, ...]) -> list[Piece]:
        """What is still to be read when a leg of ``left`` ends: what every worker has left, one behind the other."""
        *stretches, unread = self.stretches(left, leg)
        found: list[Piece] = []
        for rank, stretch in enumerate(stretches):
            seen = leg.done * share(leg.batch_size, rank, leg.workers)
            _, rest = chopped(self.stream(stretch, (*key, rank)), [seen, total(stretch) - seen])
            found += rest
        return found + unread


def share(batch: int, rank: int, workers: int) -> int:
    """How many rows of a global batch a worker has: they differ by at most one."""
    base, more = divmod(batch, workers)
    return base + (rank < more)


def length(piece: Piece) -> int:
    """In rows."""
    return piece.end - piece.begin


def total(pieces: Iterable[Piece]) -> int:
    """The rows of all of them."""
    return sum(map(length, pieces))


def chopped(pieces: Iterable[Piece], sizes: Iterable[int]) -> Iterator[list[Piece]]:
    """The same rows in parts of these sizes; the last ones are shorter where the rows do not suffice."""
    waiting, rest = iter(pieces), list[Piece]()
    for size in sizes:
        part: list[Piece] = []
        while size:
            piece = rest.pop() if rest else next(waiting, None)
            if piece is None:
                break
            if length(piece) > size:
                rest.append(_cut(piece, size, length(piece)))
                piece = _cut(piece, 0, size)
            part.append(piece)
            size -= length(piece)
        yield part


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The same rows, in as few pieces as they make."""
    found: list[Piece] = []
    for piece in pieces:
        if found and _follows(piece, found[-1]):
            found[-1] = _cut(found[-1], 0, length(found[-1]) + length(piece))
        else:
            found.append(piece)
    return found


def _follows(piece: Piece, last: Piece) -> bool:
    """Whether it begins in the same whole where the other one ends."""
    if isinstance(piece, Span) and isinstance(last, Span):
        return (last.shard, last.end) == (piece.shard, piece.begin)
    if isinstance(piece, Window) and isinstance(last, Window):
        return (last.key, last.end, last.parts) == (piece.key, piece.begin, piece.parts)
    return False


def _cut(piece: Piece, begin: int, end: int) -> Piece:
    if isinstance(piece, Span):
        return Span(piece.shard, piece.begin + begin, piece.begin + end)
    return Window(piece.parts, piece.key, piece.begin + begin, piece.begin + end)


def located(piece: Piece) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row of a piece, in order, its shard and its number in it."""
    import numpy as np

    if isinstance(piece, Span):
        return np.full(length(piece), piece.shard), np.arange(piece.begin, piece.end)
    parts = [located(part) for part in piece.parts]
    order = _permutation(piece.key, total(piece.parts))[piece.begin : piece.end]
    shards, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
    return shards[order], rows[order]


def _permutation(key: tuple[int, ...], size: int) -> NDArray[Any]:
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key))).permutation(size)
