"""Making a version: its number is claimed first, its files come then, and ``model.json`` makes it complete.

    <project>/Models/<name>/<version>/
        claim.json     who makes this version; written exclusively, so no two exporters have one number
        files/         what the model consists of
        model.json     what it is; written last and in one step: without it there is no such version

The files of a version that is written over another one lie in a folder of their own, ``files-<token>``, which ``model.json``
names: the version before it stays until the new one is complete, and an export that fails costs nothing.

A claim stays when its exporter is killed and when its version is deleted: numbers are not given twice, and copies that
others hold of a version stay right.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hopsml import settings
from hopsml.errors import ModelExists, PathExists, PathNotFound, QuotaExceeded, StorageError
from hopsml.model.description import FILES, MODEL_JSON, ModelDescription, decode, encode
from hopsml.model.version import Version
from hopsml.storage import trust, urls
from hopsml.storage.filesystem import exists, for_url, read_record
from hopsml.storage.tree import upload_into

CLAIM_JSON = "claim.json"


@dataclass(frozen=True)
class Claim:
    """A number that one exporter has for itself."""

    url: str  # of the version's directory
    version: int
    token: str
    folder: str = FILES  # of its files, below url

    def fill(self, folder: Path) -> None:
        """Upload the files of a local folder. Raises StorageError."""
        upload_into(folder, urls.join(self.url, self.folder))

    def complete(self, description: ModelDescription) -> Version:
        """From now on the version is there. StorageError where somebody has deleted or overwritten it meanwhile."""
        if _token(self.url) != self.token:
            raise self._overtaken()
        target, system = urls.join(self.url, MODEL_JSON), for_url(self.url)
        before = _described(target)
        made = msgspec.structs.replace(description, folder=self.folder)
        trust.write_bytes(target, encode(made), overwrite=before is not None)
        if not _token(self.url):  # deleted at this very moment: its files are gone, or will be
            system.delete(target)
            raise self._overtaken()
        if before is not None and before.folder != self.folder:
            _remove(urls.join(self.url, before.folder))
        return Version(self.url, made)

    def give_up(self) -> None:
        """Remove what was uploaded, as far as the store lets it; the number stays taken."""
        _remove(urls.join(self.url, self.folder))

    def _overtaken(self) -> StorageError:
        text = f"{self.url} was deleted or claimed anew while the model was exported to it; export it again"
        return StorageError(text, self.url)


def numbers(model_url: str) -> list[int]:
    """Numbers that have been claimed, ascending, complete or not."""
    try:
        entries = for_url(model_url).list_dir(model_url)
    except PathNotFound:
        return []
    return sorted(int(entry.name) for entry in entries if entry.is_dir and entry.name.isdecimal())


def claim(model_url: str, version: int | None = None, overwrite: bool = False) -> Claim:
    """The number ``version``, or the next free one, for the caller alone.

    ``overwrite``: a version that is there already is replaced when the new one is complete. Raises ModelExists without it,
    and where somebody else claims the same number at the same time.
    """
    if version is not None:
        return _claim_one(model_url, version, overwrite)
    number = max(numbers(model_url), default=0) + 1
    while True:
        try:
            return _write_claim(model_url, number)
        except PathExists:
            number += 1


def _claim_one(model_url: str, version: int, overwrite: bool) -> Claim:
    url = urls.join(model_url, str(version))
    taken = exists(urls.join(url, CLAIM_JSON)) or exists(urls.join(url, MODEL_JSON))
    if taken and not overwrite:
        complete = exists(urls.join(url, MODEL_JSON))
        what = (
            "is there already" if complete else "has been claimed: its export goes on, or was killed, or it was deleted"
        )
        raise ModelExists(
            f"version {version} of the model '{urls.name(model_url)}' {what}; leave the number out for the next free one, "
            "or pass overwrite=True (--overwrite)"
        )
    if taken:
        for_url(url).delete(urls.join(url, CLAIM_JSON))
    try:
        made = _write_claim(model_url, version)
        return replace(made, folder=f"{FILES}-{made.token}") if taken else made
    except PathExists as error:
        raise ModelExists(
            f"version {version} of the model '{urls.name(model_url)}' is being exported by somebody else at this moment"
        ) from error


def delete(url: str) -> None:
    """Delete a version but for its number. Whoever exports to it meanwhile is told so. Raises StorageError."""
    _clear(url)  # first of all, as the disk may be full
    place = urls.join(url, CLAIM_JSON)
    try:
        for_url(place).write_bytes(place, _record(""))
    except QuotaExceeded:
        return
    _clear(url)


def _clear(url: str) -> None:
    """First of all it stops being a version."""
    system = for_url(url)
    system.delete(urls.join(url, MODEL_JSON))
    for entry in system.list_dir(url):
        if entry.is_dir and (entry.name == FILES or entry.name.startswith(f"{FILES}-")):
            system.delete(entry.url, recursive=True)


def _remove(url: str) -> None:
    try:
        for_url(url).delete(url, recursive=True)
    except StorageError:  # it does not count, and whoever deletes the version deletes it
        pass


def _described(url: str) -> ModelDescription | None:
    try:
        return decode(read_record(url), url)
    except PathNotFound:
        return None


def _write_claim(model_url: str, number: int) -> Claim:
    made = Claim(urls.join(model_url, str(number)), number, secrets.token_hex(8))
    place = urls.join(made.url, CLAIM_JSON)
    for_url(place).write_bytes(place, _record(made.token), overwrite=False)
    return made


def _record(token: str) -> bytes:
    """Who claims a version; without a token: who has deleted it."""
    record = {
        "token": token,
        "user": settings.user_name(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.time(),
    }
    return (json.dumps(record, indent=1) + "\n").encode()


def _token(url: str) -> str:
    place = urls.join(url, CLAIM_JSON)
    try:
        found = json.loads(read_record(place))
    except (PathNotFound, ValueError, RecursionError):
        return ""
    return str(found.get("token", "")) if isinstance(found, dict) else ""
