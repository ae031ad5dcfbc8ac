"""All logs of a run as one zip that is made while it is sent: whatever their length, a megabyte of them is in memory."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator

from hopsml.service.browse import files
from hopsml.service.browse.log_files import found_logs
from hopsml.storage.run_dir import RunDir


class _Sink(io.RawIOBase):
    """What the zip's writer has written and nobody has taken; it cannot be gone back in."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # as the zip's writer calls it
        self._pieces.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        whole, self._pieces = b"".join(self._pieces), []
        return whole


def zipped(directory: RunDir, now: float) -> Iterator[bytes]:
    """The zip's bytes, piece by piece; of a log that grows, what there is when this begins. Raises StorageError."""
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
