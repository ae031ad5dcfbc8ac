"""Copies between this machine and the project, and within the project."""

from __future__ import annotations

import os
from pathlib import Path

from hopsml.errors import ArgumentError, PathExists, PathNotFound
from hopsml.hdfs.files import AnyPath, copy_target, local_absolute_path, to_url
from hopsml.storage import filesystem, tree, urls
from hopsml.storage.filesystem import FileStatus, for_url

CLOCK_S = 0.02  # seconds by which the kernel's clock for files is behind


def copy_to_hdfs(
    local_path: AnyPath, relative_hdfs_path: AnyPath, overwrite: bool = False, project: str | None = None
) -> None:
    """Copy a local file or directory INTO a directory of the project.

    Args:
        local_path: the local file or directory.
        relative_hdfs_path: the target directory.
        overwrite: True to replace an existing target.
        project: name of another project than this one.

    Raises:
        PathNotFound: if there is no such local file.
        PathExists: if the target exists and ``overwrite`` is False; it is an IOError.
    """
    local = local_absolute_path(local_path)
    if not os.path.exists(local):
        raise PathNotFound(f"cannot copy {local}: there is no such local file or directory", local)
    target = urls.join(to_url(relative_hdfs_path, project), os.path.basename(local))
    _refuse_itself(local, target)
    _refuse_present(target, overwrite)
    if os.path.isdir(local):
        tree.upload_tree(local, target, overwrite=overwrite)
    else:
        _remove_folder(target)
        for_url(target).upload(local, target)


def copy_to_local(
    hdfs_path: AnyPath, local_path: AnyPath = "", overwrite: bool = False, project: str | None = None
) -> str:
    """Copy a file or directory into a local directory; return the full path of the copy.

    An existing copy is retained if each of its files is as long as the original and not older; else it is replaced, as
    with ``overwrite``. The local directory must exist.
    """
    url, folder = to_url(hdfs_path, project), local_absolute_path(local_path)
    if not os.path.isdir(folder):
        raise PathNotFound(f"cannot copy to {folder}: there is no such local directory", folder)
    found = for_url(url).status(url)
    target = os.path.join(folder, found.name)
    if os.path.lexists(target) and not overwrite and _agrees(found, target):
        return target
    _refuse_itself(url, target)
    if found.is_dir:
        fresh = urls.temporary_sibling(target)
        try:
            tree.download_tree(url, fresh)
            for_url(target).delete(target, recursive=True)
            os.rename(fresh, target)
        finally:
            for_url(fresh).delete(fresh, recursive=True)
    else:
        _remove_folder(target)
        for_url(url).download(url, target)
    return target


def copy_from_project(
    hdfs_path: AnyPath, local_path: AnyPath = "", overwrite: bool = False, project: str | None = None
) -> str:
    """Copy as ``copy_to_local``, of which this is the oldest name; the arguments are the same."""
    return copy_to_local(hdfs_path, local_path, overwrite, project)


def cp(src_hdfs_path: AnyPath, dest_hdfs_path: AnyPath, overwrite: bool = False) -> None:
    """Copy a file or directory; INTO the target if that is a directory.

    Without ``overwrite`` an existing target raises PathExists; with it the target is replaced as a whole.
    """
    source, target = to_url(src_hdfs_path), copy_target(to_url(dest_hdfs_path), to_url(src_hdfs_path))
    is_dir = for_url(source).status(source).is_dir
    _refuse_itself(source, target)
    _refuse_present(target, overwrite)
    if not is_dir:
        _remove_folder(target)
        filesystem.copy(source, target, overwrite=True)
        return
    fresh = urls.temporary_sibling(target)
    try:
        tree.copy_tree(source, fresh)
        for_url(target).delete(target, recursive=True)
        for_url(target).rename(fresh, target)
    except BaseException:
        tree.discard(fresh)
        raise


def move(src: AnyPath, dest: AnyPath) -> None:
    """Rename a file or directory; INTO the target if that is a directory."""
    source, target = to_url(src), copy_target(to_url(dest), to_url(src))
    tree.move(source, target)


def rename(src: AnyPath, dest: AnyPath) -> None:
    """Rename as ``move``: INTO the target if that is a directory."""
    move(src, dest)


def _refuse_present(url: str, overwrite: bool) -> None:
    if not overwrite and filesystem.exists(url):
        raise PathExists(f"{url} exists already; pass overwrite=True or choose another name", url)


def _remove_folder(url: str) -> None:
    """Delete a directory that a file is going to replace; a file is replaced in one step."""
    try:
        is_dir = for_url(url).status(url).is_dir
    except PathNotFound:
        return
    if is_dir:
        for_url(url).delete(url, recursive=True)


def _refuse_itself(source: str, target: str) -> None:
    """Raise ArgumentError if one of two paths is, or contains, the other: replacing the target would delete it."""
    one, other = _place(source), _place(target)
    if one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/"):
        raise ArgumentError(
            f"cannot copy {source} to {target}: one of the two is, or holds, the other; choose another place"
        )


def _place(url: str) -> str:
    """Return a URL in a form in which paths can be compared."""
    scheme, authority, path = urls.split(url)
    if urls.is_local(url):
        return os.path.realpath(path)
    return f"{scheme}://{authority}/{path.strip('/')}"


def _agrees(found: FileStatus, target: str) -> bool:
    """Return True if a local path may be a complete copy of a file or directory."""
    if found.is_dir != os.path.isdir(target):
        return False
    if not found.is_dir:
        return _is_copy(found, Path(target))
    there = {urls.relative(entry.url, found.url): entry for entry in filesystem.walk(found.url)}
    here = {entry.relative_to(target).as_posix(): entry for entry in Path(target).rglob("*")}
    return there.keys() == here.keys() and all(
        entry.is_dir == here[name].is_dir() and (entry.is_dir or _is_copy(entry, here[name]))
        for name, entry in there.items()
    )


def _is_copy(found: FileStatus, local: Path) -> bool:
    """Return True if a local file may be a copy of this one: of the same length, and not older than the original."""
    facts = local.stat()
    return facts.st_size == found.length and facts.st_mtime + CLOCK_S >= found.modified_s
