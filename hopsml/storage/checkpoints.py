"""Checkpoints in a directory of any store: commit, fetch, verify and prune. A checkpoint is complete or absent.

A checkpoint is a directory ``step-000000120`` with a ``manifest.json`` that lists every file with its length and CRC.
It is uploaded under a temporary name and renamed. On stores without an atomic rename the manifest still identifies a
complete checkpoint: every file must exist with its length. CRCs are verified when a checkpoint is fetched, when a run
that is resumed chooses one, and before an older checkpoint is deleted because a newer one exists. One that fails is
marked with a ``corrupt.json``, and no longer counts as complete.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hopsml.errors import ArgumentError, PathExists, PathNotFound, StorageError
from hopsml.storage import causes, tree, trust, urls
from hopsml.storage.filesystem import FileStatus, exists, for_url, read_record, walk
from hopsml.storage.run_dir import parse_step_name, step_name
from hopsml.storage.tree import download_tree, local_files, upload_into

MANIFEST = "manifest.json"
STATE_FILE = "state.hopsml"  # what a State has committed; its plain values are pickled
UNPICKLED = "loading a checkpoint executes its content"
CORRUPT = "corrupt.json"  # in a checkpoint that failed its checksums; names the file
KEEP = ".keep"  # in a local checkpoint directory: number of checkpoints that its owner retains, for the mirror
STALE_S = 24 * 3600.0  # a temporary name of this age belongs to a process that died
_READ_BYTES = 1 << 20
_MOST_KEEP_BYTES = 64


@dataclass(frozen=True)
class FileEntry:
    """Entry of a checkpoint's manifest: file name relative to its directory, length in bytes, CRC-32."""

    name: str
    length: int
    crc32: int


def commit(local_dir: str | os.PathLike[str], checkpoints_url: str, step: int, timeout_s: float | None = None) -> str:
    """Upload a local directory as the checkpoint of ``step``, and return its URL.

    An intact checkpoint of that step is not changed; an incomplete or corrupt one is replaced. The local directory must
    not change during the call: otherwise StorageError is raised, and no checkpoint appears.

    Args:
        local_dir: local directory with the files.
        checkpoints_url: folder of the checkpoints.
        step: step of the checkpoint.
        timeout_s: deadline of one storage step, in seconds; None: ``HOPSML_STORAGE_TIMEOUT_S``, else 30.
    """
    target = urls.join(checkpoints_url, step_name(step))
    if is_sound(target, timeout_s):
        return target
    entries, stamps = manifest_entries(local_dir), _stamps(local_dir)
    system = for_url(checkpoints_url, timeout_s)
    fresh = urls.temporary_sibling(target)
    try:
        upload_into(local_dir, fresh, timeout_s)
        if any(entry.name == STATE_FILE for entry in entries):
            trust.remove_write_access_of_others(urls.join(fresh, STATE_FILE))
        if _stamps(local_dir) != stamps:
            raise StorageError(f"{local_dir} changed while it was uploaded to {target}; commit it again", target)
        system.write_bytes(urls.join(fresh, MANIFEST), _encode(step, entries))
        with contextlib.suppress(PathNotFound):
            system.delete(target, recursive=True)
        try:
            system.rename(fresh, target)
        except PathExists:  # another process committed the same step at the same time
            tree.discard(fresh, timeout_s)
    except BaseException:
        tree.discard(fresh, timeout_s)
        raise
    return target


def write_manifest(local_dir: str | os.PathLike[str], step: int) -> None:
    """Make a local directory a complete checkpoint in place, for a store on this machine.

    Raises ArgumentError for a directory without files, and OSError.
    """
    Path(local_dir, MANIFEST).write_bytes(_encode(step, manifest_entries(local_dir)))


def manifest_entries(local_dir: str | os.PathLike[str]) -> list[FileEntry]:
    """Return the manifest entries of a local checkpoint; ArgumentError if it has no files."""
    root = Path(local_dir)
    names = [name for name in local_files(root) if name != MANIFEST] if root.is_dir() else []
    if not names:
        raise ArgumentError(f"{root}: a checkpoint must be a directory with at least one file")
    return [_entry(root, name) for name in names]


def _stamps(local_dir: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Return length and modification time of each file, which are cheap to compare."""
    root = Path(local_dir)
    try:
        facts = {name: (root / name).stat() for name in local_files(root) if name != MANIFEST}
    except OSError as error:
        raise causes.from_os_error("read", str(root), error) from error
    return {name: (fact.st_size, fact.st_mtime_ns) for name, fact in facts.items()}


def steps(checkpoints_url: str, timeout_s: float | None = None) -> list[int]:
    """Return the steps that have a directory, ascending; the checkpoint may be incomplete.

    Empty if there is no directory.
    """
    return _steps_among(_entries(checkpoints_url, timeout_s))


def _entries(url: str, timeout_s: float | None) -> list[FileStatus]:
    try:
        return for_url(url, timeout_s).list_dir(url)
    except PathNotFound:
        return []


def _steps_among(entries: list[FileStatus]) -> list[int]:
    return sorted(step for entry in entries if entry.is_dir and (step := parse_step_name(entry.name)) is not None)


def latest_complete(checkpoints_url: str, timeout_s: float | None = None) -> int | None:
    """Return the highest step with a complete checkpoint; None if there is none.

    Contents are not read: see ``latest_sound``.
    """
    return _latest(checkpoints_url, is_complete, timeout_s)


def latest_sound(checkpoints_url: str, timeout_s: float | None = None) -> int | None:
    """Return the highest step whose checkpoint is complete and passes its checksums; None if there is none.

    This reads its files.
    """
    return _latest(checkpoints_url, is_sound, timeout_s)


def _latest(checkpoints_url: str, accepts: Callable[[str, float | None], bool], timeout_s: float | None) -> int | None:
    for step in reversed(steps(checkpoints_url, timeout_s)):
        if accepts(urls.join(checkpoints_url, step_name(step)), timeout_s):
            return step
    return None


def is_complete(url: str, timeout_s: float | None = None) -> bool:
    """Return True if a checkpoint has a manifest and all its files at their lengths, and is not marked as corrupt."""
    entries = _read_manifest(url, timeout_s)
    if entries is None:
        return False
    try:
        lengths = {urls.relative(e.url, url): e.length for e in walk(url, timeout_s) if not e.is_dir}
    except PathNotFound:  # deleted during the call
        return False
    return CORRUPT not in lengths and all(lengths.get(entry.name) == entry.length for entry in entries)


def is_sound(url: str, timeout_s: float | None = None) -> bool:
    """Return True if a checkpoint is complete and every file passes its checksum.

    This reads all files. A checkpoint that fails is marked as corrupt.
    """
    if not is_complete(url, timeout_s):
        return False
    system = for_url(url, timeout_s)
    try:
        for entry in _read_manifest(url, timeout_s) or ():
            with system.open_read(urls.join(url, entry.name)) as file:
                found = _read_entry(entry.name, file)
            if found != entry:
                mark_corrupt(url, entry.name, timeout_s)
                return False
    except PathNotFound:  # deleted during the call
        return False
    return True


def mark_corrupt(url: str, name: str, timeout_s: float | None = None) -> None:
    """Mark a checkpoint whose file ``name`` failed its checksum; do nothing if this user may not write there."""
    record = {"file": name, "found_s": round(time.time(), 3)}
    with contextlib.suppress(StorageError):
        if exists(urls.join(url, MANIFEST), timeout_s):  # else it has been deleted, and must not reappear as a folder
            for_url(url, timeout_s).write_bytes(urls.join(url, CORRUPT), json.dumps(record).encode())


def fetch(checkpoints_url: str, step: int, local_dir: str | os.PathLike[str], timeout_s: float | None = None) -> Path:
    """Download one checkpoint to ``local_dir``, which appears complete, and check its CRCs.

    Raises:
        PathNotFound: the checkpoint is not complete.
        PathExists: ``local_dir`` exists.
        StorageError: a file's content is not what was committed.
        ArgumentError: a ``State`` has committed it, and belongs to a user who is not trusted.
    """
    url, target = urls.join(checkpoints_url, step_name(step)), Path(local_dir)
    if target.exists():
        raise PathExists(f"cannot fetch {url} to {target}: it already exists; choose another name", str(target))
    if not is_complete(url, timeout_s):
        raise PathNotFound(f"cannot fetch {url}: there is no complete checkpoint of step {step}", url)
    fresh = Path(urls.temporary_sibling(os.path.abspath(target)))
    download = functools.partial(_download, timeout_s=timeout_s)
    try:
        download_tree(url, fresh, timeout_s, download)
        try:
            verify_checksums(fresh, url)
        except CorruptCheckpoint:
            if not is_sound(url, timeout_s):  # read the stored files: only if they fail, too, is it marked as corrupt
                raise
            shutil.rmtree(fresh)
            download_tree(url, fresh, timeout_s, download)
            verify_checksums(fresh, url)
        fresh.rename(target)
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if not isinstance(error, OSError) or isinstance(error, StorageError):
            raise
        raise causes.from_os_error("write", str(target), error) from error
    return target


def _download(url: str, local: Path, timeout_s: float | None) -> None:
    """Copy one file of a checkpoint, which must be a trusted user's if it is one that is unpickled later."""
    if urls.name(url) == STATE_FILE:
        trust.download(url, local, UNPICKLED, timeout_s)
    else:
        for_url(url, timeout_s).download(url, local)


class CorruptCheckpoint(StorageError):
    """Error: the content of a checkpoint's file is not what was committed."""


def verify_checksums(local_dir: str | os.PathLike[str], origin: str = "") -> None:
    """Compare a local checkpoint with its own manifest.

    Args:
        local_dir: directory of the checkpoint.
        origin: its name in messages; by default the directory.

    Raises:
        CorruptCheckpoint: naming the file that differs.
    """
    root = Path(local_dir)
    entries = _read_manifest(str(root), None)
    if entries is None:
        raise CorruptCheckpoint(
            f"{origin or root}: its manifest is missing or damaged; use an earlier checkpoint", origin or str(root)
        )
    if (root / CORRUPT).exists():
        raise CorruptCheckpoint(
            f"{origin or root}: it is marked as corrupt (the file {CORRUPT} in it has the name of the damaged file); "
            "use an earlier checkpoint",
            origin or str(root),
        )
    there = {urls.relative(found.url, str(root)) for found in walk(str(root), None) if not found.is_dir}
    for entry in entries:
        if entry.name not in there or _entry(root, entry.name) != entry:
            raise CorruptCheckpoint(
                f"{origin or root}: {entry.name} differs from the committed file ({entry.length} bytes, CRC "
                f"{entry.crc32:08x}); use an earlier checkpoint",
                origin or str(root),
            )


def write_retention(local_dir: str | os.PathLike[str], keep: int) -> None:
    """Record, in a local checkpoint directory, that its owner retains the newest ``keep``; atomic. Raises OSError."""
    path = Path(local_dir, KEEP)
    if read_retention(local_dir) != keep:
        fresh = Path(urls.temporary_sibling(str(path)))
        fresh.write_text(f"{keep}\n", encoding="ascii")
        fresh.replace(path)


def read_retention(local_dir: str | os.PathLike[str]) -> int | None:
    """Return the number that ``write_retention`` recorded; None if there is none: then all are retained."""
    try:
        with open(Path(local_dir, KEEP), encoding="ascii", opener=trust.opener) as file:
            keep = int(file.read(_MOST_KEEP_BYTES))
    except (OSError, ValueError):
        return None
    return keep if keep >= 1 else None


def prune(
    checkpoints_url: str,
    keep: int,
    timeout_s: float | None = None,
    known: Collection[int] = (),
    latest: int | None = None,
) -> list[int]:
    """Delete all but the newest ``keep`` intact checkpoints; return the steps that were deleted.

    Incomplete and corrupt ones older than the newest intact one are deleted too, and temporary names that are a day
    old. Retained checkpoints are read to verify their checksums, except the ``known`` ones.

    Args:
        checkpoints_url: the directory of checkpoints.
        keep: number of checkpoints that are retained, at least 1.
        timeout_s: deadline of one storage step, in seconds.
        known: steps that the caller has committed or verified itself; these are only checked for the mark of a corrupt
            one.
        latest: the step that was committed last, which is always retained, even if the store holds higher steps (after
            a run has returned to an earlier step); by default the highest of ``known``.

    Raises:
        ArgumentError: ``keep`` is not an integer of 1 or more.
    """
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise ArgumentError(f"keep={keep!r}: the number of checkpoints to keep must be at least 1")
    system = for_url(checkpoints_url, timeout_s)
    entries = _entries(checkpoints_url, timeout_s)
    present = _steps_among(entries)
    latest = max(known, default=None) if latest is None else latest
    sound: list[int] = []
    for step in reversed(present):  # older ones than those retained need not be read
        if len(sound) < keep and _may_stay(urls.join(checkpoints_url, step_name(step)), step in known, timeout_s):
            sound.append(step)
    doomed = [step for step in steps_to_prune(present, sound, keep) if step != latest]
    for step in doomed:
        system.delete(urls.join(checkpoints_url, step_name(step)), recursive=True)
    newest_s = max(
        (entry.modified_s for entry in entries), default=0.0
    )  # by the store's clock: ours may be a day ahead
    for entry in entries:
        if urls.is_temporary(entry.url) and newest_s - entry.modified_s > STALE_S:
            system.delete(entry.url, recursive=True)
    return doomed


def steps_to_prune(present: list[int], complete: list[int], keep: int) -> list[int]:
    """Return the steps to delete.

    These are complete ones beyond the newest ``keep``, and incomplete ones before the newest complete one.
    """
    kept = set(sorted(complete)[-keep:])
    newest = max(complete, default=-1)
    return sorted(step for step in present if step not in kept and step < newest)


def _may_stay(url: str, is_known: bool, timeout_s: float | None) -> bool:
    return not exists(urls.join(url, CORRUPT), timeout_s) if is_known else is_sound(url, timeout_s)


def _entry(root: Path, name: str) -> FileEntry:
    try:
        with open(root / name, "rb", opener=trust.opener) as file:
            return _read_entry(name, file)
    except OSError as error:
        raise causes.from_os_error("read", str(root / name), error) from error


def _read_entry(name: str, file: BinaryIO) -> FileEntry:
    length, crc = 0, 0
    while piece := file.read(_READ_BYTES):
        length += len(piece)
        crc = zlib.crc32(piece, crc)
    return FileEntry(name, length, crc)


def _encode(step: int, entries: list[FileEntry]) -> bytes:
    files = [{"name": entry.name, "bytes": entry.length, "crc32": entry.crc32} for entry in entries]
    return (json.dumps({"version": 1, "step": step, "files": files}, indent=1) + "\n").encode()


def _read_manifest(url: str, timeout_s: float | None) -> list[FileEntry] | None:
    try:
        record: Any = json.loads(read_record(urls.join(url, MANIFEST), timeout_s))
        return [FileEntry(str(f["name"]), int(f["bytes"]), int(f["crc32"])) for f in record["files"]]
    except PathNotFound:
        return None
    except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError):  # cut short or not ours
        return None
