"""File systems by URL: one small protocol, and a table from scheme to the module that speaks it.

``for_url(url)`` gives the file system; its methods take whole URLs. Methods raise the StorageError of the
cause, with the URL in it, and each step of a call (one remote call, one chunk of a transfer) ends within the
deadline. The local file system alone has no deadline: it is the kernel that answers.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from hopsml import settings
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import urls
from hopsml.storage.urls import base, is_temporary, join, name, parent, relative, remote_of, split

__all__ = [
    "Capacity",
    "FileStatus",
    "FileSystem",
    "base",
    "close_all",
    "copy",
    "exists",
    "for_url",
    "is_temporary",
    "join",
    "name",
    "parent",
    "relative",
    "remote_of",
    "resolve",
    "same_store",
    "split",
    "walk",
]


@dataclass(frozen=True)
class FileStatus:
    """What is known of one file or directory. ``url`` has the form of the URL that was asked about."""

    url: str
    is_dir: bool
    length: int  # bytes; 0 for a directory
    modified_s: float  # seconds since 1970; 0 where the store does not say
    owner: str = ""
    group: str = ""
    permission: int = 0  # as in 0o755; 0 where the store has none
    replication: int = 0
    block_size: int = 0  # bytes
    accessed_s: float = 0.0

    @property
    def name(self) -> str:
        """Last component of the URL."""
        return urls.name(self.url)


@dataclass(frozen=True)
class Capacity:
    """Size of a whole store, bytes."""

    total: int
    used: int


class FileSystem(Protocol):
    """One kind of store. Every method takes whole URLs and is safe to call from any thread."""

    scheme: str
    timeout_s: float  # deadline of one step, seconds

    def status(self, url: str) -> FileStatus:
        """PathNotFound if there is nothing."""

    def list_dir(self, url: str) -> list[FileStatus]:
        """Entries of a directory by name, temporary ones included; PathNotFound if there is none."""

    def read_bytes(self, url: str) -> bytes:
        """The whole file; its length is checked."""

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the file."""

    def write_bytes(self, url: str, data: bytes, overwrite: bool = True) -> None:
        """Whole or not at all. Missing parents are made. Without ``overwrite``, of several writers one
        succeeds.
        """

    def append_bytes(self, url: str, data: bytes) -> None:
        """Add to the end of a file, made if missing; readers may see a part."""

    def upload(self, local: str | os.PathLike[str], url: str, overwrite: bool = True) -> None:
        """One local file, whole or not at all; missing parents are made."""

    def download(self, url: str, local: str | os.PathLike[str]) -> None:
        """One file to a local path, whole or not at all; a local file there is replaced."""

    def open_read(self, url: str) -> BinaryIO:
        """A seekable binary reader."""

    def open_write(self, url: str, overwrite: bool = True) -> BinaryIO:
        """A binary writer; the file appears when it is closed, and not at all if its ``with`` block fails."""

    def make_dirs(self, url: str, mode: int | None = None) -> None:
        """With parents; an existing directory is fine, an existing file is PathExists.

        What is made is as open as what it lies in (``privacy``); ``mode`` is that of ``url`` itself, if it is made now.
        """

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """In one step. ``overwrite`` replaces a file (or an empty directory), never a tree."""

    def delete(self, url: str, recursive: bool = False) -> bool:
        """Whether there was something. A directory with entries needs ``recursive``."""

    def set_permission(self, url: str, mode: int) -> None:
        """As in ``0o755``."""

    def set_owner(self, url: str, owner: str | None = None, group: str | None = None) -> None:
        """What is None stays."""

    def capacity(self, url: str) -> Capacity:
        """Of the store that holds ``url``."""

    def close(self) -> None:
        """Let go of idle helper processes and connections; a later call makes new ones."""


_MODULES = {  # scheme -> module; each has create(url, timeout_s) -> FileSystem
    "": "hopsml.storage.local",
    "file": "hopsml.storage.local",
    "hdfs": "hopsml.storage.hdfs_store",
    "hopsfs": "hopsml.storage.hdfs_store",
    "viewfs": "hopsml.storage.hdfs_store",
    "webhdfs": "hopsml.storage.webhdfs",
    "swebhdfs": "hopsml.storage.webhdfs",
}
_OTHERS = "hopsml.storage.fsspec_store"


def for_url(url: str | os.PathLike[str], timeout_s: float | None = None) -> FileSystem:
    """The file system that speaks a URL; nothing is contacted yet.

    ``timeout_s`` is the deadline of one step, seconds (``HOPSML_STORAGE_TIMEOUT_S``, else 30). ArgumentError
    for a scheme that nothing here speaks.
    """
    text = os.fspath(url)
    if timeout_s is not None and not timeout_s > 0:
        raise ArgumentError(f"timeout_s={timeout_s!r}: it must be above 0 seconds")
    module = importlib.import_module(_MODULES.get(split(text)[0], _OTHERS))
    system: FileSystem = module.create(text, settings.storage_timeout_s() if timeout_s is None else timeout_s)
    return system


def resolve(url: str | os.PathLike[str], timeout_s: float | None = None) -> tuple[FileSystem, str]:
    """The file system and the path within it, without scheme and authority."""
    return for_url(url, timeout_s), split(os.fspath(url))[2]


def exists(url: str, timeout_s: float | None = None) -> bool:
    """Whether there is a file or directory; other errors than PathNotFound are raised."""
    try:
        for_url(url, timeout_s).status(url)
    except PathNotFound:
        return False
    return True


def walk(url: str, timeout_s: float | None = None) -> Iterator[FileStatus]:
    """Everything below a directory, parents before their entries, by name.

    PathNotFound if there is no such directory. One below it that is deleted or renamed meanwhile, as a
    temporary one of a running training is, counts as empty.
    """
    system = for_url(url, timeout_s)
    pending = [url]
    while pending:
        place = pending.pop()
        try:
            entries = system.list_dir(place)
        except PathNotFound:
            if place == url:
                raise
            continue
        yield from entries
        pending.extend(entry.url for entry in reversed(entries) if entry.is_dir)


def same_store(one: str, other: str) -> bool:
    """Whether a rename between the two can work."""
    local = ("", "file")
    return base(one) == base(other) or (split(one)[0] in local and split(other)[0] in local)


def copy(source: str, target: str, overwrite: bool = True) -> None:
    """One file between any two stores, by way of a local temporary file unless one of them is local."""
    import tempfile

    if split(source)[0] in ("", "file"):
        return for_url(target).upload(split(source)[2], target, overwrite)
    if split(target)[0] in ("", "file") and overwrite:
        return for_url(source).download(source, split(target)[2])
    with tempfile.TemporaryDirectory(prefix="hopsml-copy-") as folder:
        local = Path(folder, "file")
        for_url(source).download(source, local)
        for_url(target).upload(local, target, overwrite)
    return None


def close_all() -> None:
    """End every idle helper process of this process; later calls start new ones."""
    import sys

    for module in {*_MODULES.values(), _OTHERS}:
        loaded = sys.modules.get(module)
        if loaded is not None and hasattr(loaded, "close_all"):
            loaded.close_all()
