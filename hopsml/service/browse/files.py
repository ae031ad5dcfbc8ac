"""Listing and reading of the files in a run's directory."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hopsml.storage import urls
from hopsml.storage.filesystem import for_url

CHUNK = 1 << 20


class Entry(msgspec.Struct, frozen=True):
    """One file or folder of a run.

    Attributes:
        name: Name within its folder.
        is_folder: True for a folder.
        bytes: Length of a file.
        modified: Time of the last change, in seconds since 1970.
    """

    name: str
    is_folder: bool
    bytes: int
    modified: float


def entries(url: str) -> list[Entry]:
    """Return the entries of a folder, folders first, then by name; none for a file. Raises PathNotFound."""
    system = for_url(url)
    if not system.status(url).is_dir:
        return []
    found = [one for one in system.list_dir(url) if not urls.is_temporary(one.url)]
    listed = [Entry(one.name, one.is_dir, one.length, one.modified_s) for one in found]
    return sorted(listed, key=lambda entry: (not entry.is_folder, entry.name))


def length(url: str) -> int | None:
    """Return the length of a file in bytes; None for a folder. Raises PathNotFound."""
    status = for_url(url).status(url)
    return None if status.is_dir else status.length


def pieces(url: str, begin: int, end: int) -> Iterator[bytes]:
    """Yield a file's bytes from ``begin`` up to ``end``, a megabyte at a time. Raises StorageError."""
    system = for_url(url)
    while begin < end:
        data = system.read_range(url, begin, min(CHUNK, end - begin))
        if not data:
            return
        yield data
        begin += len(data)
