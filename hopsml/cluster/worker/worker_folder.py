"""Working folder of a worker: storage of what the function saved there, and a hint for missing relative paths."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

LIMIT_BYTES = 1 << 30  # largest total of the files of one worker's folder that are stored
FOR_RECORDS = 1 << 20  # bytes that copies leave free on the disk: the run's outcome is still to be written
PRIVATE = ("resume", "runner.pickle")  # hopsml's own
PRIVATE_PREFIX = "hopsml-unused-"
_ET_CORE = 4
_NAMED = 5  # files that a note lists


Stamp = tuple[int, int, int]  # of a file: modification time in nanoseconds, size in bytes, inode


def stamps(folder: Path) -> dict[Path, Stamp]:
    """Return the stamps of the files in the folder, for ``keep`` to omit these later.

    Times alone are not sufficient, as their clock is coarse.
    """
    return {path: (status.st_mtime_ns, status.st_size, status.st_ino) for path, status in _files(folder)}


def keep(folder: Path, target: Path, before: Mapping[Path, Stamp] | None = None, limit_bytes: int = LIMIT_BYTES) -> str:
    """Store the files that were saved in ``folder`` in ``target``, small ones first.

    They are linked if possible, so that nothing is copied; the files themselves stay in the folder.

    Args:
        folder: The worker's folder.
        target: Folder that receives the files.
        before: Stamps of earlier files, which are omitted unless they have been written since.
        limit_bytes: Total size of the files, at most.

    Returns:
        A note about omitted files; "" if there are none.

    Raises:
        OSError: ``target`` cannot be written, or there would be no space left for the run's records.
    """
    known, now = before or {}, stamps(folder)
    changed = [(path, stamp[1]) for path, stamp in now.items() if known.get(path) != stamp]
    found = sorted(changed, key=lambda entry: (entry[1], entry[0]))
    room, left_out = limit_bytes, []
    dumps = [path for path, _ in found if _is_core_dump(path)]
    for path, size in found:
        if path in dumps:
            continue
        if size > room:
            left_out.append((path, size))
            continue
        room -= size
        _bring(path, target / path.relative_to(folder))
    note = (
        f"{', '.join(str(path.relative_to(folder)) for path in dumps[:_NAMED])}: a core dump is not stored, as it holds the "
        "memory of a process with all its secrets" if dumps else ""
    )  # fmt: skip
    if not left_out:
        return note
    names = ", ".join(str(path.relative_to(folder)) for path, _ in left_out[:_NAMED])
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    return (f"{note}; " if note else "") + (
        f"{sum(size for _, size in left_out) / 1e9:.1f} GB that were saved in the worker's folder are not kept, at most "
        f"{limit_bytes / 1e9:.1f} GB are: {names}{more}; save large files below hopsml.tensorboard.logdir(), or in storage"
    )


def _is_core_dump(path: Path) -> bool:
    """Return True for an ELF file of type ET_CORE, by its first bytes, whatever its name."""
    try:
        with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            head = file.read(18)
    except OSError:  # the copy of this file fails as well, and reports it
        return False
    order: Literal["little", "big"] = "big" if head[5:6] == b"\2" else "little"
    return head.startswith(b"\x7fELF") and len(head) == 18 and int.from_bytes(head[16:18], order) == _ET_CORE


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the user's files in a folder with their status."""
    found = []
    for parent, folders, names in os.walk(folder):
        if Path(parent) == folder:
            names = [name for name in names if name not in PRIVATE]
            folders[:] = [one for one in folders if one not in PRIVATE and not one.startswith(PRIVATE_PREFIX)]
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # a process that the function started has removed it
                continue
            if path.is_file() and not path.is_symlink():
                found.append((path, status))
    return found


def _bring(source: Path, target: Path) -> None:
    """Link or copy a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    """Copy a file completely or not at all.

    Raises:
        OSError: The copy fails, or the disk would become too full.
    """
    size, free = source.stat().st_size, shutil.disk_usage(target.parent).free
    if free < size + FOR_RECORDS:
        raise OSError(errno.ENOSPC, f"{size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free", str(target))
    try:
        shutil.copyfile(source, target)
    except OSError:  # a quota, or other processes have filled the disk
        target.unlink(missing_ok=True)
        raise


def leave(folder: Path, name: str, places: Iterable[Path]) -> Path:
    """Move a folder, whose parent is about to be removed, into the first of ``places`` that accepts it.

    The folder stays on its own disk, so that nothing is copied.

    Args:
        folder: The folder.
        name: Beginning of its new name.
        places: Candidates for the new parent.

    Returns:
        The new path.

    Raises:
        OSError: No candidate accepts it.
    """
    refused = OSError(errno.ENOENT, "there is no place for it", str(folder))
    for place in places:
        try:
            left = tempfile.mkdtemp(prefix=f"{name}-", dir=place)
        except OSError as error:
            refused = error
            continue
        try:
            return folder.rename(left)
        except OSError as error:
            refused = error
            os.rmdir(left)
    raise refused


def hint(error: BaseException, folder: Path) -> str:
    """Return the hint where a missing relative path was looked up; "" for any other error.

    Args:
        error: The function's error.
        folder: The worker's working folder.
    """
    if not isinstance(error, FileNotFoundError):
        return ""
    name = error.filename or getattr(error, "path", None)  # the latter of errors of hopsml's own
    if isinstance(name, (str, bytes)) and (os.path.isabs(name) or b"://" in os.fsencode(name)):
        return ""
    return (
        f" (a relative path is looked up in the worker's folder {folder}, which is empty when the function begins: name a "
        "place that every host sees, or capture the file's content in the function)"
    )
