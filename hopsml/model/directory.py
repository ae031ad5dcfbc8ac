"""Directory of a model: version numbers, creation and deletion of versions, and aliases.

    <project>/Models/<name>/<version>/
        claim.json     the exporter of this version; written exclusively, so that no two exporters have one number
        ...            the files of the model, as TensorFlow Serving and programs of the predecessor expect them
        model.json     the description; written atomically at the end: without it the version does not exist
    <project>/Models/<name>/aliases/production.json

The files of a version that replaces another one are in a separate folder ``files-<token>``, which ``model.json`` names;
those of a model with a file ``model.json`` or ``claim.json`` of its own are in ``files``, as in earlier releases.
The previous version exists until the new one is complete, so a failed export loses nothing. A claim remains when its
exporter is killed and when its version is deleted: numbers are not reused, so that copies of a version in caches stay
correct. Each alias has its own file, which is replaced atomically, so that concurrent changes of two aliases do not
interfere.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec

from hopsml.core import settings
from hopsml.errors import ModelExists, PathExists, PathNotFound, QuotaExceeded, StorageError
from hopsml.model.description import FILES, MODEL_JSON, ModelDescription, decode, encode
from hopsml.model.version import Version
from hopsml.storage import trust, urls
from hopsml.storage.filesystem import exists, for_url, read_record
from hopsml.storage.tree import upload_into

FOLDER = "aliases"
CLAIM_JSON = "claim.json"
_RECORDS = frozenset({CLAIM_JSON, MODEL_JSON})


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
    except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(f"cannot read {url}: hopsml did not write this alias ({error!r}); delete it", url) from error


@dataclass(frozen=True)
class VersionLock:
    """Version number that one exporter owns exclusively.

    Attributes:
        url: URL of the version's directory.
        version: The version number.
        token: Random token that identifies the exporter.
        folder: Folder of the files, relative to ``url``; "" for ``url`` itself.
        replaces: True if the version was claimed before.
        entries: Names of the uploaded files and folders.
    """

    url: str
    version: int
    token: str
    folder: str = ""
    replaces: bool = False
    entries: frozenset[str] = frozenset()

    def fill(self, folder: Path) -> VersionLock:
        """Upload the files of a local folder, and return the lock with their place.

        Raises:
            StorageError: The files cannot be written.
        """
        entries = frozenset(path.name for path in folder.iterdir())
        if self.replaces:
            below = f"{FILES}-{self.token}"
        else:
            below = FILES if entries & _RECORDS else ""
        filled = replace(self, folder=below, entries=entries)
        try:
            upload_into(folder, urls.join(self.url, below))
        except BaseException:
            filled.give_up()
            raise
        return filled

    def complete(self, description: ModelDescription) -> Version:
        """Complete the version by writing its description.

        Raises:
            StorageError: The version was deleted or claimed again since the claim, or the file cannot be written.
        """
        if _token(self.url) != self.token:
            raise self._overtaken()
        target, system = urls.join(self.url, MODEL_JSON), for_url(self.url)
        before = _described(target)
        made = msgspec.structs.replace(description, folder=self.folder)
        trust.write_bytes(target, encode(made), overwrite=before is not None)
        if not _token(self.url):  # deleted at this moment: its files are, or will be, deleted
            system.delete(target)
            raise self._overtaken()
        if before is not None and before.folder != self.folder:
            _remove(self.url, before.folder, {name.partition("/")[0] for name in before.files})
        return Version(self.url, made)

    def give_up(self) -> None:
        """Delete the uploaded files as far as the store permits; the number remains claimed."""
        _remove(self.url, self.folder, self.entries)

    def _overtaken(self) -> StorageError:
        """Return the error for a version that was deleted or claimed again."""
        text = (
            f"{self.url} was deleted or locked by another exporter while the model was exported to it; export the "
            "model again"
        )
        return StorageError(text, self.url)


def claimed_numbers(model_url: str) -> list[int]:
    """Return the claimed numbers in ascending order, including those of incomplete versions."""
    try:
        entries = for_url(model_url).list_dir(model_url)
    except PathNotFound:
        return []
    return sorted(int(entry.name) for entry in entries if entry.is_dir and entry.name.isdecimal())


def acquire_version(model_url: str, version: int | None = None, overwrite: bool = False) -> VersionLock:
    """Claim the number ``version``, or the next free one, for the caller.

    Args:
        model_url: URL of the model's directory.
        version: The number; None for the next free one.
        overwrite: True to replace an existing version when the new one is complete.

    Raises:
        ModelExists: The number is claimed and ``overwrite`` is False, or another exporter claims it at the same time.
    """
    if version is not None:
        return _acquire_one(model_url, version, overwrite)
    number = max(claimed_numbers(model_url), default=0) + 1
    while True:
        try:
            return _write_claim(model_url, number)
        except PathExists:
            number += 1


def _acquire_one(model_url: str, version: int, overwrite: bool) -> VersionLock:
    """Claim one number, replacing an earlier claim if ``overwrite`` is set."""
    url = urls.join(model_url, str(version))
    taken = exists(urls.join(url, CLAIM_JSON)) or exists(urls.join(url, MODEL_JSON))
    if taken and not overwrite:
        complete = exists(urls.join(url, MODEL_JSON))
        what = "already exists" if complete else "is locked: its export is running or was killed, or it was deleted"
        raise ModelExists(
            f"version {version} of the model '{urls.name(model_url)}' {what}; omit the number for the next free one, "
            "or pass overwrite=True (--overwrite)"
        )
    if taken:
        for_url(url).delete(urls.join(url, CLAIM_JSON))
    try:
        return replace(_write_claim(model_url, version), replaces=taken)
    except PathExists as error:
        raise ModelExists(
            f"version {version} of the model '{urls.name(model_url)}' is being exported by another process now; try "
            "again later"
        ) from error


def delete_version(url: str) -> None:
    """Delete a version except its number; a concurrent export to it fails.

    Raises:
        StorageError: The version cannot be deleted.
    """
    _clear(url)  # deletes first, because the disk may be full
    place = urls.join(url, CLAIM_JSON)
    try:
        for_url(place).write_bytes(place, _record(""))
    except QuotaExceeded:
        return
    _clear(url)


def _clear(url: str) -> None:
    """Delete the description first, so that the version no longer exists, and then its files."""
    system = for_url(url)
    system.delete(urls.join(url, MODEL_JSON))
    for entry in system.list_dir(url):
        if entry.name not in _RECORDS:
            system.delete(entry.url, recursive=True)


def _remove(url: str, folder: str, entries: Iterable[str]) -> None:
    """Delete a version's folder of files, or these entries of ``url`` if they are there; errors are ignored."""
    for name in [folder] if folder else sorted(set(entries) - _RECORDS):
        with contextlib.suppress(StorageError):  # the files are not referenced, and are deleted with the version
            for_url(url).delete(urls.join(url, name), recursive=True)


def _described(url: str) -> ModelDescription | None:
    """Return the description in a file; None if the file does not exist."""
    try:
        return decode(read_record(url), url)
    except PathNotFound:
        return None


def _write_claim(model_url: str, number: int) -> VersionLock:
    """Write the claim of a number exclusively."""
    made = VersionLock(urls.join(model_url, str(number)), number, secrets.token_hex(8))
    place = urls.join(made.url, CLAIM_JSON)
    for_url(place).write_bytes(place, _record(made.token), overwrite=False)
    return made


def _record(token: str) -> bytes:
    """Return the content of a claim by this process; an empty token marks a deleted version."""
    record = {
        "token": token,
        "user": settings.user_name(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.time(),
    }
    return (json.dumps(record, indent=1) + "\n").encode()


def _token(url: str) -> str:
    """Return the token of a version's current claim; "" if there is none."""
    place = urls.join(url, CLAIM_JSON)
    try:
        found = json.loads(read_record(place))
    except (PathNotFound, ValueError, RecursionError):
        return ""
    return str(found.get("token", "")) if isinstance(found, dict) else ""
