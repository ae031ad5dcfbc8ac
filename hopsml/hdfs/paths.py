"""Resolution of user paths to URLs, and the project's names."""

from __future__ import annotations

import os
import posixpath

from hopsml.core import settings
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import FileStatus, for_url

AnyPath = str | bytes | os.PathLike[str]


def project_name() -> str:
    """Return the project's name: ``HOPSML_PROJECT``, else the user's name."""
    return settings.project_name()


def project_user(project: str | None = None) -> str:
    """Return ``<project>__<user>``, for this project or another one."""
    user = settings.user_name()
    if project is None and "__" in user:
        return user
    return f"{project or project_name()}__{user.rpartition('__')[2]}"


def project_id() -> int:
    """Raise ArgumentError: only Hopsworks assigns such a number."""
    raise ArgumentError("project_id() is a number of Hopsworks; use project_name()")


def project_path(project: str | None = None, exclude_nn_addr: bool = False) -> str:
    """Return the root of the project with a slash at the end; ``exclude_nn_addr`` omits scheme and host."""
    url = settings.project_url(project) + "/"
    return urls.split(url)[2] if exclude_nn_addr else url


def abs_path(hdfs_path: AnyPath) -> str:
    """Return the full URL of a path; raise PathNotFound (an IOError) if it does not exist."""
    url = to_url(hdfs_path)
    for_url(url).status(url)
    return url


def get_plain_path(hdfs_path: AnyPath) -> str:
    """Return the path without scheme and host: ``/Projects/p/x``."""
    text = to_text(hdfs_path)
    return urls.split(urls.remote_of(text) or text)[2]


def to_url(path: AnyPath, project: str | None = None) -> str:
    """Return the URL for a path given by the user."""
    text = to_text(path)
    remote = urls.remote_of(text)
    if remote:
        _make_as_it_is_here(text, remote)
        return remote
    if urls.split(text)[0]:
        try:
            for_url(text)
        except ArgumentError as error:
            raise StorageError(str(error), text) from error  # existing code expects an IOError
        return text
    root = settings.project_url(project)
    if not text.startswith("/"):
        return urls.join(root, posixpath.normpath(text)) if text.strip("./") else root
    is_local = urls.is_local(root)
    # On a local project /Projects/p/x, as existing code has it, is in the project; other paths are the machine's.
    head = f"/Projects/{project or project_name()}"
    if is_local and (text == head or text.startswith(head + "/")):
        return root + text[len(head) :]
    return urls.base(root) + text


def _make_as_it_is_here(local: str, remote: str) -> None:
    """Create a mirrored local folder on the store as well: mirroring copies files later, folders only when needed.

    An example is ``tensorboard.logdir()`` of a trial, in which nothing has been written yet.
    """
    if remote not in _made and os.path.isdir(local):
        for_url(remote).make_dirs(remote)
        _made.add(remote)


_made: set[str] = set()  # folders created so far; one that is deleted afterwards remains deleted


def to_text(path: AnyPath) -> str:
    """Return a path given as text, bytes or an object as text."""
    return os.fsdecode(path)


def to_local(path: AnyPath) -> str:
    """Return an absolute path of this machine; relative ones start at the working directory."""
    return os.path.abspath(urls.split(to_text(path))[2])


def into(target: str, source: str) -> str:
    """Return the target, or the source's name in it if it is a directory."""
    found = status_or_none(target)
    return urls.join(target, urls.name(source)) if found and found.is_dir else target


def status_or_none(url: str) -> FileStatus | None:
    """Return the metadata of the file or directory at a URL; None if it does not exist."""
    try:
        return for_url(url).status(url)
    except PathNotFound:
        return None
