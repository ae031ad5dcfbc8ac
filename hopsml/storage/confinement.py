"""Confinement of a project's files: a process opens them for other users only if they really are in the project.

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
import stat
from collections.abc import Iterator

from hopsml.errors import PermissionRefused, StorageError
from hopsml.storage import urls
from hopsml.storage.run_dir import EXPERIMENTS

MOST_BYTES = 64 << 20  # greatest size of a file that is read as a whole: other users may create records of any size
_projects: dict[str, str] = {}  # confined projects: path as in their URLs -> real path


def confine(project_url: str) -> None:
    """Confine a local project: from now on this process opens files below it only if they really are in it."""
    if urls.is_local(project_url):
        path = urls.split(project_url)[2].rstrip("/")
        _projects[path] = os.path.realpath(path)


def root_of(path: str) -> str | None:
    """Return the real directory in which ``path`` must be: a run's, for its files; None if it is not confined."""
    for project, real in _projects.items():
        if path == project or path.startswith(project + "/"):
            parts = [part for part in path[len(project) :].split("/") if part]
            return os.path.join(real, *parts[:2]) if len(parts) > 1 and parts[0] == EXPERIMENTS else real
    return None


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
        if (root := root_of(path)) is not None:
            _check(descriptor, root, path)
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(kind):
            raise PermissionRefused(
                f"cannot open {path}: it is no regular file, but {_kind(kind)}; look at who made it, and delete it",
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


def check_length(path: str, length: int) -> None:
    """Raise StorageError for a file of a confined project that is too large to be read as a whole.

    ``length`` is in bytes.
    """
    if length > MOST_BYTES and root_of(path) is not None:
        raise StorageError(
            f"cannot read {path}: it has {length} bytes, and records have at most {MOST_BYTES}; download it", path
        )


@contextlib.contextmanager
def located(path: str) -> Iterator[str]:
    """Yield a path that stays valid for the present target of ``path`` if its parents are replaced.

    Raises PermissionRefused.
    """
    if (root := root_of(path)) is None:
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
            f"cannot open {path}: a link leads out of the run's directory; read its target on the server's host", path
        )
