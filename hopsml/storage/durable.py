"""Durable files on a local disk: content and names are synced, so that they survive a power failure.

A file's content is on the disk after its ``fsync``, its name after that of its folder. Renaming a file whose content
was not synced may leave an empty file. Functions raise OSError if the disk cannot store the data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_MOST_KNOWN = 10_000
_ONE_BY_ONE, _AT_ONCE = 32, 8  # most paths that the caller's thread syncs; number of threads for more
_known: set[tuple[str, int, int]] = set()  # folders, by path, device and inode, whose names this process has synced


def sync_file(path: str | os.PathLike[str]) -> None:
    """Write a file's content, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def sync_directory_entry(path: str | os.PathLike[str]) -> None:
    """Write the name of a file or folder to the disk.

    The names of the folders above that this process has not synced are written as well.
    """
    folder, seen = os.path.dirname(os.path.abspath(path)), set[tuple[str, int, int]]()
    while True:
        facts = os.stat(folder)
        with contextlib.suppress(PermissionError):  # a folder above that this user may pass through, but not read
            sync_file(folder)
        above = os.path.dirname(folder)
        key = (folder, facts.st_dev, facts.st_ino)
        if key in _known or above == folder or os.stat(above).st_dev != facts.st_dev:
            break
        seen.add(key)
        folder = above
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    _known.update(seen)


def sync_tree(root: str | os.PathLike[str]) -> None:
    """Write all regular files below a folder, and all names in it, to the disk; skip files that disappear."""
    paths = [
        path
        for folder, _, names in os.walk(root, topdown=False)
        for path in (*(os.path.join(folder, name) for name in names), folder)
    ]
    if len(paths) <= _ONE_BY_ONE:
        for path in paths:
            _sync_if_there(path)
        return
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="hopsml-sync") as pool:  # file systems sync several as one
        for _ in pool.map(_sync_if_there, paths):
            pass


def _sync_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        kind = os.lstat(path).st_mode
        if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
            sync_file(path)


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Create a folder that only this user can read, with missing folders above it, durably. Raises OSError."""
    path = Path(folder)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in missing:
        sync_file(each.parent)
