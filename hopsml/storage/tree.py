"""Transfers of whole directories: upload, download and copy, several files at a time.

Temporary files that could not be deleted at once, because the store did not respond, are deleted later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from hopsml.errors import PathExists, PathNotFound, StorageError
from hopsml.storage import causes, urls
from hopsml.storage.filesystem import copy, exists, for_url, is_same_store, walk

_lock = threading.Lock()
_left: set[str] = set()


def discard(url: str, timeout_s: float | None = None, try_now: bool = True) -> None:
    """Delete a temporary file or directory, or remember it for ``delete_discarded``; raises nothing.

    ``try_now`` False: only remember it.
    """
    if try_now:
        try:
            for_url(url, timeout_s).delete(url, recursive=True)
            return
        except StorageError:
            pass
    with _lock:
        _left.add(url)


def delete_discarded(timeout_s: float | None = None) -> int:
    """Delete what is remembered, as far as the stores respond; returns the number of remaining entries."""
    with _lock:
        pending = sorted(_left)
    for url in pending:
        try:
            for_url(url, timeout_s).delete(url, recursive=True)
        except StorageError:
            break  # the other calls would take a timeout each
        with _lock:
            _left.discard(url)
    with _lock:
        return len(_left)


T = TypeVar("T")
PARALLEL_FILES = 4  # closing a small file on HDFS can take half a second of waiting


def read_store_clock_s(folder: str, timeout_s: float | None = None) -> float | None:
    """Return the time of a store's clock, by writing a file below ``folder``; None if it cannot be written there.

    Clocks of this machine and of the store may differ by a day.
    """
    probe = urls.temporary_sibling(urls.join(folder, "clock"))
    system = for_url(probe, timeout_s)
    try:
        system.write_bytes(probe, b"")
        now_s = system.status(probe).modified_s
        system.delete(probe)
    except StorageError:
        return None
    return now_s or None


def upload_tree(
    local_dir: str | os.PathLike[str], url: str, overwrite: bool = False, timeout_s: float | None = None
) -> int:
    """Upload a local directory, which appears under its name when it is complete; returns the bytes sent.

    Without ``overwrite`` an existing target is PathExists; with it, the old one is removed just before.
    """
    system = for_url(url, timeout_s)
    if not overwrite and exists(url, timeout_s):
        raise PathExists(f"cannot upload to {url}: it already exists; allow overwriting or choose another name", url)
    fresh = urls.temporary_sibling(url)
    try:
        sent = upload_into(local_dir, fresh, timeout_s)
        if overwrite:
            system.delete(url, recursive=True)
        system.rename(fresh, url)
    except BaseException:
        discard(fresh)
        raise
    return sent


def upload_into(local_dir: str | os.PathLike[str], url: str, timeout_s: float | None = None) -> int:
    """Upload the entries of a local directory into a directory, and return the bytes sent.

    Each file appears complete.
    """
    root = Path(local_dir)
    if not root.is_dir():
        raise PathNotFound(f"cannot upload {root}: there is no such directory", str(root))
    system = for_url(url, timeout_s)
    system.make_dirs(url)
    for folder in local_folders(root):
        system.make_dirs(urls.join(url, folder))
    files = local_files(root)

    def send(name: str) -> int:
        system.upload(root / name, urls.join(url, name))
        return (root / name).stat().st_size

    return sum(_in_parallel(send, files))


def download_tree(
    url: str,
    local_dir: str | os.PathLike[str],
    timeout_s: float | None = None,
    download: Callable[[str, Path], None] | None = None,
    keep: Container[str] | None = None,
) -> int:
    """Download a directory into a local one, created if missing, and return the bytes received.

    Temporary names are left out. ``download`` copies one file, by URL and local path; by default the file system does.
    Of ``keep`` only files of these relative names are downloaded, and no empty directories; by default everything.
    """
    system, root = for_url(url, timeout_s), Path(local_dir)
    bring = system.download if download is None else download
    entries = [entry for entry in walk(url, timeout_s) if not urls.has_temporary_part(urls.relative(entry.url, url))]
    if keep is not None:
        entries = [entry for entry in entries if not entry.is_dir and urls.relative(entry.url, url) in keep]
    try:
        root.mkdir(parents=True, exist_ok=True)
        for entry in entries:
            if entry.is_dir:
                (root / urls.relative(entry.url, url)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise causes.from_os_error("write", str(root), error) from error
    files = [entry for entry in entries if not entry.is_dir]
    names = [urls.relative(file.url, url) for file in files]
    _in_parallel(lambda name: bring(urls.join(url, name), root / name), names)
    return sum(entry.length for entry in files)


def copy_tree(source: str, target: str) -> None:
    """Copy a directory, or a file, between any two stores; the target must not exist."""
    if not for_url(source).status(source).is_dir:
        return copy(source, target, overwrite=False)
    if exists(target):
        raise PathExists(f"cannot copy to {target}: it already exists; delete it or choose another name", target)
    fresh, system = urls.temporary_sibling(target), for_url(target)
    try:
        system.make_dirs(fresh)
        for entry in list(walk(source)):
            below = urls.join(fresh, urls.relative(entry.url, source))
            if entry.is_dir:
                system.make_dirs(below)
            else:
                copy(entry.url, below)
        system.rename(fresh, target)
    except BaseException:
        discard(fresh)
        raise
    return None


def move(source: str, target: str) -> None:
    """Rename within a store; between stores copy and then delete."""
    if is_same_store(source, target):
        return for_url(target).rename(source, target)
    copy_tree(source, target)
    for_url(source).delete(source, recursive=True)
    return None


def local_files(root: Path) -> list[str]:
    """Return the relative names of all files below a local directory, with ``/`` between parts, sorted.

    Temporary ones are left out.
    """
    return sorted(_names(root, (path for path in root.rglob("*") if path.is_file())))


def local_folders(root: Path) -> list[str]:
    """Return the relative names of all directories below a local directory, parents first."""
    return sorted(_names(root, (path for path in root.rglob("*") if path.is_dir())))


def _names(root: Path, paths: Iterable[Path]) -> list[str]:
    names = (path.relative_to(root).as_posix() for path in paths)
    return [name for name in names if not urls.has_temporary_part(name)]


def _in_parallel(call: Callable[[str], T], names: list[str]) -> list[T]:
    """Return the results in order; the first error is raised after all running calls have ended."""
    if len(names) < 2:
        return [call(name) for name in names]
    with ThreadPoolExecutor(PARALLEL_FILES, thread_name_prefix="hopsml-files") as pool:
        running = [pool.submit(call, name) for name in names]
        try:
            return [future.result() for future in running]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
