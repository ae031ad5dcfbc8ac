"""Writing files of this machine to its disk, so that what was acknowledged is there after a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: str | os.PathLike[str]) -> None:
    """Write a file's content, or a folder's list of names, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Write a folder with all files and folders below it to the disk. Raises OSError."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(parent)


def make_folder(folder: Path) -> None:
    """Make a folder that only this user can read, and those around it, durably. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)
