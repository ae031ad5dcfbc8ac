"""Gathers the rows of batches from the shards that they lie in, on two threads where there is work for both."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hopsml.errors import ArgumentError
from hopsml.training.data.array_pool import ArrayPool
from hopsml.training.data.shard_order import Piece, Span, Window, first_filled, joined, length, located, total
from hopsml.training.data.source import Source, shards_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEPT = 2  # shards that are kept in memory at least; windows whose order is
_FEW = 4096  # rows
_WORTH_BYTES = 1 << 20  # of a chunk, from which on a second thread helps


Columns = dict[str, "NDArray[Any]"]


@dataclass(frozen=True)
class Chunk:
    """Rows of successive batches, one behind the other; ``ends``: where the rows of each end."""

    columns: Columns
    ends: tuple[int, ...]


class _Few(NamedTuple):
    """Some successive rows of a chunk: those of one shard, then those of the next; ``order`` puts them in place."""

    places: slice  # in the chunk
    parts: list[tuple[Columns, NDArray[np.int64] | slice]]
    order: NDArray[np.int64] | None = None  # None where they are in place


@dataclass(frozen=True)
class _WindowRows:
    """For each row of a window its shard and its number there."""

    shards: NDArray[np.uint16]  # places in ``there``
    rows: NDArray[np.int64]
    there: tuple[int, ...]  # each shard once

    @classmethod
    def of(cls, window: Window) -> _WindowRows:
        """Of all that is shuffled together."""
        import numpy as np

        shards, rows = located(window)
        there = tuple(sorted(set(_shards_of(window))))
        return cls(np.searchsorted(there, shards).astype(np.uint16), rows, there)


def _shards_of(piece: Piece) -> Iterator[int]:
    if isinstance(piece, Span):
        yield piece.shard
    else:
        yield from itertools.chain.from_iterable(map(_shards_of, piece.parts))


class RowGatherer:
    """Gathers pieces from shards; keeps those that the present pieces are of, and where the rows of a window are.

    A batch is gathered from the shards themselves: a copy of the whole window would be memory touched for the first time,
    which costs more than gathering does.
    """

    def __init__(self, source: Source, threads: int = 2) -> None:
        """``threads``: at most; the calling one is among them."""
        self._source = source
        self._shards: OrderedDict[int, Columns] = OrderedDict()
        self._windows: OrderedDict[Window, _WindowRows] = OrderedDict()
        self._most = KEPT  # shards that are kept
        self._pool = ArrayPool()
        threads = min(threads, len(os.sched_getaffinity(0)))
        self._second = ThreadPoolExecutor(1, "hopsml-gather") if threads > 1 else None

    def close(self) -> None:
        """End the second thread."""
        if self._second is not None:
            self._second.shutdown()

    def chunk(self, batches: Sequence[list[Piece]]) -> Chunk:
        """The rows of all batches, one behind the other: arrays of the training's own."""
        ends = tuple(itertools.accumulate(total(pieces) for pieces in batches))
        work = list(self._work(joined(itertools.chain(*batches)))) or [self._nothing()]
        first, *others = (columns for few in work for columns, _ in few.parts)
        for columns in others:
            _check_alike(first, columns)
        found = {name: self._pool.empty(ends[-1], column) for name, column in first.items()}
        if self._second is None or sum(column.nbytes for column in found.values()) < _WORTH_BYTES:
            _gather(found, work)
        else:
            helped = self._second.submit(_gather, found, work[1::2])
            _gather(found, work[::2])
            helped.result()
        return Chunk(found, ends)

    def _work(self, pieces: Sequence[Piece]) -> Iterator[_Few]:
        begin = 0
        for piece in pieces:
            places = slice(begin, begin + length(piece))
            if isinstance(piece, Span):
                yield _Few(places, [(self._shard(piece.shard), slice(piece.begin, piece.end))])
            else:
                yield from self._of_window(self._located(piece.whole), piece, begin - piece.begin)
            begin = places.stop

    def _of_window(self, window: _WindowRows, piece: Window, shift: int) -> Iterator[_Few]:
        """As many rows at a time as stay in a core's cache while they are put in order."""
        import numpy as np

        columns = [self._shard(shard) for shard in window.there]
        for begin in range(piece.begin, piece.end, _FEW):
            end = min(begin + _FEW, piece.end)
            places, shards, rows = slice(begin + shift, end + shift), window.shards[begin:end], window.rows[begin:end]
            if len(columns) == 1:
                yield _Few(places, [(columns[0], rows)])
                continue
            by_shard = np.argsort(shards, kind="stable")
            order = np.empty_like(by_shard)
            order[by_shard] = np.arange(len(order))
            ends = np.cumsum(np.bincount(shards, minlength=len(columns)))
            of_shards = np.split(rows[by_shard], ends[:-1])
            yield _Few(places, [both for both in zip(columns, of_shards, strict=True) if both[1].size], order)

    def _nothing(self) -> _Few:
        """Of a share without rows."""
        filled = first_filled(shards_of(self._source))
        assert filled is not None  # there would be no batch
        return _Few(slice(0, 0), [(self._shard(filled), slice(0, 0))])

    def _located(self, window: Window) -> _WindowRows:
        """Where a window's rows are. All of its shards stay as long as it is the newest one."""
        if window not in self._windows:
            while len(self._windows) >= KEPT:
                self._windows.popitem(last=False)
            self._windows[window] = _WindowRows.of(window)
            self._most = max(KEPT, len(self._windows[window].there))
        self._windows.move_to_end(window)
        return self._windows[window]

    def _shard(self, shard: int) -> Columns:
        if shard not in self._shards:
            while len(self._shards) >= self._most:
                self._shards.popitem(last=False)
            self._shards[shard] = self._source.read(shard)
        self._shards.move_to_end(shard)
        return self._shards[shard]


def _gather(found: Columns, work: Sequence[_Few]) -> None:
    """NumPy need not look whether rows' numbers are valid ("clip"), which would take a copy more."""
    scratch = ArrayPool()
    for places, parts, order in work:
        for name, array in found.items():
            target = array[places]
            beside = target if order is None else scratch.empty(len(target), target)
            begin = 0
            for columns, rows in parts:
                if isinstance(rows, slice):
                    beside[:] = columns[name][rows]
                else:
                    columns[name].take(rows, axis=0, out=beside[begin : begin + len(rows)], mode="clip")
                    begin += len(rows)
            if order is not None:
                beside.take(order, axis=0, out=target, mode="clip")


def _check_alike(some: Columns, other: Columns) -> None:
    """Raises ArgumentError for parts of the data that cannot stand in one batch."""
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
