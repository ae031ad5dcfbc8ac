"""Trust in files that decide which code runs: they must belong to this user, or to an explicitly trusted one.

On a store without owners, such as an object store, its own access rules decide who may write, and nothing is checked
here. HDFS without Kerberos does not verify the names of users.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection
from dataclasses import replace

from hopsml.core import settings
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError
from hopsml.storage import urls
from hopsml.storage.filesystem import MOST_RECORD_BYTES, FileStatus, check_length, for_url

VARIABLE = Settings.trusted_owners.name
_WRITABLE = 0o022  # by the group, or by all users


def trusted() -> frozenset[str]:
    """Return the names of users whose files are trusted in addition to this user's (``HOPSML_TRUSTED_OWNERS``)."""
    return frozenset(SETTINGS.trusted_owners)


def own_names(url: str) -> frozenset[str]:
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
    """Write a file that ``check`` will accept: only its owner may change it, even in a group-writable folder.

    Raises StorageError.
    """
    for_url(url).write_bytes(url, data, overwrite=overwrite)
    narrow(url)


def narrow(url: str) -> None:
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
        what: what the file decides, for the message of ``check``.
        most: bytes that it may have; None for any number.
        owners: trusted owners, as of ``check``.

    Raises:
        ArgumentError: the file is not trusted.
        StorageError: the file cannot be read.
    """
    system = for_url(url)
    if not urls.is_local(url):
        status = system.status(url)
        check(status, what, owners)
        return system.read_bytes(url, most), status
    with system.open_read(url) as file:
        status = replace(system.status(f"/proc/self/fd/{file.fileno()}"), url=url)
        check(status, what, owners)
        check_length(url, status.length, most)
        return file.read(), status


def download(url: str, local: str | os.PathLike[str], what: str, timeout_s: float | None = None) -> None:
    """Copy a file that only a trusted user can have written to a local path; arguments and errors as of ``read_bytes``."""
    system = for_url(url, timeout_s)
    if not urls.is_local(url):
        check(system.status(url), what)
        return system.download(url, local)
    with system.open_read(url) as file:
        opened = f"/proc/self/fd/{file.fileno()}"
        check(replace(system.status(opened), url=url), what)
        return system.download(opened, local)


def check(status: FileStatus, what: str, owners: Collection[str] | None = None) -> None:
    """Raise ArgumentError unless only a trusted user can have written this file.

    Args:
        status: attributes of the file.
        what: what the file decides, for the message.
        owners: trusted owners; by default this user and those of ``HOPSML_TRUSTED_OWNERS``.
    """
    if not status.owner:
        return
    believed = own_names(status.url) | trusted() if owners is None else frozenset(owners)
    if status.owner not in believed:
        raise ArgumentError(
            f"{status.url} belongs to {status.owner}, and {what}: it is believed only from {', '.join(sorted(believed))}; "
            f"let it be written by one of them, or name {status.owner} in {VARIABLE} if you trust them"
        )
    if status.permission & _WRITABLE and not status.is_dir:
        raise ArgumentError(
            f"{status.url} may be written by others than {status.owner} (permission {status.permission:o}), and {what}: "
            "take that right away (chmod go-w), after a look at what is in it"
        )
