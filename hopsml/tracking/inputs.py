"""Data references: which files a run read, how large they were and what was in them.

``data(url)`` notes an input and gives the URL back, so that it can stand where the URL stood. In a worker the chief writes
it to the run's ``inputs.jsonl``; on the driver it belongs to every run that this process starts afterwards.

Every worker imports this module before the user's function, so what only a call needs is imported by the call.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hopsml import redact
from hopsml.errors import HopsmlError

if TYPE_CHECKING:
    from hopsml.storage.filesystem import FileStatus

LIMIT_BYTES = 256 << 20  # more than that is not read through for a checksum
_CHUNK = 1 << 20
Url = TypeVar("Url", str, "os.PathLike[str]")

_lock = threading.Lock()
_of_driver: dict[str, dict[str, Any]] = {}
_write: Callable[[dict[str, Any]], None] | None = None


class WorkerFacts(Protocol):
    """The attributes of a worker's context that are used here."""

    @property
    def rank(self) -> int:
        """The worker's rank in its group; 0 is the chief."""

    @property
    def events_dir(self) -> Path:
        """Local folder of event files; its parent is the local copy of the run directory."""


def data(url: Url, *, limit_bytes: int = LIMIT_BYTES) -> Url:
    """Note a file or folder as an input of the run: size, time, and a checksum of the content; returns ``url``.

    Beyond ``limit_bytes`` the content is not read: the checksum is then one of names, sizes and times, and the record says
    so. An input that cannot be read is noted with the reason, for the training function to stumble over itself.
    """
    if _write is _ignore:
        return url
    try:
        facts = describe(os.fspath(url), limit_bytes)
    except HopsmlError as error:
        facts = {"url": os.fspath(url), "problem": str(error)}
    if _write is not None:
        _write(facts)
    else:
        with _lock:
            _of_driver[facts["url"]] = facts
    return url


def declared() -> list[dict[str, Any]]:
    """The inputs noted so far in this process, which is a driver."""
    with _lock:
        return list(_of_driver.values())


def attach(context: WorkerFacts) -> None:
    """Called in every worker before the user's function: inputs go to the run directory, noted by the chief alone."""
    global _write
    if context.rank != 0:
        _write = _ignore
        return
    target = context.events_dir.parent / "inputs.jsonl"

    def write(facts: dict[str, Any]) -> None:
        line = json.dumps({"time": time.time(), **redact.record(facts)}, ensure_ascii=False) + "\n"
        with _lock, open(target, "ab") as file:
            file.write(line.encode())

    _write = write


def describe(url: str, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """Size in bytes, number of files, latest change and checksum of a file or folder. Raises StorageError."""
    from hopsml.storage import filesystem, urls

    status = filesystem.for_url(url).status(url)
    files = [status]
    if status.is_dir:
        files = [file for file in filesystem.walk(url) if not file.is_dir and not urls.is_temporary(file.url)]
    total = sum(file.length for file in files)
    is_read = total <= limit_bytes
    return {
        "url": url,
        "bytes": total,
        "files": len(files),
        "modified_s": max((file.modified_s for file in files), default=status.modified_s),
        "checksum": _of_content(url, status, files) if is_read else _of_listing(url, status, files),
        "checksum_of": "content" if is_read else "names, sizes and times",
    }


def _of_content(url: str, status: FileStatus, files: list[FileStatus]) -> str:
    import hashlib

    if not status.is_dir:
        return "sha256:" + _hash(url)
    total = hashlib.sha256()
    for name, file in _by_name(url, files):
        total.update(f"{name}\0{file.length}\0{_hash(file.url)}\n".encode())
    return "sha256:" + total.hexdigest()


def _of_listing(url: str, status: FileStatus, files: list[FileStatus]) -> str:
    import hashlib

    total = hashlib.sha256()
    for name, file in _by_name(url, files) if status.is_dir else [("", status)]:
        total.update(f"{name}\0{file.length}\0{file.modified_s}\n".encode())
    return "sha256:" + total.hexdigest()


def _by_name(url: str, files: list[FileStatus]) -> list[tuple[str, FileStatus]]:
    from hopsml.storage import urls

    return sorted((urls.relative(file.url, url), file) for file in files)


def _hash(url: str) -> str:
    import hashlib

    from hopsml.storage import filesystem

    total = hashlib.sha256()
    with filesystem.for_url(url).open_read(url) as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


def _ignore(facts: dict[str, Any]) -> None:
    """On ranks other than the chief's."""
