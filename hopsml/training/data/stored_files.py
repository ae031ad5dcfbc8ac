"""Files of a data set on any store, which must not change while they are read; and whole files as rows."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from hopsml.errors import ArgumentError, ArgumentTypeError, PathNotFound, StorageError
from hopsml.storage import filesystem, streams, urls
from hopsml.training.data import block_cache

if TYPE_CHECKING:
    from numpy.typing import NDArray


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
AT_ONCE = 8  # files that are opened at the same time when a data set is created
_SHARD_BYTES, _SHARD_FILES = 16 << 20, 4096
_AT_ONCE = 4  # files; the number of helper processes that are retained for reuse (hopsml/storage/remote/pool.py)
_OF_A_ROW = 200  # approximate bytes of a row in addition to the file's content


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


def find_files(given: Paths, is_wanted: Callable[[str], bool], what: str, is_cached: bool) -> list[StoredFile]:
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
    return [file for one in texts for file in _files_of(one, is_wanted, what, is_cached)]


def _files_of(given: str, is_wanted: Callable[[str], bool], what: str, is_cached: bool) -> list[StoredFile]:
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


class WholeFiles:
    """Source of shards of whole files; it lists the files when it is created."""

    def __init__(self, given: Paths, suffixes: Sequence[str] | None, is_cached: bool) -> None:
        """List the files; arguments and errors are those of ``hopsml.data.files``."""
        endings = None if suffixes is None else tuple(one.lower() for one in suffixes)
        what = "file" if endings is None else f"file with a name that ends so (*{', *'.join(endings)})"
        found = find_files(given, lambda name: endings is None or name.lower().endswith(endings), what, is_cached)
        self._groups = [found[begin:end] for begin, end in grouped([file.length for file in found])]

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of rows of each shard."""
        return tuple(map(len, self._groups))

    @property
    def row_bytes(self) -> float:
        """Average memory that a row takes, in bytes."""
        return sum(file.length for group in self._groups for file in group) / max(1, sum(self.shard_sizes)) + _OF_A_ROW

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return one shard's columns, which are read-only. Raises StorageError for a file that cannot be read."""
        import numpy as np

        group = self._groups[shard]
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE, "hopsml-files") as readers:
            contents = list(readers.map(StoredFile.whole, group))
        paths = [file.url for file in group]
        folders = [urls.name(urls.parent(path)) for path in paths]
        found = {"path": paths, "folder": folders, "content": contents}
        columns = {name: np.empty(len(group), object) for name in found}
        for name, values in found.items():
            columns[name][:] = values
        return columns


def grouped(
    sizes: Sequence[int], most_bytes: int = _SHARD_BYTES, most_files: int = _SHARD_FILES
) -> list[tuple[int, int]]:
    """Divide successive files into groups of at most so many bytes and files; a larger file forms a group alone.

    Returns ranges (begin, end) of indices.

    Args:
        sizes: bytes of each file.
        most_bytes: bytes of a group.
        most_files: files of a group.
    """
    groups, begin, size = list[tuple[int, int]](), 0, 0
    for number, more in enumerate(sizes):
        if number > begin and (size + more > most_bytes or number - begin == most_files):
            groups.append((begin, number))
            begin, size = number, 0
        size += more
    return [*groups, (begin, len(sizes))] if sizes else []
