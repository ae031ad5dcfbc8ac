"""Logs of an application that is over, where its NodeManagers put them: below ``yarn.nodemanager.remote-app-log-dir``."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from hopsml import settings
from hopsml.errors import PathNotFound
from hopsml.storage import filesystem, urls
from hopsml.yarn import tfile

_DEFAULT_DIR = "/tmp/logs"
_BUCKETS = 10_000


def read(
    application_id: str, user: str, container: str, name: str, offset: int, limit: int
) -> tuple[bytes, int] | None:
    """Up to ``limit`` bytes from ``offset`` (negative: from the end) of one file of a container, and its whole length.

    None where it is not there (yet). Raises StorageError, and tfile.FormatError for a format that is not read here.
    """
    for url in files(application_id, user, settings.yarn_settings()):
        with filesystem.for_url(url).open_read(url) as file:
            found = within(file, container, name, offset, limit)
        if found is not None:
            return found
    return None


def files(application_id: str, user: str, known: Mapping[str, str]) -> Iterator[str]:
    """The files of an application, one for each node: ``<dir>/<user>/bucket-logs-tfile/<nnnn>/<application>/<node>``,
    or, from Hadoop 2, ``<dir>/<user>/logs/<application>/<node>``.
    """
    folder = known.get("yarn.nodemanager.remote-app-log-dir", _DEFAULT_DIR)
    if not urls.base(folder):
        folder = (settings.default_fs() or "") + folder
    bucket = f"{int(application_id.rpartition('_')[2]) % _BUCKETS:04d}"
    for kind in _entries(urls.join(folder, user)):
        for candidate in (urls.join(kind, bucket, application_id), urls.join(kind, application_id)):
            yield from (url for url in _entries(candidate) if not url.endswith(".tmp"))  # .tmp: being written


def within(file: BinaryIO, container: str, name: str, offset: int, limit: int) -> tuple[bytes, int] | None:
    """The same from one aggregated file: a record for each container, in it for each log its name, length and bytes."""
    for key, value in tfile.records(file):
        if key[2:].decode(errors="replace") != container:
            continue
        while size := value.read(2):
            found = value.read(struct.unpack(">H", size)[0]).decode()
            length = int(value.read(struct.unpack(">H", value.read(2))[0]))
            if found == name:
                start = max(0, length + offset) if offset < 0 else min(offset, length)
                value.skip(start)
                return value.read(min(limit, length - start)), length
            value.skip(length)
    return None


def _entries(url: str) -> list[str]:
    try:
        return [entry.url for entry in filesystem.for_url(url).list_dir(url)]
    except PathNotFound:
        return []
