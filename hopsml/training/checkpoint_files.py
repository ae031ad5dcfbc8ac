"""Atomic writing of checkpoint folders and single framework files on local disk.

A checkpoint is a folder ``step-000000120`` in a directory of checkpoints. It is written as ``.step-000000120.tmp``
and renamed when all of it is on disk, so a folder with the first name is complete. A partly written folder is never
read; the next write removes it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hopsml.storage import durable
from hopsml.storage.checkpoints import CORRUPT, MANIFEST, is_sound, write_manifest, write_retention
from hopsml.storage.filesystem import read_record
from hopsml.storage.urls import TEMPORARY_PREFIX

_NAME = re.compile(r"step-(\d{9,})")
DESCRIPTION = "checkpoint.json"
_VARIABLES = "variables"


@dataclass(frozen=True)
class SavedStep:
    """Complete checkpoint: its step, its folder, and the notes saved with the variables."""

    step: int
    folder: Path
    notes: dict[str, Any]

    @property
    def prefix(self) -> str:
        """Path prefix of the framework's checkpoint files."""
        return str(self.folder / _VARIABLES)


def folder_name(step: int) -> str:
    """Return the folder name for a step, such as ``step-000000120`` for 120; names sort by step."""
    return f"step-{step:09d}"


def read_saved_step(folder: Path) -> SavedStep | None:
    """Return the checkpoint stored in ``folder``, or None if it is not a complete one."""
    match = _NAME.fullmatch(folder.name)
    try:
        notes = json.loads(read_record(str(folder / DESCRIPTION)))
    except (OSError, ValueError, RecursionError):
        return None
    if (folder / CORRUPT).exists():
        return None
    return SavedStep(int(match.group(1)), folder, notes) if match and isinstance(notes, dict) else None


def complete_checkpoints(directory: Path) -> list[SavedStep]:
    """Return the complete checkpoints of a directory, oldest step first."""
    folders = directory.iterdir() if directory.is_dir() else ()
    found = [saved for folder in folders if (saved := read_saved_step(folder)) is not None]
    return sorted(found, key=lambda saved: saved.step)


def newest_valid_checkpoint(directory: Path) -> SavedStep | None:
    """Return a directory's newest complete checkpoint that passes its checksums, or None."""
    return next((saved for saved in reversed(complete_checkpoints(directory)) if _is_sound(saved.folder)), None)


def _is_sound(folder: Path) -> bool:
    """Return True if a checkpoint passes its checksums; otherwise mark it as corrupt.

    A checkpoint without a manifest has no checksums: its directory is copied to a store and gets its manifest there.
    """
    if not (folder / MANIFEST).exists() or is_sound(str(folder)):
        return True
    print(
        f"hopsml: the checkpoint {folder} does not match its checksums; it is marked as corrupt, and skipped",
        flush=True,
    )
    return False


class CheckpointDescription(msgspec.Struct, frozen=True, tag="Description"):
    """Description of a checkpoint to be written: everything except its variables."""

    target: str  # the checkpoint's folder
    notes: bytes  # JSON; includes the step
    step: int
    keep: int  # number of newest checkpoints to retain in the directory
    # Write the manifest here: the folder is on the store already, and no mirror adds the one that resuming needs.
    has_manifest: bool
    umask: int


class FileDescription(msgspec.Struct, frozen=True, tag=True):
    """Description of a single file to be written: everything except its content."""

    target: str
    umask: int
    beside: str = ""  # a second file that describes the first; it is put in place after the first
    text: str = ""  # content of the second file


def write_file(description: FileDescription, write: Callable[[str], object]) -> None:
    """Write a file atomically, replacing an existing one.

    Args:
        description: the target path, and the optional second file.
        write: called with the path to write to, which lies in a temporary folder.

    Raises:
        OSError: the file cannot be written. Errors of ``write`` pass through.
    """
    target = Path(description.target)
    aside = target.with_name(TEMPORARY_PREFIX + target.name)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    fresh, beside = aside / target.name, aside / "beside"
    try:
        write(str(fresh))
        beside.write_text(description.text, encoding="utf-8")
        for file in (fresh, beside):
            durable.sync_file(file)
        fresh.replace(target)
        if description.beside:
            beside.replace(description.beside)
    finally:
        shutil.rmtree(aside)
    durable.sync_directory_entry(target)


def read_umask() -> int:
    """Return this process's umask without setting it, because other threads may be creating files."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(re.search(r"^Umask:\s*(\d+)", status, re.MULTILINE)[1], 8)  # type: ignore[index]


def write_checkpoint(description: CheckpointDescription, write: Callable[[str], object]) -> None:
    """Write a checkpoint and remove all others but the newest ``keep - 1`` intact ones.

    The new one is retained even if others have higher steps, as after a return to a step before a corrupt checkpoint.

    Args:
        description: the checkpoint's folder, notes and number to retain.
        write: called with the path prefix for the variables.

    Raises:
        OSError: the checkpoint cannot be written. Errors of ``write`` pass through.
    """
    target = Path(description.target)
    directory = target.parent
    directory.mkdir(parents=True, exist_ok=True)
    write_retention(directory, description.keep)  # the mirror prunes the shared storage to the same number
    for left in directory.glob(".step-*.tmp"):
        shutil.rmtree(left)
    aside = target.with_name(f".{target.name}.tmp")
    aside.mkdir(parents=True)
    write(str(aside / _VARIABLES))
    (aside / DESCRIPTION).write_bytes(description.notes)
    if description.has_manifest:
        write_manifest(aside, description.step)
    durable.sync_tree(aside)
    replaced = target.with_name(f".{target.name}-replaced.tmp")
    if target.exists():  # a second save of the same step: a folder cannot be replaced atomically
        target.rename(replaced)
    aside.rename(target)
    durable.sync_directory_entry(target)
    shutil.rmtree(replaced, ignore_errors=True)
    _written.add(target)
    _remove_old(target, description.keep)


_written: set[Path] = set()  # written by this process and not removed since: known to be intact without reading them


def _remove_old(newest: Path, keep: int) -> None:
    """Remove all checkpoints but ``newest`` and the ``keep - 1`` intact ones of the highest steps."""
    stay = 1
    for saved in reversed(complete_checkpoints(newest.parent)):
        if saved.folder == newest:
            continue
        if stay < keep and (saved.folder in _written or _is_sound(saved.folder)):
            stay += 1
        elif stay >= keep:
            shutil.rmtree(saved.folder)
            _written.discard(saved.folder)
