"""Files on any store that are read as data: listing, and reading directly or through the local cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from hopsml.errors import ArgumentError, ArgumentTypeError, PathNotFound, StorageError
from hopsml.storage import filesystem, streams, urls
from hopsml.training.data import block_cache

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
AT_ONCE = 8  # files that are opened at the same time when a data set is created


@dataclass(frozen=True)
class StoredFile:
    """One file that was found, which must not change afterwards; ``is_cached``: read through the local cache."""

    url: str
    length: int  # bytes
    modified_s: float  # 0 if the store does not provide it
    is_cached: bool = False

    def read(self, offset: int, length: int) -> bytes:
        """Return a range of the file's bytes.

        Raises:
            StorageError: the file was deleted or changed, or cannot be read; the message names it.
        """
        if self._goes_by_cache:
            return block_cache.of_settings().read(self._version, self.length, offset, length, self._read_from_store)
        return self._read_from_store(offset, length)

    def whole(self) -> bytes:
        """Return the file's content, by one request if it is not cached.

        The request is for one byte more than the file had, so that a file that has grown is detected.
        """
        if self._goes_by_cache:
            return self.read(0, self.length) if self.length else b""
        with self._telling_of_deletion():
            content = filesystem.for_url(self.url).read_range(self.url, 0, self.length + 1)
        if len(content) != self.length:
            raise self._changed("fewer" if len(content) < self.length else "more")
        return content

    def opened(self) -> BinaryIO:
        """Return a seekable reader of the file. Raises StorageError."""
        if self._goes_by_cache:
            return streams.buffered_reader(self.read, self.length)
        return filesystem.for_url(self.url).open_read(self.url)

    @property
    def _goes_by_cache(self) -> bool:
        """True if the file is read through the cache.

        Without a modification time a cached copy could not be identified; local files are not cached.
        """
        return self.is_cached and self.modified_s > 0 and not urls.is_local(self.url)

    @property
    def _version(self) -> str:
        """Identifier of the file's content for the cache."""
        return f"{self.url}\n{self.length}\n{self.modified_s!r}"

    def _read_from_store(self, offset: int, length: int) -> bytes:
        """Read from the store, and check that the file has not changed."""
        system = filesystem.for_url(self.url)
        with self._telling_of_deletion():
            content = system.read_range(self.url, offset, length)
            now = system.status(self.url)
        # Object stores report an object's time with a coarser resolution than in a listing.
        if len(content) != length or now.length != self.length or int(now.modified_s) != int(self.modified_s):
            raise self._changed(str(now.length))
        return content

    @contextlib.contextmanager
    def _telling_of_deletion(self) -> Iterator[None]:
        """Replace the error of a missing file by one that reports its deletion."""
        try:
            yield
        except PathNotFound as error:
            raise PathNotFound(f"{self.url} was deleted while it was read as data; data must stay", self.url) from error

    def _changed(self, now: str) -> StorageError:
        """Return the error for a file that has changed."""
        return StorageError(
            f"{self.url} was changed while it was read as data: it had {self.length} bytes when the data set was made, and "
            f"has {now} now; write new data under a new name, and begin the training anew",
            self.url,
        )


def found(given: Paths, is_wanted: Callable[[str], bool], what: str, is_cached: bool) -> list[StoredFile]:
    """Return the files that URLs denote: each file itself, and those at any depth of a folder, sorted by URL.

    In folders, names that begin with ``_`` or ``.`` are left out: they are writers' internal files.

    Args:
        given: one URL or local path, or several.
        is_wanted: selects files of a folder by their name.
        what: kind of file, for messages.
        is_cached: whether to read the files through the local cache.

    Raises:
        PathNotFound: a path does not exist.
        ArgumentTypeError: an argument is not a path.
        ArgumentError: no path is given, or a folder has no such file or has parts with other names.
    """
    paths = [given] if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(paths, Sequence) or not all(isinstance(one, (str, os.PathLike)) for one in paths):
        raise ArgumentTypeError(f"{given!r} is no path: give a URL or a local path, or a list of them")
    texts = [os.fspath(one) for one in paths]
    if not all(texts) or not texts:
        raise ArgumentError(
            f"{given!r} names nothing: give the URL or local path of a file or a folder, or a list of them"
        )
    return [file for one in texts for file in _found(one, is_wanted, what, is_cached)]


def _found(given: str, is_wanted: Callable[[str], bool], what: str, is_cached: bool) -> list[StoredFile]:
    """Return the files that one URL denotes."""
    try:
        itself = filesystem.for_url(given).status(given)
    except PathNotFound as error:
        if not set(given) & set("*?["):
            raise
        raise PathNotFound(
            f"nothing is called {given}, and *, ? and [ stand for themselves in a path; give the folder, which is read with "
            "all files at any depth, or the list of files",
            given,
        ) from error
    if not itself.is_dir:
        return [_file(itself, is_cached)]
    below = [entry for entry in filesystem.walk(given) if not entry.is_dir]
    root = len(given.rstrip("/"))
    wanted = [entry for entry in below if is_wanted(entry.name) and not _is_hidden(entry.url[root:])]
    if not wanted:
        raise ArgumentError(f"{given} holds no {what} among its {len(below)} file(s)")
    parts = [e.url for e in below if _is_part(e.name) and not is_wanted(e.name) and not _is_hidden(e.url[root:])]
    if parts:
        raise ArgumentError(
            f"{parts[0]}: it looks like a part of the data and is called like no {what}, as {len(parts)} of the "
            f"{len(below)} file(s) in {given} are: rename them, or give the list of those that are to be read"
        )
    return [_file(entry, is_cached) for entry in sorted(wanted, key=lambda entry: entry.url)]


def _is_part(name: str) -> bool:
    """Return True for a name that Spark and Hadoop give a data set's part, without a suffix for its format."""
    return name.startswith("part-") and "." not in name


def _file(status: filesystem.FileStatus, is_cached: bool) -> StoredFile:
    """Convert the status of a file."""
    return StoredFile(status.url, status.length, status.modified_s, is_cached)


def _is_hidden(path: str) -> bool:
    """Return True if a part of the path begins with ``_`` or ``.``."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))
