"""File locks by which processes of one machine exclude each other (flock, which the kernel drops with its last holder).

A scratch folder with a locked file belongs to a process that lives; a folder whose lock is free was left by one that was
killed, and is deleted by the next process that makes a folder there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def try_lock(descriptor: int, shared: bool = False) -> bool:
    """Lock an open file without waiting; return False if another process holds it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release the lock of an open file, also for processes that share the descriptor since a fork."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[int]:
    """Hold the exclusive lock of a file, which is created if it is missing; yield its descriptor.

    The file is opened anew, so that threads and forked processes exclude each other as well.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        unlock(file)
        os.close(file)


def is_locked(path: str | Path) -> bool:
    """Return True if another process holds the lock of a file; False if there is no such file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK: a pipe would wait for a writer
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not try_lock(file, shared=True)
    finally:
        os.close(file)


def make_locked_folder(parent: str | Path, lock_name: str, prefix: str = "") -> tuple[Path, int]:
    """Create a scratch folder below ``parent``, and return it with the descriptor of its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = os.open(folder / lock_name, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / lock_name).exists():  # else another process has deleted it between these two lines
            return folder, lock
        os.close(lock)


def delete_abandoned_folders(parent: Path, pattern: str, lock_name: str) -> None:
    """Delete folders of ``make_locked_folder`` whose process has ended.

    Args:
        parent: Folder in which they are.
        pattern: Glob pattern of their names.
        lock_name: Name of the locked file in each.
    """
    for lock_file in parent.glob(f"{pattern}/{lock_name}"):
        try:
            if lock_file.parent.lstat().st_uid != os.geteuid():
                continue
            # Opening another user's file that holds a lease, or a named pipe, would wait.
            lock = os.open(lock_file, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # deleted by now
            continue
        try:
            if try_lock(lock):
                shutil.rmtree(lock_file.parent, ignore_errors=True)
        except OSError:  # a file system without locks
            pass
        finally:
            os.close(lock)
