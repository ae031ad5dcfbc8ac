"""Definitions of servings, ``<project>/Serving/<name>.json``, which remain when the server stops."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from hopsml.core import settings, suggestions
from hopsml.errors import PathNotFound, ServingNotFound, StorageError
from hopsml.serving import places
from hopsml.serving.limits import ServingLimits
from hopsml.storage.filesystem import for_url, read_record

SAVED_AS = ".json"


class ServingDefinition(msgspec.Struct, frozen=True):
    """Definition of a serving.

    Attributes:
        name: Name of the serving.
        model: Name of the model.
        version: As for ``hopsml.model.find``: a number, an alias, "latest" or "best".
        host: Address to listen at.
        port: Port to listen at; 0 for a free one.
        replicas: Number of replicas.
        log_requests: True to write the request log.
        limits: Limits of requests.
        profile: Profile of the cluster; empty for the machine on which it is started.
        model_server: Model server in the predecessor's terms.
        creator: User who created the definition.
        created: Time of its creation, in UTC.
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
    model_server: str = ""
    creator: str = ""
    created: datetime | None = None


_decoder = msgspec.json.Decoder(ServingDefinition)


def write(definition: ServingDefinition) -> ServingDefinition:
    """Write a definition, replacing an earlier one except for its creator and creation time."""
    earlier = find(definition.name)
    created = datetime.now(UTC) if earlier is None else earlier.created
    creator = settings.user_name() if earlier is None else earlier.creator
    whole = msgspec.structs.replace(definition, created=created, creator=creator)
    url = places.definition_url(definition.name)
    for_url(url).write_bytes(url, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    return whole


def find(name: str) -> ServingDefinition | None:
    """Return the definition of a serving; None if there is none.

    Raises:
        ArgumentError: The name is invalid.
        StorageError: The file cannot be read.
    """
    url = places.definition_url(places.checked_name(name))
    try:
        return _decoder.decode(read_record(url))
    except PathNotFound:
        return None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StorageError(f"cannot read {url}: it describes no serving ({error})", url) from error


def known(name: str) -> ServingDefinition:
    """Return the definition of a serving that must exist.

    Raises:
        ServingNotFound: There is none.
    """
    found = find(name)
    if found is None:
        there = names()
        hint = suggestions.instead(name, there, "`hopsml serve ls` lists them") if there else "there is none"
        raise ServingNotFound(f"nothing is served as '{name}' in {places.servings_url()}; {hint}")
    return found


def names() -> list[str]:
    """Return the sorted names of all servings of the project."""
    url = places.servings_url()
    try:
        entries = for_url(url).list_dir(url)
    except PathNotFound:
        return []
    endings = [entry.name.removesuffix(SAVED_AS) for entry in entries if entry.name.endswith(SAVED_AS)]
    return sorted(name for name in endings if "." not in name)


def delete(name: str) -> None:
    """Delete the definition of a serving; nothing happens if there is none."""
    url = places.definition_url(name)
    for_url(url).delete(url)
