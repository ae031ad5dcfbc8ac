"""Reads a worker's batches ahead of the training, on a thread, for as long as the group stays as it is."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.training.data.array_pool import ArrayPool
from hopsml.training.data.shard_order import KnownShards, Piece, Shards, Window, first_filled, joined, located, total
from hopsml.training.data.shard_sampler import ShardSampler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Names = str | Sequence[str]  # of columns
AHEAD = 4  # batches that lie ready
KEPT = 2  # shards that are kept in memory at least; windows whose order is
_SWITCH_S = 0.0005
_LOOK_S = 0.2  # between two looks whether anybody still waits for what was read


class Source(Protocol):
    """Where shards come from."""

    @property
    def shards(self) -> tuple[int, ...]:
        """The rows of each."""

    @property
    def row_bytes(self) -> float:
        """About how much memory a row takes; the same wherever it is asked."""

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """One shard's columns, not to be written to."""


def shards_of(source: Source) -> Shards:
    """The shards of a source; one that does not know all of them yet has ``arriving``, those that come."""
    arriving: Shards | None = getattr(source, "arriving", None)
    return KnownShards(source.shards) if arriving is None else arriving


class BatchedRows(Protocol):
    """What a framework's data set is made of: ``hopsml.data.Dataset``."""

    @property
    def source(self) -> Source:
        """Where the rows come from."""

    @property
    def epochs(self) -> int:
        """How often they are read."""

    @property
    def global_batch_size(self) -> int:
        """Rows of a batch, of all workers together."""

    def __len__(self) -> int:
        """Global batches in all epochs together."""

    def batches(self, first_epoch: int = 0) -> Iterator[Batch]:
        """This worker's batches, with the orders of the epochs from this one on."""

    def reader(self, first_epoch: int = 0, together: int = 1) -> BatchReader:
        """This worker's way through the data; ``together``: batches that are gathered at once."""

    def sampler(self) -> ShardSampler:
        """Which rows come when."""

    def repeat(self, epochs: int) -> BatchedRows:
        """The same, so many times."""


class Batch(dict[str, "NDArray[Any]"]):
    """A worker's rows of a global batch: an array for each column, whose first axis counts rows."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], global_size: int) -> None:
        super().__init__(columns)
        self.global_size = global_size  # rows of all workers' parts together


@dataclass(frozen=True)
class Chunk:
    """Rows of successive batches, one behind the other; ``ends``: where the rows of each end."""

    columns: dict[str, NDArray[Any]]
    ends: tuple[int, ...]


class BatchReader:
    """The batches of one training, as ``State.resume`` takes them; see ``ShardSampler`` for the place in the data."""

    def __init__(self, source: Source, make: Callable[[], ShardSampler], together: int = 1) -> None:
        """``make``: a sampler at the beginning of the training. ``together``: batches of a chunk, at most."""
        self._source, self._make, self._sampler, self._together = source, make, make(), together
        self._ahead: _Ahead | None = None

    def join(self, rank: int, world_size: int) -> None:
        """Take the share of worker ``rank`` in a group of ``world_size`` workers from now on."""
        before = self._sampler.group
        self._sampler.join(rank, world_size)
        if self._sampler.group != before:
            self.close()

    @property
    def is_exhausted(self) -> bool:
        """Whether all epochs have been read."""
        return self._sampler.is_exhausted

    @property
    def batches_left(self) -> int | None:
        """Global batches until the end of the last epoch, with the group as it is now; None while that is not known."""
        return self._sampler.batches_left

    def next_batch(self) -> Batch:
        """This worker's rows of the next global batch, counted as read. Raises StopIteration after the last.

        Raises what reading has raised, such as ArgumentError for a column that has no array.
        """
        chunk = self._next(1)
        self._sampler.next_pieces()
        return Batch(chunk.columns, self._sampler.global_size)

    def next_chunk(self) -> Chunk:
        """The same of as many batches as are gathered together, or as there are left."""
        chunk = self._next(self._together)
        for _ in chunk.ends:
            self._sampler.next_pieces()
        return chunk

    def _next(self, together: int) -> Chunk:
        if self._sampler.is_exhausted:
            raise StopIteration
        if self._ahead is None:
            self._ahead = _Ahead(self._source, self._copy(), together)
        try:
            return self._ahead.take()
        except BaseException:
            self.close()  # its thread has ended: whoever asks once more is not to wait for it
            raise

    def position(self) -> dict[str, int | float]:
        """The place in the data; the same on all ranks."""
        return self._sampler.position()

    def go_to(self, position: Mapping[str, int | float]) -> None:
        """Continue from a ``position()``. Raises ArgumentError if it belongs to other data or another order."""
        self.close()
        self._sampler.go_to(position)

    def rewind(self) -> None:
        """Begin at the first epoch again."""
        self.close()
        self._sampler.rewind()

    def pass_over(self) -> None:
        """Count all epochs as read."""
        self.close()
        self._sampler.pass_over()

    def close(self) -> None:
        """Read ahead no longer."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _copy(self) -> ShardSampler:
        copy = self._make()
        copy.join(*self._sampler.group)
        copy.go_to(self._sampler.position())
        return copy


class _Ahead:
    """A thread that reads from one place on; it ends with the data, when it is closed, or when nobody refers to this."""

    def __init__(self, source: Source, sampler: ShardSampler, together: int) -> None:
        # A thread that waits for the interpreter gets it after so long: by default a batch would wait 5 ms for its reader.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        self._read: queue.Queue[Chunk | BaseException] = queue.Queue(max(1, AHEAD // together))
        ended = threading.Event()
        self._thread = threading.Thread(
            target=_read_ahead,
            args=(RowGatherer(source), sampler, together, self._read, ended),
            name="hopsml-read-ahead",
            daemon=True,
        )
        self.close = weakref.finalize(self, ended.set)
        self._thread.start()

    def take(self) -> Chunk:
        read = self._read.get()
        if isinstance(read, BaseException):
            raise read
        return read


def _read_ahead(
    rows: RowGatherer, sampler: ShardSampler, together: int, read: queue.Queue[Any], ended: threading.Event
) -> None:
    while not ended.is_set():
        try:
            if sampler.is_exhausted:
                return
            found: Any = rows.chunk(_batches(sampler, together))
        except BaseException as error:  # noqa: BLE001 the training raises it
            found = error
        while not ended.is_set():
            try:
                read.put(found, timeout=_LOOK_S)
                break
            except queue.Full:
                continue
        if isinstance(found, BaseException):
            return


def _batches(sampler: ShardSampler, most: int) -> list[list[Piece]]:
    """The pieces of the next batches, at most so many, and no more than there are now."""
    found = [sampler.next_pieces()]
    while len(found) < most and not sampler.waits and not sampler.is_exhausted:
        found.append(sampler.next_pieces())
    return found


@dataclass(frozen=True)
class _WindowRows:
    """For each row of a window its shard and its number there."""

    shards: NDArray[np.int64]
    rows: NDArray[np.int64]
    there: tuple[int, ...]  # each shard once

    @classmethod
    def of(cls, window: Window) -> _WindowRows:
        """Of all that is shuffled together."""
        import numpy as np

        shards, rows = located(window)
        return cls(shards, rows, tuple(np.unique(shards).tolist()))


class RowGatherer:
    """Gathers pieces from shards; keeps those that the present pieces are of, and where the rows of a window are.

    A batch is gathered from the shards themselves: a copy of the whole window would be memory touched for the first time,
    which costs more than gathering does.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._shards: OrderedDict[int, dict[str, NDArray[Any]]] = OrderedDict()
        self._windows: OrderedDict[Window, _WindowRows] = OrderedDict()
        self._most = KEPT  # shards that are kept
        self._pool = ArrayPool()

    def chunk(self, batches: Sequence[list[Piece]]) -> Chunk:
        """The rows of all batches, one behind the other: arrays of the training's own."""
        import numpy as np

        ends = tuple(itertools.accumulate(total(pieces) for pieces in batches))
        parts = [self._piece(piece) for piece in joined(itertools.chain(*batches))] or [self._nothing()]
        if len(parts) == 1:
            return Chunk(parts[0], ends)
        for part in parts[1:]:
            _check_alike(parts[0], part)
        found = {name: self._pool.empty(ends[-1], one) for name, one in parts[0].items()}
        for name, array in found.items():
            np.concatenate([part[name] for part in parts], out=array)
        return Chunk(found, ends)

    def _piece(self, piece: Piece) -> dict[str, NDArray[Any]]:
        if isinstance(piece, Window):
            window = self._located(piece.whole)
            return self._gather(window, slice(piece.begin, piece.end))
        return {
            name: self._copied(column[piece.begin : piece.end]) for name, column in self._shard(piece.shard).items()
        }

    def _copied(self, column: NDArray[Any]) -> NDArray[Any]:
        copy = self._pool.empty(len(column), column)
        copy[:] = column
        return copy

    def _taken(self, column: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        """Some rows of it; their numbers are valid, and NumPy need not look, which would take a copy more."""
        return column.take(rows, axis=0, out=self._pool.empty(len(rows), column), mode="clip")

    def _nothing(self) -> dict[str, NDArray[Any]]:
        """The columns of a share without rows."""
        filled = first_filled(shards_of(self._source))
        assert filled is not None  # there would be no batch
        return {name: column[:0] for name, column in self._shard(filled).items()}

    def _located(self, window: Window) -> _WindowRows:
        """Where a window's rows are. All of its shards stay as long as it is the newest one."""
        if window not in self._windows:
            while len(self._windows) >= KEPT:
                self._windows.popitem(last=False)
            self._windows[window] = _WindowRows.of(window)
            self._most = max(KEPT, len(self._windows[window].there))
        self._windows.move_to_end(window)
        return self._windows[window]

    def _gather(self, window: _WindowRows, some: slice) -> dict[str, NDArray[Any]]:
        import numpy as np

        shards, rows = window.shards[some], window.rows[some]
        found: dict[str, NDArray[Any]] = {}
        for shard in window.there:
            at = np.flatnonzero(shards == shard) if len(window.there) > 1 else slice(None)
            if not (chosen := rows[at]).size:
                continue
            columns = self._shard(shard)
            if len(chosen) == len(rows):
                return {name: self._taken(column, rows) for name, column in columns.items()}
            if not found:
                found = {name: self._pool.empty(len(rows), one) for name, one in columns.items()}
            _check_alike(found, columns)
            for name, column in columns.items():
                found[name][at] = self._taken(column, chosen)
        return found

    def _shard(self, shard: int) -> dict[str, NDArray[Any]]:
        if shard not in self._shards:
            while len(self._shards) >= self._most:
                self._shards.popitem(last=False)
            self._shards[shard] = self._source.read(shard)
        self._shards.move_to_end(shard)
        return self._shards[shard]


def _check_alike(some: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> None:
    """Raises ArgumentError for parts of the data that cannot stand in one batch."""
    from hopsml.errors import ArgumentError

    def kinds(columns: Mapping[str, NDArray[Any]]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
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
