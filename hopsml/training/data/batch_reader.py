"""Reading of a worker's batches, ahead of the training on a thread or within a data loader's process.

The thread reads ahead while the group's membership is unchanged. ``strided_batches`` is for processes that are
themselves ahead of the training, such as those of PyTorch's ``DataLoader``.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.core import suggestions
from hopsml.training.data.row_gatherer import Chunk, RowGatherer
from hopsml.training.data.shard_order import Piece, Source
from hopsml.training.data.shard_sampler import ShardSampler, StridedSampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

Names = str | Sequence[str]  # column names
AHEAD = 4  # batches that are read ahead
# Most batches and bytes that are gathered together: each transfer between threads, and each crossing from Python to
# TensorFlow, costs as much as copying about 100 kB.
_MOST_TOGETHER, _BYTES_TOGETHER = 32, 8 << 20
_SWITCH_S = 0.0005
_LOOK_S = 0.2  # interval between two checks whether the reader has been closed


def missing_column_message(names: Sequence[str], columns: Iterable[str]) -> str:
    """Return the message about columns that are not among the data's, with those that have similar names."""
    known = list(columns)
    meant = suggestions.similar_names(names[0], known)
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return f"the data has no column {', '.join(names)}; its columns are {', '.join(known)}{hint}"


class BatchedRows(Protocol):
    """Interface of a data set that framework adapters wrap; implemented by ``hopsml.data.Dataset``."""

    @property
    def source(self) -> Source:
        """Source that the rows are read from."""

    @property
    def epochs(self) -> int:
        """Number of times that the rows are read."""

    @property
    def global_batch_size(self) -> int:
        """Rows per batch, summed over all workers."""

    def __len__(self) -> int:
        """Return the number of global batches in all epochs together."""

    def batches(self, first_epoch: int = 0) -> Iterator[Batch]:
        """Return this worker's batches; ``first_epoch`` is the number, from 0, of the first epoch's row order."""

    def reader(self, first_epoch: int = 0) -> BatchReader:
        """Return a reader of this worker's batches; ``first_epoch`` is the number of the first epoch's row order."""

    def sampler(self, first_epoch: int = 0) -> ShardSampler:
        """Return the sampler that orders the rows; ``first_epoch`` is the number of the first epoch's row order."""

    def repeat(self, epochs: int) -> BatchedRows:
        """Return the same data set, read ``epochs`` times."""


class Batch(dict[str, "NDArray[Any]"]):
    """This worker's rows of one global batch: one array per column, with rows along the first axis."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], global_size: int) -> None:
        super().__init__(columns)
        self.global_size = global_size  # rows of the global batch, over all workers


class BatchReader:
    """Resumable reader of a worker's batches, which ``State.resume`` accepts; ``ShardSampler`` tracks the position.

    Several successive batches are gathered together. Use either ``next_batch`` or ``next_chunk`` on one reader, never
    both.
    """

    def __init__(self, source: Source, make: Callable[[], ShardSampler]) -> None:
        """Create a reader at the beginning of the training.

        Args:
            source: the source of the rows.
            make: returns a new sampler at the beginning of the training; called again whenever a copy is needed to read
                ahead.
        """
        self._source, self._make, self._sampler = source, make, make()
        self._ahead: _Ahead | None = None
        self._ready: Iterator[dict[str, NDArray[Any]]] = iter(())

    def join(self, rank: int, world_size: int) -> None:
        """Read the share of worker ``rank`` in a group of ``world_size`` workers from now on."""
        before = self._sampler.rank_and_size
        self._sampler.join(rank, world_size)
        if self._sampler.rank_and_size != before:
            self.close()

    @property
    def is_exhausted(self) -> bool:
        """True if all epochs have been read."""
        return self._sampler.is_exhausted

    @property
    def batches_left(self) -> int | None:
        """Global batches until the end of the last epoch, for the present group; None while the number is unknown."""
        return self._sampler.batches_left

    def next_batch(self) -> Batch:
        """Return this worker's rows of the next global batch, and count the batch as read.

        Raises:
            StopIteration: the last batch has been read.
            ArgumentError: a column cannot be converted to an array; other errors of reading are raised as well.
        """
        if (columns := next(self._ready, None)) is None:
            self._ready = _batches_of(self._next())
            columns = next(self._ready)
        self._sampler.next_pieces()
        return Batch(columns, self._sampler.global_size)

    def next_chunk(self) -> Chunk:
        """Return the next batches that are gathered together, and count them as read.

        The chunk has fewer batches where fewer remain. Raises the same errors as ``next_batch``.
        """
        chunk = self._next()
        for _ in chunk.ends:
            self._sampler.next_pieces()
        return chunk

    def _next(self) -> Chunk:
        """Return the next chunk, starting the thread that reads ahead if there is none."""
        if self._sampler.is_exhausted:
            raise StopIteration
        if self._ahead is None:
            self._ahead = _Ahead(self._source, self._copy(), _together(self._source, self._sampler))
        try:
            return self._ahead.next_chunk()
        except BaseException:
            self.close()  # the thread has ended, so the next call must start a new one instead of waiting for it
            raise

    def position(self) -> dict[str, int | float]:
        """Return the position in the data, which is the same on all ranks."""
        return self._sampler.position()

    def go_to(self, position: Mapping[str, int | float]) -> None:
        """Continue from a ``position()``.

        Raises:
            ArgumentError: the position belongs to other data or to another row order.
        """
        self.close()
        self._sampler.go_to(position)

    def rewind(self) -> None:
        """Restart at the first epoch."""
        self.close()
        self._sampler.rewind()

    def pass_over(self) -> None:
        """Count all epochs as read."""
        self.close()
        self._sampler.pass_over()

    def close(self) -> None:
        """Stop reading ahead, and discard the batches that were read ahead."""
        self._ready = iter(())
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _copy(self) -> ShardSampler:
        """Return a sampler at the present position, for the thread that reads ahead."""
        copy = self._make()
        copy.join(*self._sampler.rank_and_size)
        copy.go_to(self._sampler.position())
        return copy


def strided_batches(source: Source, sampler: ShardSampler, turn: int, turns: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield a worker's batches ``turn``, ``turn + turns`` and so on, counted from the sampler's position.

    The rows of the other batches are not read. Batches are read on the calling thread when they are requested: the
    caller is a process that is itself ahead of the training.

    Args:
        source: the source of the rows.
        sampler: the worker's sampler; it is advanced.
        turn: index of the first batch, below ``turns``.
        turns: number of processes that share the worker's batches.
    """
    rows = RowGatherer(source, threads=1)
    for chunk in _chunks(rows, StridedSampler(sampler, turn, turns), _together(source, sampler)):
        yield from _batches_of(chunk)


def _together(source: Source, sampler: ShardSampler) -> int:
    """Return the number of batches that are gathered together."""
    of_batch = sampler.batch_size * source.row_bytes / sampler.world_size
    return max(1, min(_MOST_TOGETHER, int(_BYTES_TOGETHER / max(1.0, of_batch))))


def _batches_of(chunk: Chunk) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield each batch of a chunk as views of the chunk's columns."""
    for begin, end in itertools.pairwise((0, *chunk.ends)):
        yield {name: column[begin:end] for name, column in chunk.columns.items()}


class _Ahead:
    """Thread that reads chunks ahead from one position on.

    It ends with the data, on ``close``, or when this object is garbage-collected.
    """

    def __init__(self, source: Source, sampler: ShardSampler, together: int) -> None:
        # A thread that waits for the interpreter lock gets it after this interval; with the default, a batch would wait
        # 5 ms for its reader.
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

    def next_chunk(self) -> Chunk:
        """Return the next chunk; waits. Raises what reading it has raised."""
        read = self._read.get()
        if isinstance(read, BaseException):
            raise read
        return read


def _read_ahead(
    rows: RowGatherer, sampler: ShardSampler, together: int, read: queue.Queue[Any], ended: threading.Event
) -> None:
    """Put chunks, or the error that ends the reading, into the queue until the data or the reader has ended."""
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


def _chunks(rows: RowGatherer, sampler: ShardSampler | StridedSampler, together: int) -> Iterator[Chunk]:
    """Yield chunks of ``together`` batches; if one fails, yield its batches singly up to the unreadable one."""
    while not sampler.is_exhausted:
        batches = _batches(sampler, together)
        try:
            chunk = rows.gather_batches(batches)
        except Exception:
            if len(batches) == 1:
                raise
            for batch in batches:  # so that the batches before the unreadable one are still delivered
                yield rows.gather_batches([batch])
        else:
            yield chunk


def _batches(sampler: ShardSampler | StridedSampler, most: int) -> list[list[Piece]]:
    """Return the pieces of the next ``most`` batches, or of fewer if no more are known at present."""
    found = [sampler.next_pieces()]
    while len(found) < most and not sampler.needs_next_wave and not sampler.is_exhausted:
        found.append(sampler.next_pieces())
    return found
