"""File systems by URL: one small protocol, which the local disk and every remote store implement.

``for_url(url)`` returns the file system; its methods take whole URLs. Methods raise the StorageError of the cause,
which contains the URL, and each step of a call (one remote call, one chunk of a transfer) ends within the deadline.
Only the local file system has no deadline, since the kernel serves it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.urls import check_slashes, is_local, scheme_and_authority, split

MOST_RECORD_BYTES = 64 << 20


@dataclass(frozen=True)
class FileStatus:
    """Attributes of one file or directory; ``url`` has the form of the URL that was requested."""

    url: str
    is_dir: bool
    length: int  # bytes; 0 for a directory
    modified_s: float  # seconds since 1970; 0 where the store has none
    owner: str = ""
    group: str = ""
    permission: int = 0  # as in 0o755; 0 where the store has none
    replication: int = 0
    block_size: int = 0  # bytes
    accessed_s: float = 0.0

    @property
    def name(self) -> str:
        """Last component of the URL, without a slash; empty for a root."""
        return urls.name(self.url)


@dataclass(frozen=True)
class StoreCapacity:
    """Size of a whole store and its used part, in bytes."""

    total: int
    used: int


class FileSystem(Protocol):
    """Interface of one kind of store; every method takes whole URLs and is safe to call from any thread."""

    scheme: str
    timeout_s: float  # deadline of one step, seconds

    def status(self, url: str) -> FileStatus:
        """Return the attributes of one file or directory; PathNotFound if there is none."""

    def list_dir(self, url: str) -> list[FileStatus]:
        """Return the entries of a directory by name, temporary ones included; PathNotFound if there is none."""

    def read_bytes(self, url: str, most: int | None = None) -> bytes:
        """Return the whole content of one file.

        Args:
            url: of the file.
            most: bytes that it may have; None for any number.

        Raises:
            StorageUnavailable: it breaks off before its length.
            StorageError: it has more than ``most`` bytes; no more than these were read.
        """

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""

    def write_bytes(self, url: str, data: bytes, overwrite: bool = True) -> None:
        """Write a file, completely or not at all; missing parents are created.

        Without ``overwrite`` PathExists is raised if it exists; of several concurrent writers one succeeds.
        """

    def append_bytes(self, url: str, data: bytes) -> None:
        """Append to a file, which is created if missing; readers may see a part."""

    def upload(self, local: str | os.PathLike[str], url: str, overwrite: bool = True) -> None:
        """Copy one local file to ``url``, completely or not at all; missing parents are created."""

    def download(self, url: str, local: str | os.PathLike[str]) -> None:
        """Copy one file to a local path, completely or not at all; an existing local file is replaced."""

    def open_read(self, url: str) -> BinaryIO:
        """Return a seekable binary reader of one file, which fetches data on demand."""

    def open_write(self, url: str, overwrite: bool = True) -> BinaryIO:
        """Return a binary writer; the file appears when it is closed, and not at all if its ``with`` block fails."""

    def make_dirs(self, url: str, mode: int | None = None) -> None:
        """Create a directory with its parents; an existing directory is accepted, an existing file is PathExists.

        Args:
            url: URL of the directory.
            mode: permission of ``url`` itself, if it is created now; None: like all created parents, that of the
                directory above (``privacy``).
        """

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Rename a file or directory atomically.

        ``overwrite`` replaces a file (or an empty directory), never a tree; without it an existing target is
        PathExists.
        """

    def delete(self, url: str, recursive: bool = False) -> bool:
        """Delete a file, an empty directory, or with ``recursive`` a full one; False if there was none."""

    def set_permission(self, url: str, mode: int) -> None:
        """Change the permission bits to ``mode``, as in ``0o755``; StorageError where a store has none."""

    def set_owner(self, url: str, owner: str | None = None, group: str | None = None) -> None:
        """Change owner and group, by name; None leaves one unchanged. StorageError where a store has none."""

    def capacity(self, url: str) -> StoreCapacity:
        """Return size and use of the store that holds ``url``; StorageError where they are not available."""


_LOCAL, _REMOTE = "hopsml.storage.local", "hopsml.storage.remote.adapter"  # create(url, timeout_s) -> FileSystem


def for_url(url: str | os.PathLike[str], timeout_s: float | None = None) -> FileSystem:
    """Return the file system for a URL; no connection is made yet.

    Args:
        url: URL or local path.
        timeout_s: deadline of one step, in seconds; by default ``HOPSML_STORAGE_TIMEOUT_S``, else 30.

    Raises:
        ArgumentError: an unknown scheme, or an invalid timeout.
    """
    text = os.fspath(url)
    if timeout_s is not None and not timeout_s > 0:
        raise ArgumentError(f"timeout_s={timeout_s!r}: the timeout must be greater than 0 seconds")
    check_slashes(text)
    module = importlib.import_module(_LOCAL if is_local(text) else _REMOTE)
    system: FileSystem = module.create(text, SETTINGS.storage_timeout_s if timeout_s is None else timeout_s)
    return system


def exists(url: str, timeout_s: float | None = None) -> bool:
    """Return True if there is a file or directory; other errors than PathNotFound are raised."""
    try:
        for_url(url, timeout_s).status(url)
    except PathNotFound:
        return False
    return True


def read_record(url: str, timeout_s: float | None = None) -> bytes:
    """Return the content of a record, which is read as a whole, and may be made by others: at most ``MOST_RECORD_BYTES``.

    Raises StorageError.
    """
    return for_url(url, timeout_s).read_bytes(url, MOST_RECORD_BYTES)


def check_length(url: str, length: int, most: int | None) -> None:
    """Raise StorageError for a file that has more than ``most`` bytes, of ``length`` that are there or were read."""
    if most is not None and length > most:
        raise StorageError(
            f"cannot read {url}: it has more than the {most} bytes that a record can have, so hopsml did not write "
            "it; inspect the file, then move or delete it",
            url,
        )


def walk(url: str, timeout_s: float | None = None) -> Iterator[FileStatus]:
    """Yield everything below a directory, parents before their entries, by name.

    PathNotFound if there is no such directory. One below it that is deleted or renamed during the walk, as a temporary
    one of a running training is, counts as empty.
    """
    system = for_url(url, timeout_s)
    pending = [url]
    while pending:
        folder = pending.pop()
        try:
            entries = system.list_dir(folder)
        except PathNotFound:
            if folder == url:
                raise
            continue
        yield from entries
        pending.extend(entry.url for entry in reversed(entries) if entry.is_dir)


def is_same_store(one: str, other: str) -> bool:
    """Return True if both URLs are on one store, so that a rename between them can work."""
    return scheme_and_authority(one) == scheme_and_authority(other) or (is_local(one) and is_local(other))


def copy(source: str, target: str, overwrite: bool = True) -> None:
    """Copy one file between any two stores.

    A local temporary file is used unless one of them is local.
    """
    import tempfile

    if is_local(source):
        return for_url(target).upload(split(source)[2], target, overwrite)
    if is_local(target) and overwrite:
        return for_url(source).download(source, split(target)[2])
    with tempfile.TemporaryDirectory(prefix="hopsml-copy-") as folder:
        local = Path(folder, "file")
        for_url(source).download(source, local)
        for_url(target).upload(local, target, overwrite)
    return None


def close_all() -> None:
    """End the idle helper processes of remote file systems; later calls start new ones."""
    remote = sys.modules.get(_REMOTE)
    if remote is not None:
        remote.close_all()


def kill_all() -> None:
    """Kill all helper processes of remote file systems at once.

    For a process that exits without cleaning up.
    """
    remote = sys.modules.get(_REMOTE)
    if remote is not None:
        remote.kill_all()
