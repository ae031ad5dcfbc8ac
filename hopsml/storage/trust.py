"""Trust in files of others: owners whose files may decide which code runs, and confinement of reads to a project.

On a store without owners, such as an object store, its own access rules decide who may write, and nothing is checked
here. HDFS without Kerberos does not verify the names of users.

A server that shows runs reads, as its own user, files that any user with write access to a project has put there. A
symbolic link there may point to any file of the server's user. Once a project is confined, the local file system opens
a file below it and then gets the opened file's real location from the kernel: outside the real directory of that run,
access is refused. A check of the path before it is opened would leave a moment in which it can be replaced. Links
within one run's directory are followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Collection, Iterator
from dataclasses import replace

from hopsml.core import settings
from hopsml.core.platforms import descriptor_path
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, PermissionRefused, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import MOST_RECORD_BYTES, FileStatus, check_length, for_url
from hopsml.storage.run_dir import EXPERIMENTS

MOST_BYTES = 64 << 20  # greatest size of a file that is read as a whole: other users may create records of any size
_projects: dict[str, str] = {}  # confined projects: path as in their URLs -> real path
_shelves: dict[str, str] = {}  # folders whose subfolders are confined each by itself: path -> real path


def confine_project(project_url: str) -> None:
    """Confine a local project: from now on this process opens files below it only if they really are in it."""
    if urls.is_local(project_url):
        path = urls.split(project_url)[2].rstrip("/")
        _projects[path] = os.path.realpath(path)


def confine_subfolders(folder: str) -> None:
    """Confine each subfolder of a local folder: from now on files below one are opened only if they really are in it."""
    _shelves[folder.rstrip("/")] = os.path.realpath(folder)


def confining_root(path: str) -> str | None:
    """Return the real directory in which ``path`` must be: a run's, for its files; None if it is not confined."""
    if not _projects and not _shelves:
        return None
    known = {**_projects, **_shelves}
    around = [place for place in known if path == place or path.startswith(place + "/")]
    if not around:
        return None
    place = max(around, key=len)  # a project may lie within another one
    parts = [part for part in path[len(place) :].split("/") if part]
    if place in _shelves:
        return os.path.join(known[place], *parts[:1])
    return os.path.join(known[place], *parts[:2]) if len(parts) > 1 and parts[0] == EXPERIMENTS else known[place]


def opener(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a regular file, as the ``opener`` argument of ``open``: what another user has put there may be anything.

    A named pipe would wait for its other side, and a device may have no end.

    Args:
        path: the file.
        flags: those of ``os.open``.
        mode: permission of a file that is created.

    Raises:
        OSError: there is none, or it is a directory.
        PermissionRefused: it is something else, or not in its confined project.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        if (root := confining_root(path)) is not None:
            _check(descriptor, root, path)
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(kind):
            raise PermissionRefused(
                f"cannot open {path}: it is not a regular file, but {_kind(kind)}; check who created it, and delete it",
                path,
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _kind(mode: int) -> str:
    """Return the kind of a file that is not a regular one, for messages."""
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "a socket"


def check_read_length(path: str, length: int) -> None:
    """Raise StorageError for a file of a confined project that is too large to be read as a whole.

    ``length`` is in bytes.
    """
    if length > MOST_BYTES and confining_root(path) is not None:
        raise StorageError(
            f"cannot read {path}: it has {length} bytes, and records have at most {MOST_BYTES} bytes; download the "
            "file instead",
            path,
        )


@contextlib.contextmanager
def pinned_path(path: str) -> Iterator[str]:
    """Yield a path that stays valid for the present target of ``path`` if its parents are replaced.

    Raises PermissionRefused.
    """
    if (root := confining_root(path)) is None:
        yield path
        return
    descriptor = os.open(path, os.O_PATH)
    try:
        _check(descriptor, root, path)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _check(descriptor: int, root: str, path: str) -> None:
    real = os.readlink(f"/proc/self/fd/{descriptor}")
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        raise PermissionRefused(
            f"cannot open {path}: it is a link that leads out of the directory of the run; read its target on the "
            "host of the server",
            path,
        )


VARIABLE = Settings.trusted_owners.name
_WRITABLE = 0o022  # by the group, or by all users


def trusted_owners() -> frozenset[str]:
    """Return the names of users whose files are trusted in addition to this user's (``HOPSML_TRUSTED_OWNERS``)."""
    return frozenset(SETTINGS.trusted_owners)


def own_owner_names(url: str) -> frozenset[str]:
    """Return the owner names of this user's files on the store.

    On a local disk it includes root, who can change any file.
    """
    if not urls.is_local(url):
        return frozenset({settings.user_name()})
    try:
        return frozenset({pwd.getpwuid(os.geteuid()).pw_name, "root"})
    except KeyError:  # a container's uid without a name
        return frozenset({str(os.geteuid()), "root"})


def write_bytes(url: str, data: bytes, overwrite: bool = True) -> None:
    """Write a file that ``check_trusted`` will accept: only its owner may change it, even in a group-writable folder.

    Raises StorageError.
    """
    for_url(url).write_bytes(url, data, overwrite=overwrite)
    remove_write_access_of_others(url)


def remove_write_access_of_others(url: str) -> None:
    """Remove write access to a new file from all but its owner. Raises StorageError."""
    system = for_url(url)
    status = system.status(url)
    if status.owner and status.permission & _WRITABLE:
        system.set_permission(url, status.permission & ~_WRITABLE)


def read_bytes(
    url: str, what: str, most: int | None = MOST_RECORD_BYTES, owners: Collection[str] | None = None
) -> tuple[bytes, FileStatus]:
    """Read a file that only a trusted user can have written; return its content and status.

    On a local disk the opened file is checked, so that it cannot be replaced in between.

    Args:
        url: URL of the file.
        what: what the file decides, for the message of ``check_trusted``.
        most: bytes that it may have; None for any number.
        owners: trusted owners, as of ``check_trusted``.

    Raises:
        ArgumentError: the file is not trusted.
        StorageError: the file cannot be read.
    """
    system = for_url(url)
    if not urls.is_local(url):
        status = system.status(url)
        check_trusted(status, what, owners)
        return system.read_bytes(url, most), status
    with system.open_read(url) as file:
        status = replace(system.status(descriptor_path(file.fileno())), url=url)
        check_trusted(status, what, owners)
        check_length(url, status.length, most)
        return file.read(), status


def download(url: str, local: str | os.PathLike[str], what: str, timeout_s: float | None = None) -> None:
    """Copy a file that only a trusted user can have written to a local path; arguments and errors as of ``read_bytes``."""
    system = for_url(url, timeout_s)
    if not urls.is_local(url):
        check_trusted(system.status(url), what)
        return system.download(url, local)
    with system.open_read(url) as file:
        opened = descriptor_path(file.fileno())
        check_trusted(replace(system.status(opened), url=url), what)
        return system.download(opened, local)


def check_trusted(status: FileStatus, what: str, owners: Collection[str] | None = None) -> None:
    """Raise ArgumentError unless only a trusted user can have written this file.

    Args:
        status: attributes of the file.
        what: what the file decides, for the message.
        owners: trusted owners; by default this user and those of ``HOPSML_TRUSTED_OWNERS``.
    """
    if not status.owner:
        return
    believed = own_owner_names(status.url) | trusted_owners() if owners is None else frozenset(owners)
    if status.owner not in believed:
        raise ArgumentError(
            f"{status.url} belongs to {status.owner}, and {what}: it is accepted only from "
            f"{', '.join(sorted(believed))}. Let one of them write the file, or add {status.owner} to {VARIABLE} if "
            "you trust that user"
        )
    if status.permission & _WRITABLE and not status.is_dir:
        raise ArgumentError(
            f"{status.url} can be written by users other than {status.owner} (permission {status.permission:o}), and "
            f"{what}: check its content, and then remove that right (chmod go-w)"
        )
