"""Permissions of a run's files: its folder is private unless ``share`` opens it to a group or to all.

Everything that is created in a folder gets the folder's permission, on a local disk and on HDFS alike, so only the code
that creates a run must know ``share``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError

VARIABLE = Settings.share.name
PRIVATE = 0o700
_NAMED = {"private": PRIVATE, "group": 0o750, "all": 0o755}
_RUNS = "Experiments"


def share_mode(share: str | None) -> int:
    """Return the permission of a run's folder for ``private``, ``group``, ``all``, or octal digits such as ``770``.

    None, or empty text: the value of ``HOPSML_SHARE``, else private.

    Raises:
        ArgumentError: anything else, a folder that its owner could not use, or one that all users could write to.
    """
    name, text = ("share", share) if share else (VARIABLE, SETTINGS.share)
    if not text:
        return PRIVATE
    if text in _NAMED:
        return _NAMED[text]
    mode = int(text, 8) if re.fullmatch(r"0?[0-7]{3}", text) else 0
    if mode & 0o700 != 0o700 or mode & 0o002:
        raise ArgumentError(
            f"{name}={text!r}: the value must be {', '.join(map(repr, _NAMED))}, or the permission of a folder in "
            "three octal digits, with all rights for the owner (7..) and no right to write for others, for instance "
            "'770'"
        )
    return mode


def new_folder_mode(above: int) -> int:
    """Return the permission of a folder that is created in one with the permission ``above``."""
    return _narrowed(above) & 0o777 | 0o700


def new_file_mode(above: int) -> int:
    """Return the permission of a file that is created in a folder with the permission ``above``."""
    return _narrowed(above) & 0o666 | 0o600


def _narrowed(above: int) -> int:
    """Return the permission without write access for others, if the folder is writable for all, as /tmp is."""
    return above & ~0o022 if above & 0o002 else above


def umask_for_folder(above: int) -> int:
    """Return the umask under which a process creates files no more open than a folder with ``above``.

    ``above`` is the folder's permission.
    """
    return 0o777 & ~new_folder_mode(above)


def ensure_private_folder(path: Path, denied: int = 0o022) -> None:
    """Make a folder of this machine that belongs to this user alone; a folder that exists already must be one.

    A symbolic link must be this user's, or root's, as well: its owner can let it lead elsewhere after the check.

    Args:
        path: the folder; missing parents are made.
        denied: permission bits that it must not have.

    Raises:
        PermissionError: it is no folder, another user's, or has one of these bits; the text has the reason.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    entry = os.lstat(path)
    if stat.S_ISLNK(entry.st_mode) and entry.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"it is a symbolic link of user {entry.st_uid}")
    if not path.is_dir():
        raise PermissionError("it is not a folder")
    facts = path.stat()
    if facts.st_uid != os.geteuid():
        raise PermissionError(f"it belongs to user {facts.st_uid}")
    if facts.st_mode & denied:
        raise PermissionError(f"other users have rights to it (permission {facts.st_mode & 0o777:o})")


def permission_folder(path: str) -> str:
    """Return the folder whose permission counts for a file at ``path``: its run's, or the one that contains it."""
    parts = path.split("/")
    for index, part in enumerate(parts[:-2]):
        if part == _RUNS and parts[index + 1]:
            return "/".join(parts[: index + 2])
    return path.rstrip("/").rpartition("/")[0] or "/"
