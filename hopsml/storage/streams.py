"""File objects over a store that can read ranges and upload whole files."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO, cast

READ_BUFFER_BYTES = 1 << 20
READ_ALL_BYTES = 32 << 20


class RangeReader(io.RawIOBase):
    """Seekable reader over ``read_range(offset, length)``, which holds no connection between reads."""

    def __init__(self, read_range: Callable[[int, int], bytes], length: int) -> None:
        self._read_range = read_range
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the stream can seek."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position and return it; raises ValueError for one before the beginning."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise ValueError(f"seek to {start + offset}: before the beginning of the file")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return the present position in bytes."""
        return self._at

    def readall(self) -> bytes:
        """Return all bytes from the present position to the end."""
        pieces = []
        while piece := self._take(READ_ALL_BYTES):  # io's default method reads 8 KiB at a time
            pieces.append(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        """Read bytes into ``buffer``, and return their number."""
        view = memoryview(buffer).cast("B")
        data = self._take(len(view))
        view[: len(data)] = data
        return len(data)

    def _take(self, wanted: int) -> bytes:
        wanted = min(wanted, max(0, self._length - self._at))
        data = self._read_range(self._at, wanted) if wanted else b""
        self._at += len(data)
        return data


def buffered_reader(read_range: Callable[[int, int], bytes], length: int) -> BinaryIO:
    """Return a binary reader whose remote reads are about 1 MiB each."""
    return io.BufferedReader(RangeReader(read_range, length), READ_BUFFER_BYTES)


class SpooledWriter(io.RawIOBase):
    """Writer to local disk; ``finish(path)`` uploads the file at close, unless the ``with`` block failed.

    On Linux the local file has no name, so that nothing remains of it when the process is killed; ``path`` is its entry
    in ``/proc``, which helper processes of the same user can open. Elsewhere it has a name.
    """

    def __init__(self, finish: Callable[[str], None]) -> None:
        self._finish = finish
        with_name = not os.path.isdir("/proc")
        kind = tempfile.NamedTemporaryFile if with_name else tempfile.TemporaryFile
        self._file = kind(prefix="hopsml-spool-")
        self._path = self._file.name if with_name else f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        self._failed = False

    def writable(self) -> bool:
        """Return True: the stream can be written."""
        return True

    def seekable(self) -> bool:
        """Return False: the stream cannot seek."""
        return False

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._file.tell()

    def write(self, data: Any) -> int:
        """Write bytes to the local file, and return their number."""
        return self._file.write(data)

    def flush(self) -> None:
        """Flush the local file, unless it is closed."""
        if not self._file.closed:
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed = kind is not None
        self.close()

    def close(self) -> None:
        """Upload the local file, unless the ``with`` block failed, and delete it."""
        if self.closed:
            return
        try:
            self._file.flush()
            if not self._failed:
                self._finish(self._path)
        finally:
            self._file.close()
            super().close()

    def __del__(self) -> None:
        self._failed = True  # garbage-collected without close: no file may appear
        super().__del__()


def spooled_writer(finish: Callable[[str], None]) -> BinaryIO:
    """Return a binary writer that passes its content to ``finish`` as a local file when it is closed."""
    return cast("BinaryIO", SpooledWriter(finish))
