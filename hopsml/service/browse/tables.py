"""First rows of a CSV or Parquet file as text; only a small part is read, whatever the file's size."""

from __future__ import annotations

import contextlib
import csv
import io
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from hopsml.core.decoding import checked
from hopsml.errors import ArgumentError, StorageError
from hopsml.service.browse import files
from hopsml.storage import python_child
from hopsml.storage.filesystem import for_url

ROWS, COLUMNS, LETTERS = 100, 60, 200  # most rows, columns and characters of a cell that are displayed
CSV_BYTES = 256 << 10
PARQUET_BYTES = 32 << 20  # most bytes that are read: the end of the file, and the pages with the first rows
# limits of the process that reads Parquet: address space, and seconds without a message
READER_BYTES, READER_S = 1 << 30, 30.0
READER_CPU_S = 20  # CPU seconds of that process
ANSWER_BYTES = 16 << 20
_readers = threading.BoundedSemaphore(2)  # concurrent processes
_FROM_READER, _TO_READER = (
    struct.Struct("<qq"),
    struct.Struct("<q"),
)  # offset, size (-1: of the answer); size (-1: refused)
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_BUFFER = 64 << 10


class TableHead(msgspec.Struct, frozen=True):
    """First rows of a table.

    Attributes:
        columns: Names of the columns.
        rows: Cells as text.
        total: Number of all rows, if known.
        is_cut: True if the table has more rows or columns than these.
        types: Types of the columns; empty if the file does not name them.
    """

    columns: list[str]
    rows: list[list[str]]
    total: int | None
    is_cut: bool
    types: list[str] = []


_table = checked(msgspec.json.Decoder(TableHead).decode)


def read_first_rows(url: str) -> TableHead:
    """Return the first rows of a table file.

    Raises:
        ArgumentError: The file is not a table that can be displayed.
        StorageError: The file cannot be read.
    """
    ending = "." + url.rpartition(".")[2].lower()
    length = files.file_length(url)
    if length is not None and ending in _SEPARATORS:
        return _of_text(for_url(url).read_range(url, 0, min(CSV_BYTES, length)) if length else b"", length, ending)
    if length is not None and ending == ".parquet":
        return _of_parquet(url, length)
    raise ArgumentError(
        f"path={url.rpartition('/')[2][:80]!r}: of *.csv, *.tsv and *.parquet rows are shown here; download it"
    )


def _of_text(content: bytes, length: int, ending: str) -> TableHead:
    """Parse the beginning of a CSV or TSV file."""
    text = content.decode("utf-8-sig", errors="replace")
    if len(content) < length:
        text = text.rpartition("\n")[0]  # the last line is incomplete
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=_SEPARATORS[ending])
        found = [row for row, _ in zip(reader, range(ROWS + 2), strict=False)]
    except csv.Error as error:
        raise ArgumentError(f"the rows cannot be told apart ({error}); download it") from error
    wide = max(map(len, found), default=0)
    is_cut = len(content) < length or len(found) > ROWS + 1 or wide > COLUMNS
    names, *rows = found or [[]]
    return TableHead(_cells(names), [_cells(row) for row in rows[:ROWS]], None if is_cut else len(rows), is_cut)


def _of_parquet(url: str, length: int) -> TableHead:
    """Read a Parquet file in a separate process: a kilobyte of compressed pages may expand to gigabytes of rows."""
    if not _readers.acquire(timeout=0.5):  # a short wait only, as otherwise all threads of the server might wait here
        raise ArgumentError("other tables are being read at this moment; try again")
    with contextlib.ExitStack() as at_end:
        at_end.callback(_readers.release)
        ours, theirs = socket.socketpair()
        at_end.enter_context(ours)
        ours.settimeout(READER_S)
        with theirs:
            descriptor = theirs.fileno()
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            reader = python_child.start(__name__, str(length), str(descriptor), pass_fds=[descriptor], **quiet)
        try:
            answer = _serve_ranges(ours, url, length)
        except (OSError, EOFError) as error:  # the process was killed by its limits, or takes too long
            if isinstance(error, StorageError):
                raise
            limit = f"{READER_BYTES >> 20} MiB of memory or {READER_CPU_S} s"
            raise ArgumentError(f"its first rows take more than {limit}; download it") from error
        finally:
            reader.kill()
            reader.wait()
    try:
        return _table(answer)
    except msgspec.MsgspecError:
        raise ArgumentError(
            f"its rows cannot be shown ({answer.decode(errors='replace')[:200]}); download it"
        ) from None


def _serve_ranges(connection: socket.socket, url: str, length: int) -> bytes:
    """Send the ranges of a file that the reader process requests, at most ``PARQUET_BYTES``; return its answer."""
    left = PARQUET_BYTES
    while True:
        offset, size = _FROM_READER.unpack(_received(connection, _FROM_READER.size))
        if offset < 0:
            return _received(connection, min(size, ANSWER_BYTES))
        size = max(0, min(size, length - offset))
        left -= size
        if left < 0:
            connection.sendall(_TO_READER.pack(-1))
            continue
        found = for_url(url).read_range(url, offset, size) if size else b""
        connection.sendall(_TO_READER.pack(len(found)) + found)


def _received(connection: socket.socket, size: int) -> bytes:
    """Receive exactly ``size`` bytes. Raises EOFError if the connection ends before."""
    pieces = bytearray()
    while len(pieces) < size:
        if not (piece := connection.recv(min(size - len(pieces), 1 << 20))):
            raise EOFError
        pieces += piece
    return bytes(pieces)


def _answer(length: int, connection: socket.socket) -> None:
    """Read the table in the reader process, and send its first rows, or an error text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    resource.setrlimit(resource.RLIMIT_AS, (READER_BYTES, READER_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (READER_CPU_S, READER_CPU_S))
    try:
        with pq.ParquetFile(_Ranges(connection, length), buffer_size=_BUFFER, pre_buffer=False) as parquet:
            schema, total = parquet.schema_arrow, int(parquet.metadata.num_rows)
            names, types = list(schema.names), _cells(schema.types)
            batch = next(parquet.iter_batches(batch_size=ROWS, columns=names[:COLUMNS], use_threads=False), None)
            rows = [] if batch is None else list(zip(*(map(_cell, one) for one in batch.columns), strict=True))
        is_cut = total > len(rows) or len(names) > COLUMNS
        head = TableHead(_cells(names), [list(row) for row in rows], total, is_cut, types)
        answer = msgspec.json.encode(head)
    except MemoryError:
        answer = f"its first rows take more than {READER_BYTES >> 20} MiB".encode()
    except (pa.ArrowException, OSError, ValueError) as error:
        answer = str(error).encode(errors="replace")
    connection.sendall(_FROM_READER.pack(-1, len(answer)) + answer)


def _cell(value: Any) -> str:
    """Return the text of one Arrow value."""
    return _cells([value.as_py()])[0]


def _cells(values: Sequence[Any]) -> list[str]:
    """Return the texts of values, shortened to the displayed columns and characters."""
    return [f"{len(one)} bytes" if isinstance(one, bytes) else str(one)[:LETTERS] for one in values[:COLUMNS]]


class _Ranges(io.RawIOBase):
    """File for pyarrow whose bytes another process sends on request."""

    def __init__(self, connection: socket.socket, length: int) -> None:
        self._connection, self._length, self._at = connection, length, 0

    def readable(self) -> bool:
        """Return True, as the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return True, as the file is seekable."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read, and return it."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of the file. Raises OSError if the limit is exceeded."""
        wanted = max(0, min(self._length - self._at, size if size >= 0 else self._length))
        self._connection.sendall(_FROM_READER.pack(self._at, wanted))
        (length,) = _TO_READER.unpack(_received(self._connection, _TO_READER.size))
        if length < 0:
            raise OSError(f"its first rows take more than {PARQUET_BYTES >> 20} MiB")
        found = _received(self._connection, length)
        self._at += len(found)
        return found


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as opened:
        _answer(int(sys.argv[1]), opened)
