"""Request log: one JSON line per request, in local segments of limited size that are uploaded when complete.

    <folder>/<writer>-<n>.part      being written
    <folder>/<writer>-<n>.jsonl     complete: to be uploaded, then deleted

Segments that cannot be uploaded remain, up to a limit; beyond it new lines are dropped and counted, and requests are
still answered. Uploads pause while the storage is unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.core.newer_python import UTC, asyncio_wait_for
from hopsml.errors import StorageError
from hopsml.serving import bodies, definitions, tensors
from hopsml.serving.definitions import ServingFolder
from hopsml.serving.messages import ServingSettings
from hopsml.storage import urls
from hopsml.storage.backoff import Outage
from hopsml.storage.filesystem import for_url

if TYPE_CHECKING:
    from hopsml.serving.loaded_versions import Arrays


MOST_BYTES = 256 << 20  # of all segments on this machine
SEGMENT_BYTES = 8 << 20
SEGMENT_S = 60.0  # age at which a segment is completed, whatever its size
FLUSH_BYTES = 64 << 10
PART, COMPLETE = ".part", ".jsonl"
_PART = re.compile(r"(.+)-(\d+)\.part")


def format_line(
    when_s: float,
    version: int,
    inputs: Arrays,
    outputs: Arrays | None,
    status: int,
    seconds: float,
    asked_id: str | None,
) -> bytes:
    """Return the JSON line of one request.

    Args:
        when_s: Time in seconds since 1970; key ``time``.
        version: Version that answered.
        inputs: Arrays by input.
        outputs: Arrays by output; None, written as null, if the request failed.
        status: HTTP status.
        seconds: Duration in seconds; key ``ms``, in milliseconds.
        asked_id: ID of the request; key ``id``, omitted if None.
    """
    content: dict[str, Any] = {
        "time": round(when_s, 3),
        "version": version,
        "inputs": {name: tensors.to_json_value(array) for name, array in inputs.items()},
        "outputs": None if outputs is None else {name: tensors.to_json_value(array) for name, array in outputs.items()},
        "status": status,
        "ms": round(seconds * 1000, 3),
    }
    return bodies.dumps(content if asked_id is None else {**content, "id": asked_id}) + b"\n"


class RequestLog:
    """Writer of the request log; each write of at most about 64 KiB is the only wait for the disk.

    It must be used by a single thread.
    """

    def __init__(self, folder: Path, writer: str, most_bytes: int = MOST_BYTES) -> None:
        """Initialize the writer and create the folder.

        Args:
            folder: Folder of the segments.
            writer: Name of this writer, which ends with its pid.
            most_bytes: Maximum size of all segments in the folder.
        """
        self.dropped = 0
        self._folder, self._writer, self._most_bytes = folder, writer, most_bytes
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._number = 0
        self._file: int | None = None
        self._written = 0
        self._began_s = 0.0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, text: bytes) -> None:
        """Add one line to the buffer, and flush a full buffer."""
        self._buffer.append(text)
        self._buffered += len(text)
        if self._buffered >= FLUSH_BYTES:
            self.flush()

    def flush(self, now_s: float | None = None) -> None:
        """Write the buffer, and complete a segment that is long or old enough; ``now_s`` is monotonic."""
        now = time.monotonic() if now_s is None else now_s
        if self._buffer:
            lines, self._buffer, self._buffered = self._buffer, [], 0
            try:
                self._append(b"".join(lines), now)
            except OSError:  # disk full, or the folder was deleted
                self.dropped += len(lines)
        if self._file is not None and (self._written >= SEGMENT_BYTES or now - self._began_s >= SEGMENT_S):
            self.complete_segment()

    def _append(self, content: bytes, now: float) -> None:
        """Write content to the current segment, or to a new one."""
        if self._file is None:
            if total_segment_bytes(self._folder) + len(content) > self._most_bytes:
                raise OSError("the request log has reached its maximum size")
            self._number += 1
            path = self._folder / f"{self._writer}-{self._number}{PART}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            self._written, self._began_s = 0, now
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._file, left) :]  # a disk that is nearly full accepts a part
        except OSError:
            os.ftruncate(self._file, self._written)  # the part of a line would be in the middle of the file
            raise
        self._written += len(content)

    def complete_segment(self) -> None:
        """Complete the current segment, so that it can be uploaded."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            complete_segment_file(self._folder / f"{self._writer}-{self._number}{PART}")

    def close(self) -> None:
        """Write the buffer and complete the current segment."""
        self.flush()
        self.complete_segment()


def total_segment_bytes(folder: Path) -> int:
    """Return the total size of all segments in bytes."""
    total = 0
    for entry in os.scandir(folder):
        try:
            total += entry.stat().st_size
        except FileNotFoundError:  # uploaded since the listing
            continue
    return total


def complete_segment_file(part: Path) -> None:
    """Complete a segment that is no longer written; an incomplete last line of a killed writer is cut off."""
    try:
        content_end = _end_of_last_line(part)
        if content_end == 0:
            part.unlink()
            return
        os.truncate(part, content_end)
        part.rename(part.with_suffix(COMPLETE))
    except FileNotFoundError:
        pass


def _end_of_last_line(part: Path) -> int:
    """Return the length of a segment up to its last complete line."""
    end = part.stat().st_size
    with part.open("rb") as file:
        while end:
            begin = max(0, end - (4 << 20))
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0


def abandoned_segments(names: list[str], writers: set[str]) -> list[str]:
    """Return the names of unfinished segments whose writers have ended."""
    return [name for name in names if (found := _PART.fullmatch(name)) and found[1] not in writers]


log = logging.getLogger("hopsml.serving")

EVERY_S = 2.0
LAST_TIMEOUT_S = 20.0  # at the end; remaining segments are uploaded after the next start


class RequestLogUploader:
    """Uploader of the request log, including segments of killed replicas; it runs in the supervisor or agent."""

    def __init__(self, folder: ServingFolder, settings: ServingSettings) -> None:
        self._folder, self._settings = folder.requests, settings
        self._one = threading.Lock()  # the last upload may start during an abandoned one
        self._outage = Outage(EVERY_S)

    async def run(self) -> None:
        """Upload complete segments periodically, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            if self._outage.may_try(time.monotonic()):
                await asyncio.to_thread(self._ship)

    async def upload_remaining(self) -> None:
        """Upload the remaining segments, when no replica writes any more."""
        try:
            await asyncio_wait_for(asyncio.to_thread(self._ship), LAST_TIMEOUT_S)
        except TimeoutError:
            log.warning("the rest of the request log remains in %s, and is written at the next start", self._folder)

    def _ship(self) -> None:
        """Upload all complete segments, one upload at a time."""
        with self._one:
            if self._folder.is_dir():
                self._ship_all()

    def _ship_all(self) -> None:
        """Complete the segments of ended writers, and upload all complete ones."""
        for name in abandoned_segments([path.name for path in self._folder.iterdir()], self._writers()):
            with contextlib.suppress(FileNotFoundError):
                complete_segment_file(self._folder / name)
        for path in sorted(self._folder.glob(f"*{COMPLETE}")):
            try:
                self._upload(path)
            except FileNotFoundError:  # another agent on this machine has uploaded it
                continue
            except StorageError as error:
                if self._outage.record_failure(time.monotonic()):
                    log.warning(
                        "the request log is stored locally in %s until it can be written: %s", self._folder, error
                    )
                return
        if self._outage.record_success():
            log.info("the request log is written to storage again")

    def _writers(self) -> set[str]:
        """Return the names of writers whose processes run; a name ends with the pid."""
        names = {path.name.rpartition("-")[0] for path in self._folder.glob(f"*{PART}")}
        return {name for name in names if Path("/proc", name.rpartition("-")[2]).exists()}

    def _upload(self, path: Path) -> None:
        """Upload a segment to the folder of its day, and delete it."""
        when = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        day = urls.join(definitions.request_log_url(self._settings.name, self._settings.project), f"{when:%Y-%m-%d}")
        url = urls.join(day, f"{socket.gethostname()}-{when:%H%M%S}-{path.name}")
        for_url(url).upload(path, url)
        path.unlink()
