"""Zip archive of all logs of a run, created while it is sent: about a megabyte is in memory, whatever their length."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator

from hopsml.service.browse import files
from hopsml.service.browse.log_files import found_logs
from hopsml.storage.run_dir import RunDir


class _Sink(io.RawIOBase):
    """Output of the zip writer that was not sent yet; it is not seekable."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        """Return True, as the zip writer requires."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # the signature that the zip writer uses
        """Append bytes, and return their number."""
        self._pieces.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        """Return the bytes that were written since the last call."""
        whole, self._pieces = b"".join(self._pieces), []
        return whole


def zipped(directory: RunDir, now: float) -> Iterator[bytes]:
    """Yield the zip archive of a run's logs in pieces.

    A log that grows is included with the length that it has at the start.

    Args:
        directory: The run's directory.
        now: The time, in seconds since 1970, for the entries.

    Raises:
        StorageError: A log cannot be read.
    """
    logs, sink = found_logs(directory), _Sink()
    moment = time.gmtime(now)[:6]
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for log in logs:
            entry = zipfile.ZipInfo(f"{directory.run_id}/{log.name}", moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                for piece in files.pieces(log.url, 0, log.bytes):
                    member.write(piece)
                    if ready := sink.taken():
                        yield ready
    yield sink.taken()
