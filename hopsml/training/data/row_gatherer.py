"""Gathering of batches' rows from shards in memory, on two threads where that is faster."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hopsml.errors import ArgumentError, StorageError
from hopsml.training.data.array_pool import ArrayPool
from hopsml.training.data.shard_order import Piece, Span, Window, first_filled, joined, length, located, total
from hopsml.training.data.shard_rows import Columns, ShardRows, SpanRows, WindowRows
from hopsml.training.data.source import Source, shards_of

if TYPE_CHECKING:
    import numpy as np

KEPT = 2  # least number of shards that are retained in memory
_WORTH_BYTES = 1 << 20  # size of a chunk from which on a second thread helps


@dataclass(frozen=True)
class Chunk:
    """Rows of successive batches, concatenated; ``ends`` are the row offsets where the batches end."""

    columns: Columns
    ends: tuple[int, ...]


class _Part(NamedTuple):
    """Rows ``begin`` to ``end`` of a chunk, and their origin: ``rows`` from row ``first`` on."""

    begin: int
    end: int
    rows: ShardRows
    first: int

    def fill(self, found: Columns) -> None:
        """Copy the rows into the chunk's columns."""
        out = {name: array[self.begin : self.end] for name, array in found.items()}
        self.rows.gather(self.first, self.first + self.end - self.begin, out)

    def halves(self) -> tuple[_Part, _Part]:
        """Split the part into two, for two threads."""
        half = (self.begin + self.end) // 2
        return self._replace(end=half), self._replace(begin=half, first=self.first + half - self.begin)


class RowGatherer:
    """Gatherer of batches' rows, with a cache of the shards in use and the row locations of the newest window.

    A batch is gathered from the shards themselves: a copy of the whole window would touch memory for the first time,
    which costs more than gathering does.
    """

    def __init__(self, source: Source, threads: int = 2) -> None:
        """Create a gatherer of a source's rows.

        Args:
            source: the source of the shards.
            threads: at most; including the calling one.
        """
        self._source = source
        self._shards: OrderedDict[int, Columns] = OrderedDict()
        self._newest: tuple[Window, WindowRows] | None = None
        self._most = KEPT  # retained shards
        self._pool = ArrayPool()
        threads = min(threads, len(os.sched_getaffinity(0)))
        self._second = ThreadPoolExecutor(1, "hopsml-gather") if threads > 1 else None

    def close(self) -> None:
        """Stop the second thread."""
        if self._second is not None:
            self._second.shutdown()

    def chunk(self, batches: Sequence[list[Piece]]) -> Chunk:
        """Return the rows of all batches, concatenated, in arrays that the caller owns."""
        ends = tuple(itertools.accumulate(total(pieces) for pieces in batches))
        parts = list(self._parts(joined(itertools.chain(*batches)))) or [self._nothing()]
        first = parts[0].rows.parts[0]
        for part in parts:
            _check_alike(first, part.rows.parts[0])
        found = {name: self._pool.empty(ends[-1], column) for name, column in first.items()}
        if self._second is None or sum(column.nbytes for column in found.values()) < _WORTH_BYTES:
            _fill(found, parts)
        else:
            firsts, seconds = zip(*map(_Part.halves, parts), strict=True)
            helped = self._second.submit(_fill, found, seconds)
            _fill(found, firsts)
            helped.result()
        return Chunk(found, ends)

    def _parts(self, pieces: Sequence[Piece]) -> Iterator[_Part]:
        """Yield the parts of a chunk that consists of these pieces."""
        begin = 0
        for piece in pieces:
            rows = SpanRows(self._shard(piece.shard)) if isinstance(piece, Span) else self._window(piece.whole)
            yield _Part(begin, begin + length(piece), rows, piece.begin)
            begin += length(piece)

    def _nothing(self) -> _Part:
        """Return the part of a share without rows, which has the columns of a shard that has rows."""
        filled = first_filled(shards_of(self._source))
        assert filled is not None  # without rows there is no batch
        return _Part(0, 0, SpanRows(self._shard(filled)), 0)

    def _window(self, window: Window) -> WindowRows:
        """Return the row locations of a window; its shards are retained while it is the newest window."""
        if self._newest is None or self._newest[0] != window:
            there, places, rows = located(window)
            self._most = max(KEPT, len(there))
            parts = [self._shard(shard) for shard in there]
            for part, (shard, least) in zip(parts, there.items(), strict=True):
                _check_alike(parts[0], part)
                _check_long(part, shard, least)
            self._newest = window, WindowRows(places, rows, parts)
        return self._newest[1]

    def _shard(self, shard: int) -> Columns:
        """Return a shard's columns, read or from the cache; the least recently used shards are dropped."""
        if shard not in self._shards:
            while len(self._shards) >= self._most:
                self._shards.popitem(last=False)
            self._shards[shard] = _whole(self._source.read(shard))
        self._shards.move_to_end(shard)
        return self._shards[shard]


def _fill(found: Columns, parts: Sequence[_Part]) -> None:
    """Copy the rows of these parts into a chunk's columns."""
    for part in parts:
        part.fill(found)


def _whole(columns: Columns) -> Columns:
    """Return each column contiguous in memory, as ``WindowRows`` requires; without a copy if it is."""
    import numpy as np

    return {name: np.ascontiguousarray(column) for name, column in columns.items()}


def _check_long(columns: Columns, shard: int, least: int) -> None:
    """Raise StorageError for a shard with fewer rows than before, whose missing rows would be read out of bounds."""
    if (most := min(map(len, columns.values()))) < least:
        raise StorageError(
            f"part {shard} of the data has {most} rows, and had {least} or more when the data set was made; make it again, "
            "and leave the data as it is while it is read"
        )


def _check_alike(some: Columns, other: Columns) -> None:
    """Raise ArgumentError for shards whose rows cannot form one batch."""
    if some is other:
        return

    def kinds(columns: Columns) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        return {name: (column.dtype, column.shape[1:]) for name, column in columns.items()}

    if (first := kinds(some)) == (second := kinds(other)):
        return
    for name in (*first, *second):
        one, another = (
            f"{kind[name][0]} of shape {kind[name][1]}" if name in kind else "absent" for kind in (first, second)
        )
        if one != another:
            raise ArgumentError(
                f"column '{name}' is {one} in one part of the data and {another} in another: a batch needs all alike; write "
                "the data anew with one schema"
            )
