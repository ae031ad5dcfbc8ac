"""Gathering of batches' rows from shards in memory: native code where it is built, on two threads where that is faster.

Rows of one shard are a range; rows of many shards are gathered by ``libhopsml_rows.so`` (``native/rows/gather.h``), or
by NumPy if it is not built. Memory of arrays is reused once nothing refers to it.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hopsml.errors import ArgumentError, StorageError
from hopsml.training.data.shard_order import (
    Piece,
    Source,
    Span,
    Window,
    first_nonempty_shard,
    locate_rows,
    merge_adjacent,
    row_count,
    shards_of,
    total_rows,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Columns = dict[str, "NDArray[Any]"]
PATH = Path(__file__).parent / "lib" / "libhopsml_rows.so"
_MOST = 16  # arrays per dtype and row shape
_ALIGNED = 64  # bytes; TensorFlow copies arrays that do not start at a multiple of it
_FREE = 3  # reference count of an unused array: the pool's list, the local variable, and ``getrefcount``'s argument
KEPT = 2  # least number of shards that are retained in memory
_WORTH_BYTES = 1 << 20  # size of a chunk from which on a second thread helps


class ShardRows(Protocol):
    """Interface of an ordered sequence of rows, numbered from 0."""

    @property
    def parts(self) -> Sequence[Columns]:
        """Columns of the shards that contain the rows."""

    def gather(self, begin: int, end: int, out: Columns) -> None:
        """Copy rows ``begin`` to ``end`` into ``out``, whose arrays have that many rows and the types of the shards."""


class SpanRows:
    """Rows of one shard, in stored order."""

    def __init__(self, columns: Columns) -> None:
        self.parts = (columns,)

    def gather(self, begin: int, end: int, out: Columns) -> None:
        """Copy rows ``begin`` to ``end`` into ``out``, as ``ShardRows.gather`` specifies."""
        for name, column in self.parts[0].items():
            out[name][:] = column[begin:end]


class WindowRows:
    """Rows of several shards: the i-th is row ``rows[i]`` of part ``shards[i]``.

    All parts have the same columns and types, and contain these rows.
    """

    def __init__(self, shards: NDArray[np.uint32], rows: NDArray[np.int64], parts: Sequence[Columns]) -> None:
        self._shards, self._rows, self.parts = shards, rows, parts
        native = load_library()
        self._native = [name for name, one in parts[0].items() if native is not None and not one.dtype.hasobject]
        self._others = [name for name in parts[0] if name not in self._native]
        if native is not None and self._native:
            self._gather = native.hopsml_gather_rows
            self._places = _Places(_address(shards), _address(rows))
            self._from = _arrays([[part[name] for part in parts] for name in self._native])

    def gather(self, begin: int, end: int, out: Columns) -> None:
        """Copy rows ``begin`` to ``end`` into ``out``, whose arrays are contiguous."""
        if self._native:
            targets = (ctypes.c_void_p * len(self._native))(*(_address(out[name]) for name in self._native))
            self._gather(self._from, self._places, begin, end, targets)
        if self._others:
            for shard, places in self._by_shard(begin, end):
                rows = self._rows[begin:end][places]
                for name in self._others:
                    out[name][places] = self.parts[shard][name][rows]

    def _by_shard(self, begin: int, end: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield each shard that contains some of these rows, with the positions of its rows among them."""
        import numpy as np

        shards = self._shards[begin:end]
        order = np.argsort(shards, kind="stable")
        there, firsts = np.unique(shards[order], return_index=True)
        yield from zip(there.tolist(), np.split(order, firsts)[1:], strict=True)


class _Places(ctypes.Structure):
    """Structure ``hopsml_places`` of the native library."""

    _fields_ = (("shards", ctypes.c_void_p), ("rows", ctypes.c_void_p))


class _Columns(ctypes.Structure):
    """Structure ``hopsml_columns`` of the native library."""

    _fields_ = (
        ("columns", ctypes.c_uint64),
        ("shards", ctypes.c_uint64),
        ("sizes", ctypes.POINTER(ctypes.c_uint64)),
        ("arrays", ctypes.POINTER(ctypes.c_void_p)),
    )


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return the native library with its signatures declared; None if it is not built."""
    try:
        loaded = ctypes.CDLL(str(PATH))
    except OSError:
        return None
    loaded.hopsml_gather_rows.restype = None
    loaded.hopsml_gather_rows.argtypes = (
        ctypes.POINTER(_Columns),
        ctypes.POINTER(_Places),
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_void_p),
    )
    return loaded


def _arrays(columns: Sequence[Sequence[NDArray[Any]]]) -> _Columns:
    """Return the native structure of each column's arrays, one per shard.

    They are contiguous, and the caller retains them.
    """
    sizes = [_row_size(column[0]) for column in columns]
    addresses = [_address(array) for column in columns for array in column]
    return _Columns(
        len(columns),
        len(columns[0]),
        (ctypes.c_uint64 * len(sizes))(*sizes),
        (ctypes.c_void_p * len(addresses))(*addresses),
    )


def _row_size(column: NDArray[Any]) -> int:
    """Return the bytes of one row of a column."""
    return column.dtype.itemsize * functools.reduce(int.__mul__, column.shape[1:], 1)


def _address(array: NDArray[Any]) -> int:
    """Return the memory address of an array's data."""
    return int(array.__array_interface__["data"][0])


class ArrayPool:
    """Pool of uninitialized arrays, for use by one thread.

    Touching memory for the first time costs several times as much as copying into it, so memory is reused. A view keeps
    its base array alive, whether NumPy, a tensor or the user holds it, so the array's reference count shows whether it
    is free.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, tuple[int, ...]], list[NDArray[Any]]] = {}

    def empty(self, rows: int, like: NDArray[Any]) -> NDArray[Any]:
        """Return an uninitialized array, aligned so that TensorFlow can use it without a copy.

        Args:
            rows: length of the first axis.
            like: array whose dtype and row shape the new array has. Arrays of objects are allocated by NumPy, outside
                the pool.
        """
        import numpy as np

        shape = (rows, *like.shape[1:])
        if like.dtype.hasobject:
            return np.empty(shape, like.dtype)
        size = math.prod(shape) * like.dtype.itemsize
        kept = self._arrays.setdefault((like.dtype, like.shape[1:]), [])
        for memory in kept:
            if len(memory) >= size + _ALIGNED and sys.getrefcount(memory) == _FREE:
                break
        else:
            memory = np.empty(size + _ALIGNED, np.uint8)
            if len(kept) >= _MOST:
                kept.pop(0)
            kept.append(memory)
        begin = -memory.ctypes.data % _ALIGNED
        return memory[begin : begin + size].view(like.dtype).reshape(shape)


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

    def gather_batches(self, batches: Sequence[list[Piece]]) -> Chunk:
        """Return the rows of all batches, concatenated, in arrays that the caller owns."""
        ends = tuple(itertools.accumulate(total_rows(pieces) for pieces in batches))
        parts = list(self._parts(merge_adjacent(itertools.chain(*batches)))) or [self._nothing()]
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
            rows = SpanRows(self._shard(piece.shard)) if isinstance(piece, Span) else self._window(piece.full_window)
            yield _Part(begin, begin + row_count(piece), rows, piece.begin)
            begin += row_count(piece)

    def _nothing(self) -> _Part:
        """Return the part of a share without rows, which has the columns of a shard that has rows."""
        filled = first_nonempty_shard(shards_of(self._source))
        assert filled is not None  # without rows there is no batch
        return _Part(0, 0, SpanRows(self._shard(filled)), 0)

    def _window(self, window: Window) -> WindowRows:
        """Return the row locations of a window; its shards are retained while it is the newest window."""
        if self._newest is None or self._newest[0] != window:
            there, places, rows = locate_rows(window)
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
            f"part {shard} of the data has {most} rows, but had at least {least} when the data set was created; "
            "create it again, and do not change the data while it is read"
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
                f"column '{name}' is {one} in one part of the data and {another} in another, but must have one type; "
                "rewrite the data with one schema"
            )
