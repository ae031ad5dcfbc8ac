"""Making a version: its number is claimed first, its files come then, and ``model.json`` makes it complete.

    <project>/Models/<name>/<version>/
        claim.json     who makes this version; written exclusively, so no two exporters have one number
        files/         what the model consists of
        model.json     what it is; written last and in one step: without it there is no such version

A claim stays when its exporter is killed and when its version is deleted: numbers are not given twice, and copies that
others hold of a version stay right.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from hopsml import settings
from hopsml.errors import ModelExists, PathExists, PathNotFound, StorageError
from hopsml.model.description import MODEL_JSON, ModelDescription, encode
from hopsml.model.version import FILES, Version
from hopsml.storage import urls
from hopsml.storage.filesystem import exists, for_url
from hopsml.storage.tree import upload_into

CLAIM_JSON = "claim.json"


@dataclass(frozen=True)
class Claim:
    """A number that one exporter has for itself."""

    url: str  # of the version's directory
    version: int
    token: str

    def fill(self, folder: Path) -> None:
        """Upload the files of a local folder. Raises StorageError."""
        upload_into(folder, urls.join(self.url, FILES))

    def complete(self, description: ModelDescription) -> Version:
        """From now on the version is there. StorageError where somebody has deleted or overwritten it meanwhile."""
        if _token(self.url) != self.token:
            raise StorageError(
                f"{self.url} was deleted or claimed anew while the model was exported to it; export it again", self.url
            )
        target = urls.join(self.url, MODEL_JSON)
        for_url(target).write_bytes(target, encode(description), overwrite=False)
        return Version(self.url, description)

    def give_up(self) -> None:
        """Remove what was uploaded, as far as the store lets it; the number stays taken."""
        try:
            clear(self.url)
        except StorageError:  # it does not count, and whoever deletes the version deletes it
            pass


def numbers(model_url: str) -> list[int]:
    """Numbers that have been claimed, ascending, complete or not."""
    try:
        entries = for_url(model_url).list_dir(model_url)
    except PathNotFound:
        return []
    return sorted(int(entry.name) for entry in entries if entry.is_dir and entry.name.isdecimal())


def claim(model_url: str, version: int | None = None, overwrite: bool = False) -> Claim:
    """The number ``version``, or the next free one, for the caller alone.

    ``overwrite``: a version that is there already is deleted. Raises ModelExists without it, and where somebody else claims
    the same number at the same time.
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
            "or pass overwrite=True"
        )
    if taken:
        clear(url)
        for_url(url).delete(urls.join(url, CLAIM_JSON))
    try:
        return _write_claim(model_url, version)
    except PathExists as error:
        raise ModelExists(
            f"version {version} of the model '{urls.name(model_url)}' is being exported by somebody else at this moment"
        ) from error


def clear(url: str) -> bool:
    """Delete a version but for its claim; False where it was not complete. First of all it stops being one."""
    system = for_url(url)
    was_complete = system.delete(urls.join(url, MODEL_JSON))
    system.delete(urls.join(url, FILES), recursive=True)
    return was_complete


def _write_claim(model_url: str, number: int) -> Claim:
    made = Claim(urls.join(model_url, str(number)), number, secrets.token_hex(8))
    record = {
        "token": made.token,
        "user": settings.user_name(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.time(),
    }
    place = urls.join(made.url, CLAIM_JSON)
    for_url(place).write_bytes(place, (json.dumps(record, indent=1) + "\n").encode(), overwrite=False)
    return made


def _token(url: str) -> str:
    place = urls.join(url, CLAIM_JSON)
    try:
        found = json.loads(for_url(place).read_bytes(place))
    except (PathNotFound, ValueError):
        return ""
    return str(found.get("token", "")) if isinstance(found, dict) else ""
