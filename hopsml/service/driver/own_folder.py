"""Private copy, for a worker, of the code that a service stores for all jobs with that code.

Files that remain in a worker's folder are stored with the run; therefore the unchanged files of the copy are deleted at
the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def copied(source: Path, target: Path) -> Iterator[None]:
    """Copy a folder into another one for the duration of the context; only new and changed files remain there."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    before = {path: _look(path) for path in target.rglob("*") if (source / path.relative_to(target)).exists()}
    try:
        yield
    finally:
        for path in sorted(before, reverse=True):  # files of a folder before the folder itself
            with contextlib.suppress(OSError):  # already deleted, or a folder with new files
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                elif _look(path) == before[path]:
                    path.unlink()


def _look(path: Path) -> tuple[int, int, int]:
    """Return inode, modification time and size of a file, by which a change is detected."""
    found = os.lstat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size
