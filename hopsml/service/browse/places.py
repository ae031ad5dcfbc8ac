"""Validation of names from a browser, and their conversion to run directories and files below them."""

from __future__ import annotations

import re

from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import urls
from hopsml.storage.filesystem import exists
from hopsml.storage.run_dir import EXPERIMENTS, RunDir

_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")


def checked_name(name: str, what: str) -> str:
    """Return one component of a path unchanged, if it is safe.

    Args:
        name: The component.
        what: Name of the parameter, for messages.

    Raises:
        ArgumentError: The name could refer to anything else, such as ``..`` or ``a/b``.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ArgumentError(f"{what}={name[:80]!r}: it is one name, without slashes; take it from the list")
    return name


def run_directory(project_url: str, run_id: str, trial: str = "") -> RunDir:
    """Return the directory of a run, or of one trial of a search. Raises ArgumentError, PathNotFound."""
    url = urls.join(project_url, EXPERIMENTS, checked_name(run_id, "run"))
    if not exists(RunDir(url).run_json):
        raise PathNotFound(f"there is no run {run_id!r} in this project; it may have been deleted", url)
    if not trial:
        return RunDir(url)
    folder = urls.join(url, "trials", checked_name(trial, "trial"))
    if not exists(folder):
        raise PathNotFound(f"run {run_id!r} has no folder of a trial {trial!r}; it may not have begun", folder)
    return RunDir(folder)


def below(directory: RunDir, path: str) -> str:
    """Return the URL of a file or folder below a run's directory; "" is the directory itself.

    Symbolic links are checked when the file is opened.

    Args:
        directory: The run's directory.
        path: Relative path.

    Raises:
        ArgumentError: A component of the path leaves the directory.
    """
    parts = [checked_name(part, "path") for part in path.strip("/").split("/")] if path.strip("/") else []
    return urls.join(directory.url, *parts)
