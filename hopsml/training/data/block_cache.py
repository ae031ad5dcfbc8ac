"""Bounded cache of blocks of remote files on this host's disk, shared by all processes of one user.

Each block is a file whose name is derived from the remote file's URL, length and modification time, so that blocks of a
changed file are never found. A block is written under a temporary name and renamed, and ends in a checksum; a process
that has opened a block can read it to the end even if it is removed. A failure of the cache is logged, and the data is
read from its store instead: the cache never causes an error.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hopsml.core.variables import SETTINGS, Settings
from hopsml.storage import privacy

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
class CachedPiece:
    """One file of the cache, with its size and time of last use."""

    name: str
    size: int  # bytes
    used_s: float  # time of the last read or write; seconds since 1970


def free_room(most_bytes: int, cached: int, disk_free: int, disk_total: int) -> int:
    """Return how many bytes the cache may hold, within its bound and without filling the disk; 0 or more.

    Args:
        most_bytes: bound of the cache.
        cached: bytes that it holds now.
        disk_free: free bytes of its disk.
        disk_total: bytes of its disk.
    """
    others = min(disk_total // _LEFT_OF_DISK, _LEFT_BYTES)
    return max(0, min(most_bytes - most_bytes // _FREE, cached + disk_free - others))


def to_remove(pieces: Iterable[CachedPiece], room: int) -> list[str]:
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


def missing_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
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


def of_settings() -> BlockCache:
    """Return this host's cache, as configured by ``HOPSML_DATA_CACHE`` and ``HOPSML_DATA_CACHE_BYTES``.

    Raises:
        ArgumentError: the size is not a number of bytes.
    """
    return _of(SETTINGS.data_cache or _default_folder(), SETTINGS.data_cache_bytes)


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
        for begin, behind in missing_runs(number for number, block in blocks.items() if block is None):
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
        room = free_room(self._most, sum(piece.size for piece in pieces), disk.free, disk.total)
        for name in to_remove(pieces, max(0, room - size)):
            with contextlib.suppress(FileNotFoundError):  # another process removed it first
                (self._folder / name).unlink()
        if room < size:
            raise OSError(errno.ENOSPC, "its disk is full but for what is left to others")

    def _pieces(self) -> list[CachedPiece]:
        """Return all files of the cache, and remove unfinished blocks that their process has abandoned."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name):
                        found.append(CachedPiece(entry.name, facts.st_size, facts.st_mtime))
                    elif entry.name.startswith(_UNFINISHED) and time.time() - facts.st_mtime > _ABANDONED_S:
                        os.unlink(entry.path)
        return found

    def _make_folder(self) -> None:
        """Raises PermissionError where somebody else could change what lies there."""
        try:
            privacy.make_own_folder(self._folder)
        except PermissionError as error:
            raise PermissionError(f"it is not a folder of this user's alone: {error}") from error

    def _give_up(self, error: OSError) -> None:
        """Stop using the cache in this process, and log the reason once."""
        with self._lock:
            was_usable, self._is_usable = self._is_usable, False
        if was_usable:
            reason = error.strerror or str(error)
            log.warning(
                "data is read from its store alone: the cache in %s cannot be used: %s (%s names another folder)",
                self._folder, reason, FOLDER,
            )  # fmt: skip


def _private(path: str, flags: int) -> int:
    """Open a file that only this user can access."""
    return os.open(path, flags, 0o600)
