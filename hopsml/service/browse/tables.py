"""The first rows of a CSV or Parquet file, as texts: little is read of it, whatever its size."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from hopsml.errors import ArgumentError
from hopsml.service.browse import files
from hopsml.storage.filesystem import for_url

ROWS, COLUMNS, LETTERS = 100, 60, 200  # that are shown, the last ones of a cell
CSV_BYTES = 256 << 10
PARQUET_BYTES = 32 << 20  # of its end, and of the pages that hold the first rows
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_BUFFER = 64 << 10


class TableHead(msgspec.Struct, frozen=True):
    """``total``: rows in all, where the file says so; ``is_cut``: there are more rows, or columns, than these."""

    columns: list[str]
    rows: list[list[str]]
    total: int | None
    is_cut: bool


def head(url: str) -> TableHead:
    """The first rows. Raises ArgumentError where the file is no table that is shown here, StorageError."""
    ending = "." + url.rpartition(".")[2].lower()
    length = files.length(url)
    if length is not None and ending in _SEPARATORS:
        return _of_text(for_url(url).read_range(url, 0, min(CSV_BYTES, length)) if length else b"", length, ending)
    if length is not None and ending == ".parquet":
        return _of_parquet(_Ranges(url, length))
    raise ArgumentError(
        f"path={url.rpartition('/')[2][:80]!r}: of *.csv, *.tsv and *.parquet rows are shown here; download it"
    )


def _of_text(content: bytes, length: int, ending: str) -> TableHead:
    text = content.decode("utf-8-sig", errors="replace")
    if len(content) < length:
        text = text.rpartition("\n")[0]  # the last line is not whole
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=_SEPARATORS[ending])
        found = [row for row, _ in zip(reader, range(ROWS + 2), strict=False)]
    except csv.Error as error:
        raise ArgumentError(f"the rows cannot be told apart ({error}); download it") from error
    wide = max(map(len, found), default=0)
    is_cut = len(content) < length or len(found) > ROWS + 1 or wide > COLUMNS
    names, *rows = found or [[]]
    return TableHead(_cells(names), [_cells(row) for row in rows[:ROWS]], None if is_cut else len(rows), is_cut)


def _of_parquet(file: _Ranges) -> TableHead:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as parquet:
            names, total = list(parquet.schema_arrow.names), int(parquet.metadata.num_rows)
            batch = next(parquet.iter_batches(batch_size=ROWS, columns=names[:COLUMNS]), None)
            rows = [] if batch is None else list(zip(*(one.to_pylist() for one in batch.columns), strict=True))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ArgumentError(f"its rows cannot be shown ({str(error)[:200]}); download it") from error
    return TableHead(_cells(names), [_cells(row) for row in rows], total, total > len(rows) or len(names) > COLUMNS)


def _cells(values: Sequence[Any]) -> list[str]:
    return [f"{len(one)} bytes" if isinstance(one, bytes) else str(one)[:LETTERS] for one in values[:COLUMNS]]


class _Ranges(io.RawIOBase):
    """A file on any store as pyarrow reads it, which refuses to read more than ``PARQUET_BYTES`` of it."""

    def __init__(self, url: str, length: int) -> None:
        self._url, self._length, self._at, self._left = url, length, 0, PARQUET_BYTES

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go there."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The next bytes. Raises OSError where that is too much."""
        wanted = max(0, min(self._length - self._at, size if size >= 0 else self._length))
        if wanted > self._left:
            raise OSError(f"its first rows take more than {PARQUET_BYTES >> 20} MiB")
        found = for_url(self._url).read_range(self._url, self._at, wanted) if wanted else b""
        self._at, self._left = self._at + len(found), self._left - len(found)
        return found
