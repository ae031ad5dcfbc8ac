"""Reads a worker's batches ahead of the training, on a thread, for as long as the group stays as it is; or for a process
that does so by itself, as those of PyTorch's loader.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.training.data.row_gatherer import Chunk, RowGatherer
from hopsml.training.data.shard_order import Piece
from hopsml.training.data.shard_sampler import ShardSampler
from hopsml.training.data.source import Source
from hopsml.training.data.turn_sampler import TurnSampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

Names = str | Sequence[str]  # of columns
AHEAD = 4  # batches that lie ready
# Batches that are gathered at once, and their size, at most: each handing over, and each crossing from Python to TensorFlow,
# costs as much as copying some 100 kB.
_MOST_TOGETHER, _BYTES_TOGETHER = 32, 8 << 20
_SWITCH_S = 0.0005
_LOOK_S = 0.2  # between two looks whether anybody still waits for what was read


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

    def reader(self, first_epoch: int = 0) -> BatchReader:
        """This worker's way through the data."""

    def sampler(self, first_epoch: int = 0) -> ShardSampler:
        """Which rows come when, with the orders of the epochs from this one on."""

    def repeat(self, epochs: int) -> BatchedRows:
        """The same, so many times."""


class Batch(dict[str, "NDArray[Any]"]):
    """A worker's rows of a global batch: an array for each column, whose first axis counts rows."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], global_size: int) -> None:
        super().__init__(columns)
        self.global_size = global_size  # rows of all workers' parts together


class BatchReader:
    """The batches of one training, as ``State.resume`` takes them; see ``ShardSampler`` for the place in the data.

    Successive batches are gathered at once; ``next_batch`` and ``next_chunk`` are not for one and the same reader.
    """

    def __init__(self, source: Source, make: Callable[[], ShardSampler]) -> None:
        """``make``: a sampler at the beginning of the training."""
        self._source, self._make, self._sampler = source, make, make()
        self._ahead: _Ahead | None = None
        self._ready: Iterator[dict[str, NDArray[Any]]] = iter(())

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
        if (columns := next(self._ready, None)) is None:
            self._ready = _batches_of(self._next())
            columns = next(self._ready)
        self._sampler.next_pieces()
        return Batch(columns, self._sampler.global_size)

    def next_chunk(self) -> Chunk:
        """The same of as many batches as are gathered at once, or as there are left."""
        chunk = self._next()
        for _ in chunk.ends:
            self._sampler.next_pieces()
        return chunk

    def _next(self) -> Chunk:
        if self._sampler.is_exhausted:
            raise StopIteration
        if self._ahead is None:
            self._ahead = _Ahead(self._source, self._copy(), _together(self._source, self._sampler))
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
        self._ready = iter(())
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _copy(self) -> ShardSampler:
        copy = self._make()
        copy.join(*self._sampler.group)
        copy.go_to(self._sampler.position())
        return copy


def batches_of_turn(source: Source, sampler: ShardSampler, turn: int, turns: int) -> Iterator[dict[str, NDArray[Any]]]:
    """A worker's batches ``turn``, ``turn + turns``, and so on, from where the sampler is; no rows of others are gathered.

    They are read when they are asked for, on the calling thread: for a process that is ahead of the training as a whole.
    """
    rows = RowGatherer(source, threads=1)
    for chunk in _chunks(rows, TurnSampler(sampler, turn, turns), _together(source, sampler)):
        yield from _batches_of(chunk)


def _together(source: Source, sampler: ShardSampler) -> int:
    """How many batches are gathered at once."""
    of_batch = sampler.batch_size * source.row_bytes / sampler.world_size
    return max(1, min(_MOST_TOGETHER, int(_BYTES_TOGETHER / max(1.0, of_batch))))


def _batches_of(chunk: Chunk) -> Iterator[dict[str, NDArray[Any]]]:
    for begin, end in itertools.pairwise((0, *chunk.ends)):
        yield {name: column[begin:end] for name, column in chunk.columns.items()}


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
    with contextlib.closing(rows):
        found = _chunks(rows, sampler, together)
        while not ended.is_set():
            try:
                one: Any = next(found, None)
            except BaseException as error:  # noqa: BLE001 the training raises it
                one = error
            if one is None:
                return
            while not ended.is_set():
                try:
                    read.put(one, timeout=_LOOK_S)
                    break
                except queue.Full:
                    continue
            if isinstance(one, BaseException):
                return


def _chunks(rows: RowGatherer, sampler: ShardSampler | TurnSampler, together: int) -> Iterator[Chunk]:
    while not sampler.is_exhausted:
        batches = _batches(sampler, together)
        try:
            chunk = rows.chunk(batches)
        except Exception:
            if len(batches) == 1:
                raise
            for batch in batches:  # those before the one that cannot be had
                yield rows.chunk([batch])
        else:
            yield chunk


def _batches(sampler: ShardSampler | TurnSampler, most: int) -> list[list[Piece]]:
    """The pieces of the next batches, at most so many, and no more than there are now."""
    found = [sampler.next_pieces()]
    while len(found) < most and not sampler.waits and not sampler.is_exhausted:
        found.append(sampler.next_pieces())
    return found
