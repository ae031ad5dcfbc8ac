"""Storage of aliases, which are names for versions such as ``production``, in the model's directory.

    <project>/Models/<name>/aliases/production.json

Each alias has its own file, which is replaced atomically, so that concurrent changes of two aliases do not interfere.
"""

from __future__ import annotations

import json
import time
from typing import Protocol

from hopsml.core import settings
from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record

FOLDER = "aliases"


class Aliases(Protocol):
    """Interface of the storage for the aliases of one model."""

    def all(self) -> dict[str, int]:
        """Return alias -> version number, sorted by alias."""

    def set(self, alias: str, version: int) -> None:
        """Assign an alias to a version, replacing an earlier assignment."""

    def delete(self, alias: str) -> bool:
        """Delete an alias of the model; return False if it did not exist."""


class FolderAliases(Aliases):
    """Aliases as files in the model's directory; its methods raise StorageError."""

    def __init__(self, model_url: str) -> None:
        self._url = urls.join(model_url, FOLDER)

    def all(self) -> dict[str, int]:
        """Return alias -> version number, from the files of the directory."""
        try:
            entries = for_url(self._url).list_dir(self._url)
        except PathNotFound:
            return {}
        found = {}
        for entry in entries:
            if entry.name.endswith(".json") and not urls.is_temporary(entry.url):
                try:
                    found[entry.name.removesuffix(".json")] = _version_in(entry.url)
                except PathNotFound:  # deleted since the listing
                    continue
        return found

    def set(self, alias: str, version: int) -> None:
        """Write the file of an alias."""
        record = {"version": version, "user": settings.user_name(), "time": time.time()}
        place = self._file(alias)
        for_url(place).write_bytes(place, (json.dumps(record, indent=1) + "\n").encode())

    def delete(self, alias: str) -> bool:
        """Delete the file of an alias; return False if it did not exist."""
        return for_url(self._url).delete(self._file(alias))

    def _file(self, alias: str) -> str:
        """Return the URL of an alias file."""
        return urls.join(self._url, f"{alias}.json")


def _version_in(url: str) -> int:
    """Return the version number in an alias file."""
    data = read_record(url)
    try:
        return int(json.loads(data)["version"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(
            f"cannot read {url}: it is no alias that hopsml wrote ({error!r}); delete it", url
        ) from error
