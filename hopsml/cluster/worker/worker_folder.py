"""The folder that a worker runs in: keeps what the function saved there, and explains a relative path that is missing."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

LIMIT_BYTES = 1 << 30  # of what one worker's folder holds is kept
FOR_RECORDS = 1 << 20  # bytes that copies leave free on the disk: the run's outcome is still to be written
PRIVATE = ("resume", "runner.pickle")  # hopsml's own
PRIVATE_PREFIX = "hopsml-unused-"
_ET_CORE = 4
_NAMED = 5  # files that a note names


Stamp = tuple[int, int, int]  # of a file: when it was written in nanoseconds, its bytes, its inode


def stamps(folder: Path) -> dict[Path, Stamp]:
    """What is in the folder now, for ``keep`` to leave out later: times alone do not tell, as their clock is coarse."""
    return {path: (status.st_mtime_ns, status.st_size, status.st_ino) for path, status in _files(folder)}


def keep(folder: Path, target: Path, before: Mapping[Path, Stamp] | None = None, limit_bytes: int = LIMIT_BYTES) -> str:
    """Bring what was saved in ``folder`` to ``target``, small files first; a note on what is left out, else "".

    Links where that is possible, so that nothing is copied; the files stay where they are. ``before``: what was there and
    is left out, unless it has been written since. Raises OSError where ``target`` cannot be written, or where no room
    would be left for the run's own records.
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
    """True for an ELF file of type ET_CORE, by its first bytes, whatever its name."""
    try:
        with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            head = file.read(18)
    except OSError:  # the copy of this file fails as well, and reports it
        return False
    order: Literal["little", "big"] = "big" if head[5:6] == b"\2" else "little"
    return head.startswith(b"\x7fELF") and len(head) == 18 and int.from_bytes(head[16:18], order) == _ET_CORE


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    for parent, folders, names in os.walk(folder):
        if Path(parent) == folder:
            names = [name for name in names if name not in PRIVATE]
            folders[:] = [one for one in folders if one not in PRIVATE and not one.startswith(PRIVATE_PREFIX)]
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # a process of the function's that still runs has removed it
                continue
            if path.is_file() and not path.is_symlink():
                found.append((path, status))
    return found


def _bring(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    """Copy a file whole or not at all. Raises OSError, also where the disk would become too full."""
    size, free = source.stat().st_size, shutil.disk_usage(target.parent).free
    if free < size + FOR_RECORDS:
        raise OSError(errno.ENOSPC, f"{size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free", str(target))
    try:
        shutil.copyfile(source, target)
    except OSError:  # a quota, or others have filled the disk meanwhile
        target.unlink(missing_ok=True)
        raise


def leave(folder: Path, name: str, places: Iterable[Path]) -> Path:
    """Move a folder, whose own place is about to be removed, into the first of ``places`` that takes it; where it is now.

    Its name there begins with ``name``. On the folder's own disk, so that nothing is copied. Raises OSError where none does.
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
    """Where a relative path of this error was looked for; "" for an error that is not about a missing one."""
    if not isinstance(error, FileNotFoundError):
        return ""
    name = error.filename or getattr(error, "path", None)  # the latter of errors of hopsml's own
    if isinstance(name, (str, bytes)) and (os.path.isabs(name) or b"://" in os.fsencode(name)):
        return ""
    return (
        f" (a relative path is looked up in the worker's folder {folder}, which is empty when the function begins: name a "
        "place that every host sees, or capture the file's content in the function)"
    )
