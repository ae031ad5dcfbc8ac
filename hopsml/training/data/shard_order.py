"""Which rows of a data set each worker reads, and in what order; pure.

A shard is what is read as a whole: a row group of a Parquet file, a file. An epoch goes through all shards, in an order by
seed. Each worker has one stretch of it, so that no more than the shards at the ends of stretches are read by two; it
shuffles the rows within windows of its stretch. A global batch is the next rows of every worker.

Where the group changes in the middle of an epoch, what every worker has left, in its order, is divided anew: the leg of
the epoch that begins then goes on behind the very rows where the last one stopped.

Shards that are still being made when the training begins come in waves, each with a leg of its own in the first epoch: the
full batches of what is there are divided, and the rows that are left over stand before those of the next wave.
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
    """Shards that become known together: for the number of each, its rows. No others come behind the last wave."""

    shards: Mapping[int, int]
    is_last: bool


class Shards(Protocol):
    """What a data set consists of, which need not be there as a whole yet; the same for all workers."""

    @property
    def identity(self) -> Mapping[str, int]:
        """What tells it from another one, as far as that is known from the beginning."""

    @property
    def is_whole(self) -> bool:
        """Whether all shards are known."""

    def wave(self, number: int) -> Wave:
        """In the order in which they become known, from 0 on; waits."""

    def whole(self) -> Mapping[int, int]:
        """All shards, in an order that does not depend on the waves; waits."""


class KnownShards:
    """Shards that are all known; they are numbered as they are given, by their rows."""

    is_whole = True

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = tuple(rows)

    @property
    def identity(self) -> dict[str, int]:
        """By all numbers of rows."""
        return {"rows": sum(self._rows), "shards": zlib.crc32(",".join(map(str, self._rows)).encode())}

    def wave(self, number: int) -> Wave:
        """All of them."""
        return Wave(self.whole(), True)

    def whole(self) -> dict[int, int]:
        """All of them."""
        return dict(enumerate(self._rows))


def first_filled(shards: Shards) -> int | None:
    """A shard that has rows, the same on all workers; None where there are no rows at all. Waits."""
    for number in itertools.count():
        wave = shards.wave(number)
        filled = next((shard for shard, rows in wave.shards.items() if rows), None)
        if filled is not None or wave.is_last:
            return filled
    raise AssertionError("unreachable")


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
    """The part of an epoch in which the group stays as it is: ``done`` batches of ``batch_size`` rows by ``workers``.

    ``waves``: of how many the rows are known. ``is_last``: whether these are all; else only full batches are divided.
    """

    workers: int
    batch_size: int
    done: int = 0
    waves: int = 1
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Rules:
    """What does not change within a training. ``window``: rows that are shuffled together, 0 for none."""

    seed: int
    window: int
    drop_last: bool

    def order(self, shards: Mapping[int, int], key: tuple[int, ...]) -> list[Piece]:
        """All rows of these shards in the order in which a leg divides them."""
        numbers = list(shards)
        if self.window:
            numbers = [numbers[place] for place in _permutation((self.seed, *key), len(numbers))]
        return [Span(shard, 0, shards[shard]) for shard in numbers if shards[shard]]

    def batches(self, left: int, leg: Leg) -> int:
        """In how many global batches so many rows are read."""
        return left // leg.batch_size if self._leaves_rest(leg) else -(-left // leg.batch_size)

    def _leaves_rest(self, leg: Leg) -> bool:
        """Whether rows that do not fill a batch are not read, or not yet."""
        return self.drop_last or not leg.is_last

    def stretches(self, left: Sequence[Piece], leg: Leg) -> list[list[Piece]]:
        """What each worker reads of ``left``, not shuffled; the last one is what nobody reads in this leg."""
        full, rest = divmod(total(left), leg.batch_size)
        last = 0 if self._leaves_rest(leg) else rest
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


class Located(NamedTuple):
    """Where the rows of a piece are."""

    shards: dict[int, int]  # each shard that they are in, and how many rows it must have for that
    places: NDArray[np.uint32]  # for each row, in order, which of these shards it is in, counted from 0
    rows: NDArray[np.int64]  # and its number there


def located(piece: Piece) -> Located:
    """The shards are in the order in which their first rows lie before they are shuffled."""
    there = dict[int, tuple[int, int]]()
    places, rows = _located(piece, there)
    return Located({shard: least for shard, (_, least) in there.items()}, places, rows)


def _located(piece: Piece, there: dict[int, tuple[int, int]]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """``there``: for each shard its place, and how many rows it must have; those of the piece are added."""
    import numpy as np

    if isinstance(piece, Span):
        place, least = there.get(piece.shard, (len(there), 0))
        there[piece.shard] = place, max(least, piece.end)
        return np.full(length(piece), place, np.uint32), np.arange(piece.begin, piece.end)
    order = _permutation(piece.key, total(piece.parts))[piece.begin : piece.end]
    places, rows = zip(*(_located(part, there) for part in piece.parts), strict=True)
    return np.concatenate(places)[order], np.concatenate(rows)[order]


def _permutation(key: tuple[int, ...], size: int) -> NDArray[Any]:
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key))).permutation(size)
