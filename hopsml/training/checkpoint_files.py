"""The folders of checkpoints on this machine, and single files of a framework's: complete or absent.

A checkpoint is a folder ``step-000000120`` in a directory of checkpoints. It is written aside as ``.step-000000120.tmp`` and
renamed when all of it is on disk, so a folder of the first name is complete; what was left half-written is never read and is
swept up by the next one.
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
from hopsml.storage.checkpoints import CORRUPT, MANIFEST, is_sound, write_keep, write_manifest
from hopsml.storage.urls import TEMPORARY_PREFIX

_NAME = re.compile(r"step-(\d{9,})")
DESCRIPTION = "checkpoint.json"
_VARIABLES = "variables"


@dataclass(frozen=True)
class SavedStep:
    """A complete checkpoint: its step, its folder, and what was noted beside the variables."""

    step: int
    folder: Path
    notes: dict[str, Any]

    @property
    def prefix(self) -> str:
        """Of the framework's files."""
        return str(self.folder / _VARIABLES)


def folder_name(step: int) -> str:
    """``step-000000120`` for 120: names sort as their steps do."""
    return f"step-{step:09d}"


def read_saved_step(folder: Path) -> SavedStep | None:
    """The checkpoint in ``folder``; None if that is not the folder of a complete one."""
    match = _NAME.fullmatch(folder.name)
    try:
        notes = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if (folder / CORRUPT).exists():
        return None
    return SavedStep(int(match.group(1)), folder, notes) if match and isinstance(notes, dict) else None


def complete_checkpoints(directory: Path) -> list[SavedStep]:
    """The complete checkpoints of a directory, oldest step first."""
    folders = directory.iterdir() if directory.is_dir() else ()
    found = [saved for folder in folders if (saved := read_saved_step(folder)) is not None]
    return sorted(found, key=lambda saved: saved.step)


def newest_sound(directory: Path) -> SavedStep | None:
    """Return a directory's newest complete checkpoint that passes its checksums, if it has any; None without one."""
    return next((saved for saved in reversed(complete_checkpoints(directory)) if _is_sound(saved.folder)), None)


def _is_sound(folder: Path) -> bool:
    """True if a checkpoint passes its checksums; otherwise mark it as corrupt.

    A checkpoint without a manifest has no checksums: its directory is copied to a store, and gets its manifest there.
    """
    if not (folder / MANIFEST).exists() or is_sound(str(folder)):
        return True
    print(f"hopsml: the checkpoint {folder} fails its checksums; it is marked as corrupt and passed over", flush=True)
    return False


class Description(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint that is to be written, but for its variables."""

    target: str  # its folder
    notes: bytes  # JSON, its step among them
    step: int
    keep: int  # how many of the newest stay in the directory
    has_manifest: bool  # whether it is on its store already, where no mirror adds what a run that goes on looks for
    umask: int


class FileDescription(msgspec.Struct, frozen=True, tag=True):
    """A file that is to be written, but for its content."""

    target: str
    umask: int
    beside: str = ""  # a second file, which tells of the first: it is written behind it
    text: str = ""  # of that one


def write_file(description: FileDescription, write: Callable[[str], object]) -> None:
    """Write a file in the place of what was there. ``write`` gets the path to write to, in a folder that goes away.

    Raises OSError, and whatever ``write`` raises.
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
    durable.sync_name(target)


def umask() -> int:
    """Of this process, read without setting it: other threads may be making files."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(re.search(r"^Umask:\s*(\d+)", status, re.MULTILINE)[1], 8)  # type: ignore[index]


def write_complete(description: Description, write: Callable[[str], object]) -> None:
    """Write a checkpoint and remove all others but the newest ``keep - 1`` intact ones.

    ``write`` gets the prefix for the variables.

    The new one is retained even if others have higher steps, as after a return to a step before a corrupt checkpoint.

    Raises OSError, and whatever ``write`` raises.
    """
    target = Path(description.target)
    directory = target.parent
    directory.mkdir(parents=True, exist_ok=True)
    write_keep(directory, description.keep)  # the mirror prunes the shared storage alike
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
    if target.exists():  # the same step once more: a folder cannot be replaced in one go
        target.rename(replaced)
    aside.rename(target)
    durable.sync_name(target)
    shutil.rmtree(replaced, ignore_errors=True)
    _written.add(target)
    _remove_old(target, description.keep)


_written: set[Path] = set()  # written by this process, and not removed: they are intact without being read


def _remove_old(newest: Path, keep: int) -> None:
    """Remove all checkpoints of the directory but ``newest`` and the ``keep - 1`` intact ones of the highest steps."""
    stay = 1
    for saved in reversed(complete_checkpoints(newest.parent)):
        if saved.folder == newest:
            continue
        if stay < keep and (saved.folder in _written or _is_sound(saved.folder)):
            stay += 1
        elif stay >= keep:
            shutil.rmtree(saved.folder)
            _written.discard(saved.folder)
