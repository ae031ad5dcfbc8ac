"""Files of a data set on any store, which must not change while they are read; and whole files as rows.

Blocks of remote files are kept in a bounded cache on this host's disk, shared by all processes of one user.
Each block is a file whose name is derived from the remote file's URL, length and modification time, so that blocks of a
changed file are never found. A block is written under a temporary name and renamed, and ends in a checksum; a process
that has opened a block can read it to the end even if it is removed. A failure of the cache is logged, and the data is
read from its store instead: the cache never causes an error.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import functools
import hashlib
import logging
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, ArgumentTypeError, PathNotFound, StorageError
from hopsml.storage import filesystem, privacy, streams, urls

if TYPE_CHECKING:
    from numpy.typing import NDArray


_FREE = 8  # 1/8 of the bound stays free, for what other processes write between their checks
_LEFT_OF_DISK, _LEFT_BYTES = 10, 10 << 30  # space reserved for others: a tenth of the disk, at most 10 GiB
log = logging.getLogger(__name__)
FOLDER = Settings.data_cache.name
BLOCK = 1 << 20  # bytes; the least that is read of a remote file
_CHECK = 4  # bytes of a block's checksum
_PART = 64  # the whole cache is listed each time when 1/64 of its size has been written
_NAME = re.compile(r"[0-9a-f]{32}-\d+")
_UNFINISHED = ".tmp-"
_ABANDONED_S = 3600.0  # age after which an unfinished block belongs to a process that has ended
Fetch = Callable[[int, int], bytes]  # offset, length


@dataclass(frozen=True)
class CacheFile:
    """One file of the cache, with its size and time of last use."""

    name: str
    size: int  # bytes
    used_s: float  # time of the last read or write; seconds since 1970


def cache_room(most_bytes: int, cached: int, disk_free: int, disk_total: int) -> int:
    """Return how many bytes the cache may hold, within its bound and without filling the disk; 0 or more.

    Args:
        most_bytes: bound of the cache.
        cached: bytes that it holds now.
        disk_free: free bytes of its disk.
        disk_total: bytes of its disk.
    """
    others = min(disk_total // _LEFT_OF_DISK, _LEFT_BYTES)
    return max(0, min(most_bytes - most_bytes // _FREE, cached + disk_free - others))


def files_to_remove(pieces: Iterable[CacheFile], room: int) -> list[str]:
    """Return the names of the least recently used files, whose removal leaves ``room`` bytes at most.

    The oldest comes first.
    """
    newest_first = sorted(pieces, key=lambda piece: (piece.used_s, piece.name), reverse=True)
    kept, removed = 0, list[str]()
    for piece in newest_first:
        if removed or kept + piece.size > room:
            removed.append(piece.name)
        else:
            kept += piece.size
    return removed[::-1]


def consecutive_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the maximal runs of consecutive numbers as ranges (begin, end); each range is fetched by one request.

    Args:
        numbers: block numbers, ascending.
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def configured_cache() -> BlockCache:
    """Return this host's cache, as configured by ``HOPSML_DATA_CACHE`` and ``HOPSML_DATA_CACHE_BYTES``.

    Raises:
        ArgumentError: the size is not a number of bytes.
    """
    return _of(str(cache_folder()), SETTINGS.data_cache_bytes)


def cache_folder() -> Path:
    """Return the folder of this host's caches of data."""
    return Path(SETTINGS.data_cache or _default_folder())


def _default_folder() -> str:
    """Return a folder on the application's local disk of YARN, else in the temporary directory."""
    of_yarn = os.environ.get("LOCAL_DIRS", "").split(",")[0]
    above = of_yarn if of_yarn and os.path.isdir(of_yarn) else tempfile.gettempdir()
    return os.path.join(above, f"hopsml-data-{os.geteuid()}")


@functools.lru_cache(maxsize=8)
def _of(folder: str, most_bytes: int) -> BlockCache:
    """Return the cache in a folder, one object per process."""
    return BlockCache(Path(folder), most_bytes)


os.register_at_fork(after_in_child=_of.cache_clear)  # a thread of the parent may hold the lock of a cache


class BlockCache:
    """Cache of at most ``most_bytes`` bytes in a folder that only this user can write to; thread-safe."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self._written = most_bytes  # since the folder was last listed; the full size, so that the first write lists it
        self._is_usable = most_bytes >= BLOCK
        self._is_checked = False
        self._lock = threading.Lock()

    def read(self, version: str, file_length: int, offset: int, length: int, fetch: Fetch) -> bytes:
        """Return a range of a file's bytes, fetching and storing whole blocks that are not cached.

        Raises what ``fetch`` raises.

        Args:
            version: identifies the file and its content.
            file_length: bytes of the whole file.
            offset: first byte of the range.
            length: bytes of the range; it is cut at the end of the file.
            fetch: reads (offset, length) from the store.
        """
        end = min(offset + length, file_length)
        if end <= offset or not self._is_there():
            return fetch(offset, length)
        key = hashlib.sha256(version.encode()).hexdigest()[:32]
        first = offset // BLOCK
        blocks: dict[int, bytes | None] = {
            number: self._block(key, number, min(BLOCK, file_length - number * BLOCK))
            for number in range(first, -(-end // BLOCK))
        }
        for begin, behind in consecutive_ranges(number for number, block in blocks.items() if block is None):
            content = fetch(begin * BLOCK, min(behind * BLOCK, file_length) - begin * BLOCK)
            for number in range(begin, behind):
                blocks[number] = content[(number - begin) * BLOCK : (number - begin + 1) * BLOCK]
                self._keep(key, number, blocks[number] or b"")
        found = b"".join(block or b"" for block in blocks.values())
        return found[offset - first * BLOCK : end - first * BLOCK]

    def _is_there(self) -> bool:
        """Return True if the cache can be used; the folder is trusted only if no other user can write to it."""
        if self._is_usable and not self._is_checked:
            try:
                self._make_folder()
                self._is_checked = True
            except OSError as error:
                self._give_up(error)
        return self._is_usable

    def _block(self, key: str, number: int, length: int) -> bytes | None:
        """Return a cached block of the given length; None if it is absent or damaged."""
        path = self._folder / f"{key}-{number}"
        try:
            with open(path, "rb") as file:
                content = file.read()
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up(error)
            return None
        block, check = content[:-_CHECK], content[-_CHECK:]
        if len(block) != length or zlib.crc32(block).to_bytes(_CHECK, "little") != check:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return block

    def _keep(self, key: str, number: int, block: bytes) -> None:
        """Store a block, and stop using the cache if that fails."""
        if not self._is_usable:
            return
        fresh = self._folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            self._make_room(len(block) + _CHECK)
            with open(fresh, "xb", opener=_private) as file:
                file.write(block)
                file.write(zlib.crc32(block).to_bytes(_CHECK, "little"))
            fresh.rename(self._folder / f"{key}-{number}")
        except FileNotFoundError:
            self._is_checked = False  # the folder was removed: the next read creates it again
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            self._give_up(error)

    def _make_room(self, size: int) -> None:
        """Remove the least recently used blocks if much was written since the last check."""
        with self._lock:
            self._written += size
            if self._written <= self._most // _PART:
                return
            self._written = size
        pieces, disk = self._pieces(), shutil.disk_usage(self._folder)
        room = cache_room(self._most, sum(piece.size for piece in pieces), disk.free, disk.total)
        for name in files_to_remove(pieces, max(0, room - size)):
            with contextlib.suppress(FileNotFoundError):  # another process removed it first
                (self._folder / name).unlink()
        if room < size:
            raise OSError(errno.ENOSPC, "its disk is full, except for the space reserved for other programs")

    def _pieces(self) -> list[CacheFile]:
        """Return all files of the cache, and remove unfinished blocks that their process has abandoned."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name):
                        found.append(CacheFile(entry.name, facts.st_size, facts.st_mtime))
                    elif entry.name.startswith(_UNFINISHED) and time.time() - facts.st_mtime > _ABANDONED_S:
                        os.unlink(entry.path)
        return found

    def _make_folder(self) -> None:
        """Raises PermissionError where somebody else could change what lies there."""
        try:
            privacy.ensure_private_folder(self._folder)
        except PermissionError as error:
            raise PermissionError(f"other users have access to the folder: {error}") from error

    def _give_up(self, error: OSError) -> None:
        """Stop using the cache in this process, and log the reason once."""
        with self._lock:
            was_usable, self._is_usable = self._is_usable, False
        if was_usable:
            reason = error.strerror or str(error)
            log.warning(
                "the cache in %s cannot be used, so data are read from the store: %s (set %s to another folder)",
                self._folder, reason, FOLDER,
            )  # fmt: skip


def _private(path: str, flags: int) -> int:
    """Open a file that only this user can access."""
    return os.open(path, flags, 0o600)


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
            return configured_cache().read(self._version, self.length, offset, length, self._read_from_store)
        return self._read_from_store(offset, length)

    def read_all(self) -> bytes:
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

    def open(self) -> BinaryIO:
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
            raise PathNotFound(
                f"{self.url} was deleted while it was read as data; do not delete data during a run", self.url
            ) from error

    def _changed(self, now: str) -> StorageError:
        """Return the error for a file that has changed."""
        return StorageError(
            f"{self.url} was changed while it was read as data: it had {self.length} bytes when the data set was "
            f"made, and has {now} now; write new data under a new name, and start the training again",
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
        raise ArgumentTypeError(f"{given!r} is not a path; pass a URL or a local path, or a list of them")
    texts = [os.fspath(one) for one in paths]
    if not all(texts) or not texts:
        raise ArgumentError(f"{given!r} is empty; pass the URL or local path of a file or a folder, or a list of them")
    return [file for one in texts for file in _files_of(one, is_wanted, what, is_cached)]


def _files_of(given: str, is_wanted: Callable[[str], bool], what: str, is_cached: bool) -> list[StoredFile]:
    """Return the files that one URL denotes."""
    try:
        itself = filesystem.for_url(given).status(given)
    except PathNotFound as error:
        if not set(given) & set("*?["):
            raise
        raise PathNotFound(
            f"there is no file or folder {given}; *, ? and [ are ordinary characters in a path. Pass the folder, "
            "which is read with all files at any depth, or a list of files",
            given,
        ) from error
    if not itself.is_dir:
        return [_file(itself, is_cached)]
    below = [entry for entry in filesystem.walk(given) if not entry.is_dir]
    root = len(given.rstrip("/"))
    wanted = [entry for entry in below if is_wanted(entry.name) and not _is_hidden(entry.url[root:])]
    if not wanted:
        raise ArgumentError(f"{given} contains no {what} among its {len(below)} file(s)")
    parts = [e.url for e in below if _is_part(e.name) and not is_wanted(e.name) and not _is_hidden(e.url[root:])]
    if parts:
        raise ArgumentError(
            f"{parts[0]}: this seems to be data, but its name is not that of a {what}, as for {len(parts)} of the "
            f"{len(below)} file(s) in {given}; rename them, or pass the list of files to read"
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
        what = "file" if endings is None else f"file whose name matches *{', *'.join(endings)}"
        found = find_files(given, lambda name: endings is None or name.lower().endswith(endings), what, is_cached)
        self._groups = [found[begin:end] for begin, end in group_files([file.length for file in found])]

    def __repr__(self) -> str:
        return describe_files(file for group in self._groups for file in group)

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
            contents = list(readers.map(StoredFile.read_all, group))
        paths = [file.url for file in group]
        folders = [urls.name(urls.parent(path)) for path in paths]
        found = {"path": paths, "folder": folders, "content": contents}
        columns = {name: np.empty(len(group), object) for name in found}
        for name, values in found.items():
            columns[name][:] = values
        return columns


def describe_files(files: Iterable[StoredFile]) -> str:
    """Return the first file's URL and the number of different files, for run records, which must not differ by run."""
    found = list(dict.fromkeys(file.url for file in files))
    return f"{found[0] if found else 'no file'}" + f" and {len(found) - 1} more" * (len(found) > 1)


def group_files(
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
