"""Local copies of what a run could not store: the folders in which they are left, and how readers find them.

    hopsml-left-<run>-rank-<rank>-<random>/     a worker's files, left by its agent
    hopsml-left-<run>-<hash of the run's URL>/  the run's last records, left by its driver: status.json, .outputs.json

They are among the temporary files of the host, or next to the application's folder of YARN, which outlives the
application. Nothing deletes them: a note and ``status.json`` have their paths.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hopsml.storage import filesystem, urls

PREFIX = "hopsml-left-"
STATUS = "status.json"
_APPCACHE = "appcache"  # folder of YARN with a folder for each application, which is deleted with it


def rescue_candidates(folder: Path) -> tuple[Path, ...]:
    """Return where a folder of an agent may be left, in order of preference.

    A folder stays on its disk, so the temporary files come first only if they are on the same one; next to YARN's folder
    of the application it outlives this application, beside the agent's folder only the agent.
    """
    own_disk = [parent.parent for parent in folder.parents if parent.name == _APPCACHE]
    return (Path(tempfile.gettempdir()), *own_disk, folder.parent.parent)


def rescue_folder(folder: Path, name: str, candidates: Iterable[Path]) -> Path:
    """Move a folder, whose parent is about to be removed, into the first of ``candidates`` that accepts it.

    The folder stays on its own disk, so that nothing is copied.

    Args:
        folder: The folder.
        name: Beginning of its new name.
        candidates: Candidates for the new parent.

    Returns:
        The new path.

    Raises:
        OSError: No candidate accepts it.
    """
    refused = OSError(errno.ENOENT, "there is no space for it", str(folder))
    for place in candidates:
        try:
            left = tempfile.mkdtemp(prefix=f"{name}-", dir=place)
        except OSError as error:
            refused = error
            continue
        try:
            return folder.rename(left)
        except OSError as error:
            refused = error
            os.rmdir(left)
    raise refused


def rescue_worker_files(folder: Path, run_id: str, rank: int) -> str:
    """Leave a folder of a worker where it outlives the agent; return host and path as ``host:path``. Raises OSError."""
    left = rescue_folder(folder, f"{PREFIX}{run_id}-rank-{rank}", rescue_candidates(folder))
    return f"{platform.node()}:{left}"


def rescue_records(run_url: str, records: Mapping[str, bytes]) -> str:
    """Write the last records of a run to this host, replacing earlier ones; return host and path as ``host:path``.

    Args:
        run_url: URL of the run directory.
        records: contents by name.

    Raises:
        OSError: they cannot be written here either, or another user has taken the folder's name.
    """
    folder = _folder_of(run_url)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_own(folder):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))
    for name, content in records.items():
        filesystem.for_url(folder).write_bytes(str(folder / name), content)
    return f"{platform.node()}:{folder}"


def read_rescued_status(run_url: str) -> dict[str, Any] | None:
    """Return the final state that a driver on this host, of this user, has left because the store refused it.

    Args:
        run_url: URL of the run directory.

    Returns:
        The content of ``status.json``; None if nothing was left here, or if it is unreadable or another user's.
    """
    folder = _folder_of(run_url)
    if not _is_own(folder):
        return None
    try:
        found = json.loads((folder / STATUS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _folder_of(run_url: str) -> Path:
    """Return the folder for the records of a run; runs of equal names in other projects have other ones."""
    digest = hashlib.sha256(run_url.rstrip("/").encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir(), f"{PREFIX}{urls.name(run_url)}-{digest}")


def _is_own(folder: Path) -> bool:
    """Return True if a folder exists that only this user can change: anybody can create one of this name."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
