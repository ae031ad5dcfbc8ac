"""What is known of a path, of the store and of its cluster; permissions."""

from __future__ import annotations

import os
import stat as modes
from dataclasses import dataclass

from hopsml import settings
from hopsml.errors import ArgumentError
from hopsml.hdfs.paths import AnyPath, status_or_none, to_url
from hopsml.storage import filesystem, urls
from hopsml.storage.filesystem import StoreCapacity, for_url
from hopsml.storage.remote.hadoop import web_addresses


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
    """Whether this user has the rights of ``mode``: ``os.R_OK | ...`` (0 to 7), or three digits as in ``chmod``.

    Of three digits the one counts that applies to this user (owner, group, others); the groups of a remote
    store are not known here, so that there a user is the owner or one of the others.
    """
    url = to_url(hdfs_path, project)
    found = status_or_none(url)
    if found is None:
        return False
    if not urls.is_local(url):
        shift = 6 if found.owner == settings.user_name() else 0
    elif os.geteuid() == 0:
        return True
    else:  # the kernel asks for no name that a variable holds
        facts = os.stat(urls.split(url)[2])
        in_group = facts.st_gid in (os.getegid(), *os.getgroups())
        shift = 6 if facts.st_uid == os.geteuid() else 3 if in_group else 0
    bits = mode if 0 <= mode <= 7 else (permission(mode) >> shift) & 7
    return (found.permission >> shift) & bits == bits


def chmod(hdfs_path: AnyPath, mode: int | str, project: str | None = None) -> None:
    """Change permissions. ``mode`` is written as in a shell, ``700`` for ``rwx------``, or as Python's ``0o700``."""
    url = to_url(hdfs_path, project)
    for_url(url).set_permission(url, permission(mode))


def chown(hdfs_path: AnyPath, user: str, group: str, project: str | None = None) -> None:
    """Change user and group; an empty name leaves one as it is."""
    url = to_url(hdfs_path, project)
    for_url(url).set_owner(url, user or None, group or None)


def capacity() -> int:
    """Size in bytes of the store that holds the project. Raises StorageError where it does not tell."""
    return _capacity().total


def close() -> None:
    """Let go of what is held for speed; later calls work."""
    filesystem.close_all()


def is_tls_enabled() -> bool:
    """Whether the cluster's RPC speaks TLS (``ipc.server.ssl.enabled``)."""
    return settings.hadoop_settings().get("ipc.server.ssl.enabled", "false").lower() == "true"


def get_webhdfs_host() -> str:
    """Host of the NameNode's web address. ArgumentError without a Hadoop configuration."""
    return _web_address()[0]


def get_webhdfs_port() -> int:
    """Port of the NameNode's web address. ArgumentError without a Hadoop configuration."""
    return int(_web_address()[1])


def permission(mode: int | str) -> int:
    """The permission bits that are meant: ``700`` and ``"700"`` are ``0o700``, as existing code writes them.

    A number that came of a literal such as ``0o644`` (420) is taken as it is where its decimal digits are no permission:
    an 8 or 9 among them, or others who may do what the owner may not; and so is ``0o777`` (511).
    """
    as_written = _octal(str(mode))
    if isinstance(mode, int) and not isinstance(mode, bool) and 0 <= mode <= 0o777:
        usual = as_written is not None and _is_usual(as_written)
        if mode == 0o777 or (_is_usual(mode) and not usual):
            return mode
    if as_written is None or not 0 <= as_written <= 0o7777:
        raise ArgumentError(f"mode={mode!r}: write it as in a shell, for instance 755 or 700")
    return as_written


def _octal(text: str) -> int | None:
    try:
        return int(text, 8)
    except ValueError:
        return None


def _is_usual(bits: int) -> bool:
    """Whether the group may do nothing that the owner may not, and others nothing that the group may not."""
    owner, group, others = bits >> 6 & 7, bits >> 3 & 7, bits & 7
    return bits <= 0o777 and group & ~owner == 0 and others & ~group == 0


def _capacity() -> StoreCapacity:
    url = settings.project_url()
    if urls.is_local(url):
        url = _existing_parent(url)
    return for_url(url).capacity(url)


def _existing_parent(url: str) -> str:
    while not filesystem.exists(url):
        url = urls.parent(url)
    return url


def _web_address() -> tuple[str, str]:
    if not settings.hadoop_settings():
        raise ArgumentError("no Hadoop configuration: set HADOOP_CONF_DIR to the cluster's client configuration")
    host, _, port = web_addresses(settings.default_fs() or "")[0].rpartition(":")
    return host, port
