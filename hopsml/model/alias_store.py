"""Names for versions, such as ``production``: one small file each in the model's directory.

    <project>/Models/<name>/aliases/production.json

One file an alias, replaced in one step: two callers that set two aliases at the same time do not undo each other's.
"""

from __future__ import annotations

import json
import time
from typing import Protocol

from hopsml import settings
from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record

FOLDER = "aliases"


class Aliases(Protocol):
    """Where the aliases of one model are kept."""

    def all(self) -> dict[str, int]:
        """Alias -> number of the version, by name."""

    def set(self, alias: str, version: int) -> None:
        """Let an alias stand for a version from now on."""

    def delete(self, alias: str) -> bool:
        """Forget an alias; False where there was none."""


class FolderAliases(Aliases):
    """In the model's own directory. Methods raise StorageError."""

    def __init__(self, model_url: str) -> None:
        self._url = urls.join(model_url, FOLDER)

    def all(self) -> dict[str, int]:
        try:
            entries = for_url(self._url).list_dir(self._url)
        except PathNotFound:
            return {}
        found = {}
        for entry in entries:
            if entry.name.endswith(".json") and not urls.is_temporary(entry.url):
                try:
                    found[entry.name.removesuffix(".json")] = _version_in(entry.url)
                except PathNotFound:  # deleted meanwhile
                    continue
        return found

    def set(self, alias: str, version: int) -> None:
        record = {"version": version, "user": settings.user_name(), "time": time.time()}
        place = self._file(alias)
        for_url(place).write_bytes(place, (json.dumps(record, indent=1) + "\n").encode())

    def delete(self, alias: str) -> bool:
        return for_url(self._url).delete(self._file(alias))

    def _file(self, alias: str) -> str:
        return urls.join(self._url, f"{alias}.json")


def _version_in(url: str) -> int:
    data = read_record(url)
    try:
        return int(json.loads(data)["version"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(
            f"cannot read {url}: it is no alias that hopsml wrote ({error!r}); delete it", url
        ) from error
