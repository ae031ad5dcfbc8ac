"""Blocks of remote files on this host's disk, for all processes of one user: bounded, and never a reason to fail.

A block is a file of its own, named after its file's URL, length and time of change: what was changed is not found again. It
is written aside and renamed, and ends in a checksum; who has opened one reads it to its end, though it is removed meanwhile.
Which blocks go is ``cache_plan``'s to say. Whatever goes wrong here is a line in the log, and the store is read instead.
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
from collections.abc import Callable
from pathlib import Path

from hopsml.errors import ArgumentError
from hopsml.storage import privacy
from hopsml.training.data import cache_plan
from hopsml.training.data.cache_plan import CachedPiece

log = logging.getLogger(__name__)
FOLDER, BYTES = "HOPSML_DATA_CACHE", "HOPSML_DATA_CACHE_BYTES"
DEFAULT_BYTES = 10 << 30
BLOCK = 1 << 20  # bytes; as much as is read of a remote file at least
_CHECK = 4  # bytes of a block's checksum
_PART = 64  # of the cache: so much may be written between two looks at all of it
_NAME = re.compile(r"[0-9a-f]{32}-\d+")
_UNFINISHED = ".tmp-"
_ABANDONED_S = 3600.0  # after which an unfinished block is that of a process that is dead

Fetch = Callable[[int, int], bytes]  # offset, length


def of_settings() -> BlockCache:
    """This host's cache, as the environment describes it. Raises ArgumentError for a size that is no number."""
    text = os.environ.get(BYTES, "") or str(DEFAULT_BYTES)
    if not text.isdecimal():
        raise ArgumentError(f"{BYTES}={text!r}: it must be a number of bytes, or 0 for no cache")
    return _of(os.environ.get(FOLDER) or _default_folder(), int(text))


def _default_folder() -> str:
    """On a disk that YARN gives to all containers of an application on a host, else among the temporary files."""
    of_yarn = os.environ.get("LOCAL_DIRS", "").split(",")[0]
    above = of_yarn if of_yarn and os.path.isdir(of_yarn) else tempfile.gettempdir()
    return os.path.join(above, f"hopsml-data-{os.geteuid()}")


@functools.lru_cache(maxsize=8)
def _of(folder: str, most_bytes: int) -> BlockCache:
    return BlockCache(Path(folder), most_bytes)


os.register_at_fork(after_in_child=_of.cache_clear)  # a thread of the parent's may hold a lock of one


class BlockCache:
    """Up to ``most_bytes`` of blocks in a folder that is this user's alone; safe to call from any thread."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self._written = most_bytes  # since the last look at the whole; nothing is known before the first one
        self._is_usable = most_bytes >= BLOCK
        self._is_checked = False
        self._lock = threading.Lock()

    def read(self, version: str, file_length: int, offset: int, length: int, fetch: Fetch) -> bytes:
        """So many bytes of a file that ``version`` names; what is not here is fetched, whole blocks at a time, and kept.

        Raises what ``fetch`` raises.
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
        for begin, behind in cache_plan.missing_runs(number for number, block in blocks.items() if block is None):
            content = fetch(begin * BLOCK, min(behind * BLOCK, file_length) - begin * BLOCK)
            for number in range(begin, behind):
                blocks[number] = content[(number - begin) * BLOCK : (number - begin + 1) * BLOCK]
                self._keep(key, number, blocks[number] or b"")
        found = b"".join(block or b"" for block in blocks.values())
        return found[offset - first * BLOCK : end - first * BLOCK]

    def _is_there(self) -> bool:
        """Whether it can be used: what lies there is believed only in a folder that nobody else can write to."""
        if self._is_usable and not self._is_checked:
            try:
                self._make_folder()
                self._is_checked = True
            except OSError as error:
                self._give_up(error)
        return self._is_usable

    def _block(self, key: str, number: int, length: int) -> bytes | None:
        """One that is here, and whole."""
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
            self._is_checked = False  # somebody has removed the folder: the next read makes it anew
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            self._give_up(error)

    def _make_room(self, size: int) -> None:
        """Remove what has not been used for longest, where much was written since the last look. Raises OSError."""
        with self._lock:
            self._written += size
            if self._written <= self._most // _PART:
                return
            self._written = size
        pieces, disk = self._pieces(), shutil.disk_usage(self._folder)
        room = cache_plan.room(self._most, sum(piece.size for piece in pieces), disk.free, disk.total)
        for name in cache_plan.to_remove(pieces, max(0, room - size)):
            with contextlib.suppress(FileNotFoundError):  # another process was first
                (self._folder / name).unlink()
        if room < size:
            raise OSError(errno.ENOSPC, "its disk is full but for what is left to others")

    def _pieces(self) -> list[CachedPiece]:
        """All that lies here. What nobody goes on with is removed; what somebody is writing counts, and stays."""
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
        """Use it no longer in this process, and say so once."""
        with self._lock:
            was_usable, self._is_usable = self._is_usable, False
        if was_usable:
            reason = error.strerror or str(error)
            log.warning(
                "data is read from its store alone: the cache in %s cannot be used: %s (%s names another folder)",
                self._folder, reason, FOLDER,
            )  # fmt: skip


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
