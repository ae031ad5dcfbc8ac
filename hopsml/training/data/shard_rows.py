"""Rows of shards in memory: a range of one shard, or single rows of many shards.

Rows of many shards are gathered by ``libhopsml_rows.so`` (``native/rows/gather.h``), or by NumPy if it is not built.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Columns = dict[str, "NDArray[Any]"]
PATH = Path(__file__).parent / "lib" / "libhopsml_rows.so"


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
        native = library()
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
def library() -> ctypes.CDLL | None:
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
