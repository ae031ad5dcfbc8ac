"""What is to be served under a name: ``<project>/Serving/<name>.json``, which stays when the server stops."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from hopsml import settings, suggestions
from hopsml.errors import PathNotFound, ServingNotFound, StorageError
from hopsml.serving import places
from hopsml.serving.limits import ServingLimits
from hopsml.storage.filesystem import for_url, read_record

SAVED_AS = ".json"


class ServingDefinition(msgspec.Struct, frozen=True):
    """``version`` as ``hopsml.model.find`` takes it: a number, an alias, "latest" or "best".

    ``profile``: of the cluster; empty for the machine of whoever starts it.
    """

    name: str
    model: str
    version: int | str = "latest"
    host: str = "127.0.0.1"
    port: int = 0
    replicas: int = 1
    log_requests: bool = False
    limits: ServingLimits = ServingLimits()
    profile: str = ""
    model_server: str = ""  # the predecessor's name for what serves it
    creator: str = ""
    created: datetime | None = None  # UTC


_decoder = msgspec.json.Decoder(ServingDefinition)


def write(definition: ServingDefinition) -> ServingDefinition:
    """Record it, whatever was recorded before; who made it first, and when, stays."""
    earlier = find(definition.name)
    created = datetime.now(UTC) if earlier is None else earlier.created
    creator = settings.user_name() if earlier is None else earlier.creator
    whole = msgspec.structs.replace(definition, created=created, creator=creator)
    url = places.definition_url(definition.name)
    for_url(url).write_bytes(url, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    return whole


def find(name: str) -> ServingDefinition | None:
    """None where there is none. Raises ArgumentError for what is no name, StorageError."""
    url = places.definition_url(places.checked_name(name))
    try:
        return _decoder.decode(read_record(url))
    except PathNotFound:
        return None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StorageError(f"cannot read {url}: it describes no serving ({error})", url) from error


def known(name: str) -> ServingDefinition:
    """As ``find``; ServingNotFound where there is none."""
    found = find(name)
    if found is None:
        there = names()
        hint = suggestions.instead(name, there, "`hopsml serve ls` lists them") if there else "there is none"
        raise ServingNotFound(f"nothing is served as '{name}' in {places.servings_url()}; {hint}")
    return found


def names() -> list[str]:
    """Of all servings of the project, sorted."""
    url = places.servings_url()
    try:
        entries = for_url(url).list_dir(url)
    except PathNotFound:
        return []
    endings = [entry.name.removesuffix(SAVED_AS) for entry in entries if entry.name.endswith(SAVED_AS)]
    return sorted(name for name in endings if "." not in name)


def delete(name: str) -> None:
    """Forget it; nothing happens where there is none."""
    url = places.definition_url(name)
    for_url(url).delete(url)
