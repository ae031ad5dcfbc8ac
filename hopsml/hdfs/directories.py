"""Functions on directories: list, match, create, delete."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

from hopsml.errors import PathNotFound
from hopsml.hdfs.paths import AnyPath, status_or_none, to_url
from hopsml.storage import filesystem, urls
from hopsml.storage.filesystem import FileStatus, for_url


def ls(hdfs_path: AnyPath, recursive: bool = False, exclude_nn_addr: bool = False) -> list[str]:
    """Return the full paths of a directory's entries, or of the file itself.

    ``exclude_nn_addr`` omits scheme and host.
    """
    found = [entry.url for entry in _entries(to_url(hdfs_path), recursive)]
    return [urls.split(url)[2] for url in found] if exclude_nn_addr else found


def lsl(hdfs_path: AnyPath, recursive: bool = False, project: str | None = None) -> list[dict[str, Any]]:
    """Return one dict per entry that ``ls`` lists, with pydoop's keys: ``name, kind, size, last_mod, owner, ...``."""
    return [_as_dict(entry) for entry in _entries(to_url(hdfs_path, project), recursive)]


def glob(hdfs_path: AnyPath, recursive: bool = False, project: str | None = None) -> list[str]:
    """Return the full paths that match a pattern of ``* ? [...]``; with ``recursive`` also all paths below them."""
    pattern = to_url(hdfs_path, project)
    head, path = urls.base(pattern), urls.split(pattern)[2]
    found = [head + ("/" if path.startswith("/") else "")]
    for part in path.strip("/").split("/"):
        found = [match for url in found for match in _matches(url, part)]
    if recursive:
        found += [entry.url for url in found if isdir(url) for entry in filesystem.walk(url)]
    return sorted(set(found))


def mkdir(hdfs_path: AnyPath, project: str | None = None) -> None:
    """Create a directory and its parents; an existing one is no error."""
    url = to_url(hdfs_path, project)
    for_url(url).make_dirs(url)


def rmr(hdfs_path: AnyPath, project: str | None = None) -> None:
    """Delete a file, or a directory with its content; raise PathNotFound if it does not exist."""
    delete(to_url(hdfs_path, project), recursive=True)


def delete(hdfs_path: AnyPath, recursive: bool = False) -> None:
    """Delete a file or an empty directory, with ``recursive`` also a full one; raise PathNotFound if absent."""
    url = to_url(hdfs_path)
    if not for_url(url).delete(url, recursive):
        raise PathNotFound(f"cannot delete {url}: there is no such file or directory", url)


def exists(hdfs_path: AnyPath, project: str | None = None) -> bool:
    """Return True if there is a file or directory at this path."""
    return filesystem.exists(to_url(hdfs_path, project))


def isdir(hdfs_path: AnyPath, project: str | None = None) -> bool:
    """Return True if there is a directory at this path."""
    found = status_or_none(to_url(hdfs_path, project))
    return found is not None and found.is_dir


def isfile(hdfs_path: AnyPath, project: str | None = None) -> bool:
    """Return True if there is a file, not a directory, at this path."""
    found = status_or_none(to_url(hdfs_path, project))
    return found is not None and not found.is_dir


def _entries(url: str, recursive: bool) -> Iterator[FileStatus]:
    """Yield the entries of a directory without temporary ones, or the file itself."""
    system = for_url(url)
    found = system.status(url)
    if not found.is_dir:
        yield found
    elif recursive:
        yield from (entry for entry in filesystem.walk(url) if not urls.is_temporary(entry.url))
    else:
        yield from (entry for entry in system.list_dir(url) if not urls.is_temporary(entry.url))


def _matches(url: str, pattern: str) -> list[str]:
    """Return the entries of ``url`` whose name matches one component of a pattern."""
    if not any(sign in pattern for sign in "*?["):
        below = urls.join(url, pattern) if pattern else url
        return [below] if filesystem.exists(below) else []
    if not isdir(url):
        return []
    hidden = pattern.startswith(".")
    names = (entry.name for entry in for_url(url).list_dir(url))
    return [urls.join(url, n) for n in names if fnmatch.fnmatchcase(n, pattern) and (hidden or n[0] != ".")]


def _as_dict(entry: FileStatus) -> dict[str, Any]:
    """Return the metadata of an entry with pydoop's keys."""
    return {
        "name": entry.url,
        "kind": "directory" if entry.is_dir else "file",
        "size": entry.length,
        "last_mod": int(entry.modified_s),
        "last_access": int(entry.accessed_s),
        "owner": entry.owner,
        "group": entry.group,
        "permissions": entry.permission,
        "replication": entry.replication,
        "block_size": entry.block_size,
    }
