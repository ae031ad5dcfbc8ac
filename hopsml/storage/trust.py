"""Whose files are believed: what decides which code runs must belong to this user, or to somebody who is trusted by name.

On a store that knows no owners, as object stores, its own rules of access say who may write, and nothing is checked here.
HDFS without Kerberos takes everybody's word for who they are.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection
from dataclasses import replace

from hopsml import settings
from hopsml.errors import ArgumentError
from hopsml.storage import urls
from hopsml.storage.filesystem import MOST_RECORD_BYTES, FileStatus, check_length, for_url

VARIABLE = "HOPSML_TRUSTED_OWNERS"  # names, separated by commas
_WRITABLE = 0o022  # by the group, or by everybody


def trusted() -> frozenset[str]:
    """Names of users whose files are believed besides one's own (``HOPSML_TRUSTED_OWNERS``)."""
    return frozenset(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())


def own_names(url: str) -> frozenset[str]:
    """Under which names files of this user's lie on the store; on a local disk root, who can do anything, counts as well."""
    if not urls.is_local(url):
        return frozenset({settings.user_name()})
    try:
        return frozenset({pwd.getpwuid(os.geteuid()).pw_name, "root"})
    except KeyError:  # a container's uid without a name
        return frozenset({str(os.geteuid()), "root"})


def write_bytes(url: str, data: bytes, overwrite: bool = True) -> None:
    """Write a file that ``check`` will be asked about: also in a folder where a group may write, nobody but its owner may
    change it. Raises StorageError.
    """
    for_url(url).write_bytes(url, data, overwrite=overwrite)
    narrow(url)


def narrow(url: str) -> None:
    """Take from all but its owner the right to write a file that was just made. Raises StorageError."""
    system = for_url(url)
    status = system.status(url)
    if status.owner and status.permission & _WRITABLE:
        system.set_permission(url, status.permission & ~_WRITABLE)


def read_bytes(url: str, what: str) -> tuple[bytes, FileStatus]:
    """Read a file that only a trusted user can have written; return its content and status; see ``check``.

    On a local disk the opened file is checked, so that it cannot be replaced in between. Raises ArgumentError, StorageError.
    """
    system = for_url(url)
    if not urls.is_local(url):
        status = system.status(url)
        check(status, what)
        return system.read_bytes(url, MOST_RECORD_BYTES), status
    with system.open_read(url) as file:
        status = replace(system.status(f"/proc/self/fd/{file.fileno()}"), url=url)
        check(status, what)
        check_length(url, status.length, MOST_RECORD_BYTES)
        return file.read(), status


def check(status: FileStatus, what: str, owners: Collection[str] | None = None) -> None:
    """ArgumentError unless only somebody who is trusted can have written this file. ``what`` it decides, for the message.

    ``owners``: who is believed; this user and those of ``HOPSML_TRUSTED_OWNERS`` by default.
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
