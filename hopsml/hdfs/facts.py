"""What is known of a path and of the store; permissions."""

from __future__ import annotations

import stat as modes
from dataclasses import dataclass

from hopsml import settings
from hopsml.errors import ArgumentError
from hopsml.hdfs.names import AnyPath, status_or_none, to_url
from hopsml.storage import filesystem, urls
from hopsml.storage.filesystem import Capacity, for_url


@dataclass(frozen=True)
class PathStat:
    """As ``os.stat_result``, with names for the user and group, as pydoop gives them."""

    st_mode: int
    st_uid: str
    st_gid: str
    st_size: int
    st_mtime: float
    st_atime: float
    st_blksize: int
    kind: str  # "file" or "directory"
    name: str  # full path


def stat(hdfs_path: AnyPath) -> PathStat:
    """What is known of a path; PathNotFound if there is nothing."""
    url = to_url(hdfs_path)
    found = for_url(url).status(url)
    return PathStat(
        st_mode=found.permission | (modes.S_IFDIR if found.is_dir else modes.S_IFREG),
        st_uid=found.owner,
        st_gid=found.group,
        st_size=found.length,
        st_mtime=found.modified_s,
        st_atime=found.accessed_s,
        st_blksize=found.block_size,
        kind="directory" if found.is_dir else "file",
        name=found.url,
    )


def access(hdfs_path: AnyPath, mode: int, project: str | None = None) -> bool:
    """Whether this user has the rights of ``mode``: ``os.R_OK | ...`` (0 to 7), or three digits as in
    ``chmod``.

    Of three digits the one counts that applies to this user (owner, group, others); the groups of a remote
    store are not known here, so that there a user is the owner or one of the others.
    """
    url = to_url(hdfs_path, project)
    found = status_or_none(url)
    if found is None:
        return False
    user, local = settings.user_name(), urls.split(url)[0] in ("", "file")
    if local and user == "root":
        return True
    shift = 6 if found.owner == user else 0
    bits = mode if 0 <= mode <= 7 else (_octal(mode) >> shift) & 7
    return (found.permission >> shift) & bits == bits


def chmod(hdfs_path: AnyPath, mode: int | str, project: str | None = None) -> None:
    """Change permissions. ``mode`` is written as in a shell: ``700`` means ``rwx------``."""
    url = to_url(hdfs_path, project)
    for_url(url).set_permission(url, _octal(mode))


def chown(hdfs_path: AnyPath, user: str, group: str, project: str | None = None) -> None:
    """Change user and group; an empty name leaves one as it is."""
    url = to_url(hdfs_path, project)
    for_url(url).set_owner(url, user or None, group or None)


def capacity() -> int:
    """Bytes of the whole store."""
    return _capacity().total


def close() -> None:
    """Let go of what is held for speed; later calls work."""
    filesystem.close_all()


def _octal(mode: int | str) -> int:
    """``700`` (a number or text) as ``0o700``."""
    try:
        return int(str(mode), 8)
    except ValueError:
        raise ArgumentError(f"mode={mode!r}: write it as in a shell, for instance 755 or 700") from None


def _capacity() -> Capacity:
    url = settings.project_url()
    if urls.split(url)[0] in ("", "file"):
        url = _existing_parent(url)
    return for_url(url).capacity(url)


def _existing_parent(url: str) -> str:
    while not filesystem.exists(url):
        url = urls.parent(url)
    return url
