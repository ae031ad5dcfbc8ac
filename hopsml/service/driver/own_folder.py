"""A worker's own copy of the code that a service keeps for all jobs with it.

What lies in a worker's folder when it ends is kept with the run; so of the copy goes again whatever has stayed as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def copied(source: Path, target: Path) -> Iterator[None]:
    """The files of a folder in another one, meanwhile; what was made or changed there stays."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    before = {path: _look(path) for path in target.rglob("*") if (source / path.relative_to(target)).exists()}
    try:
        yield
    finally:
        for path in sorted(before, reverse=True):  # what is in a folder before the folder
            with contextlib.suppress(OSError):  # it is gone, or a folder with something new
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                elif _look(path) == before[path]:
                    path.unlink()


def _look(path: Path) -> tuple[int, int, int]:
    found = os.lstat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size
