"""Metadata of paths, of the store and of its cluster; permissions."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hopsml.core import settings
from hopsml.errors import ArgumentError
from hopsml.hdfs.files import AnyPath, status_or_none, to_url
from hopsml.storage import filesystem, urls
from hopsml.storage.filesystem import StoreCapacity, for_url
from hopsml.storage.remote.hadoop import web_addresses


@dataclass(frozen=True)
class PathStat:
    """Metadata by the names of ``os.stat_result``, as pydoop returns them: names for the user and group.

    ``st_mode`` holds the permission bits alone (0o775); ``kind`` tells a file from a directory.
    """

    st_mode: int
    st_uid: str
    st_gid: str
    st_size: int
    st_mtime: float
    st_atime: float
    st_blksize: int
    replication: int
    kind: str  # "file" or "directory"
    name: str  # full path
    st_ino: int = 0  # what a path of HDFS does not have
    st_dev: int = 0
    st_nlink: int = 1
    st_ctime: float = 0


def stat(hdfs_path: AnyPath, project: str | None = None) -> PathStat:
    """Return the metadata of a path; raise PathNotFound if it does not exist."""
    url = to_url(hdfs_path, project)
    found = for_url(url).status(url)
    return PathStat(
        st_mode=found.permission,
        st_uid=found.owner,
        st_gid=found.group,
        st_size=found.length,
        st_mtime=found.modified_s,
        st_atime=found.accessed_s,
        st_blksize=found.block_size,
        replication=found.replication,
        kind="directory" if found.is_dir else "file",
        name=found.url,
    )


def access(hdfs_path: AnyPath, mode: int, project: str | None = None) -> bool:
    """Return True if this user has the rights of ``mode``: ``os.R_OK | ...`` (0 to 7), or three digits as in ``chmod``.

    Of three digits the one that applies to this user counts (owner, group, others); the groups of a remote store are
    not known here, so that there a user is the owner or one of the others.
    """
    url = to_url(hdfs_path, project)
    found = status_or_none(url)
    if found is None:
        return False
    if not urls.is_local(url):
        shift = 6 if found.owner == settings.user_name() else 0
    elif os.geteuid() == 0:
        return True
    else:  # the kernel checks ids, not a user name from a variable
        facts = os.stat(urls.split(url)[2])
        in_group = facts.st_gid in (os.getegid(), *os.getgroups())
        shift = 6 if facts.st_uid == os.geteuid() else 3 if in_group else 0
    bits = mode if 0 <= mode <= 7 else (permission_bits(mode) >> shift) & 7
    return (found.permission >> shift) & bits == bits


def chmod(hdfs_path: AnyPath, mode: int | str, project: str | None = None) -> None:
    """Change the permissions of a path.

    ``mode`` is written as in a shell, ``700`` for ``rwx------`` or ``"ug+rwx"``, or as Python's ``0o700``.
    """
    url = to_url(hdfs_path, project)
    if isinstance(mode, str) and _CHANGES.fullmatch(mode):
        found = for_url(url).status(url)
        for_url(url).set_permission(url, changed_mode_bits(found.permission, mode, found.is_dir))
    else:
        for_url(url).set_permission(url, permission_bits(mode))


def chown(hdfs_path: AnyPath, user: str, group: str, project: str | None = None) -> None:
    """Change user and group; an empty name leaves one unchanged."""
    url = to_url(hdfs_path, project)
    for_url(url).set_owner(url, user or None, group or None)


def capacity() -> int:
    """Return the size in bytes of the store that holds the project.

    Raises:
        StorageError: if the store does not report it.
    """
    return _capacity().total


def close() -> None:
    """Close the cached connections; later calls open them again."""
    filesystem.close_all()


def is_tls_enabled() -> bool:
    """Return True if the cluster's RPC uses TLS (``ipc.server.ssl.enabled``)."""
    return settings.hadoop_settings().get("ipc.server.ssl.enabled", "false").lower() == "true"


def get_webhdfs_host() -> str:
    """Return the host of the NameNode's web address.

    Raises ArgumentError without a Hadoop configuration.
    """
    return _web_address()[0]


def get_webhdfs_port() -> int:
    """Return the port of the NameNode's web address.

    Raises ArgumentError without a Hadoop configuration.
    """
    return int(_web_address()[1])


_CHANGES = re.compile(r"[ugoa]*[-+=][rwxX]*(,[ugoa]*[-+=][rwxX]*)*")
_BITS = {"r": 0o444, "w": 0o222, "x": 0o111}
_WHO = {"u": 0o700, "g": 0o070, "o": 0o007, "a": 0o777}


def changed_mode_bits(bits: int, changes: str, is_dir: bool = False) -> int:
    """Return permission bits after changes in the form of a shell's chmod: ``"ug+rwx"``, ``"o-w,a+X"``.

    Without ``u``, ``g``, ``o`` a change is for all; the umask is not applied.
    """
    for change in changes.split(","):
        who, sign, rights = re.split("([-+=])", change)
        mask = 0
        for one in who or "a":
            mask |= _WHO[one]
        wanted = 0
        for right in rights:
            if right != "X" or is_dir or bits & 0o111:
                wanted |= _BITS[right.lower()]
        wanted &= mask
        bits = bits & ~wanted if sign == "-" else (bits & ~mask if sign == "=" else bits) | wanted
    return bits


def permission_bits(mode: int | str) -> int:
    """Return the permission bits of a mode: ``700`` and ``"700"`` are ``0o700``, as existing code writes them.

    An int that comes from a literal such as ``0o644`` (420) is returned unchanged if its decimal digits are no
    plausible permission: they contain an 8 or 9, or give others rights that the owner lacks. So is ``0o777`` (511).
    """
    as_written = _octal(str(mode))
    if isinstance(mode, int) and not isinstance(mode, bool) and 0 <= mode <= 0o777:
        usual = as_written is not None and _is_usual(as_written)
        if mode == 0o777 or (_is_usual(mode) and not usual):
            return mode
    if as_written is None or not 0 <= as_written <= 0o7777:
        raise ArgumentError(f"mode={mode!r}: write it as in a shell, for instance 755, 700 or 'ug+rwx'")
    return as_written


def _octal(text: str) -> int | None:
    """Return the value of octal digits; None if the text has others."""
    try:
        return int(text, 8)
    except ValueError:
        return None


def _is_usual(bits: int) -> bool:
    """Return True if the group has no right that the owner lacks, and others have none that the group lacks."""
    owner, group, others = bits >> 6 & 7, bits >> 3 & 7, bits & 7
    return bits <= 0o777 and group & ~owner == 0 and others & ~group == 0


def _capacity() -> StoreCapacity:
    """Return the capacity of the store that holds the project."""
    url = settings.project_url()
    if urls.is_local(url):
        url = _existing_parent(url)
    return for_url(url).capacity(url)


def _existing_parent(url: str) -> str:
    while not filesystem.exists(url):
        url = urls.parent(url)
    return url


def _web_address() -> tuple[str, str]:
    """Return host and port of the NameNode's web address."""
    if not settings.hadoop_settings():
        raise ArgumentError("no Hadoop configuration: set HADOOP_CONF_DIR to the cluster's client configuration")
    host, _, port = web_addresses(settings.default_fs() or "")[0].rpartition(":")
    return host, port
