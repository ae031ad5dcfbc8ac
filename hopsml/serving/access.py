"""What only the owner of a serving on a cluster may read, in its private folder of the project.

<project>/Serving/<name>.private/access.json    tokens and settings: for the driver, and for whoever asks it
<project>/Serving/<name>.private/outcome.json   how the start went, for whoever started it
"""

from __future__ import annotations

import contextlib
from functools import lru_cache

import msgspec

from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.serving import places
from hopsml.serving.messages import ServingSettings
from hopsml.storage import privacy, trust, urls
from hopsml.storage.filesystem import for_url

_OTHERS = 0o077


class ServingAccess(msgspec.Struct, frozen=True):
    """``launch``: of the start that made it; ``token``: what requests must bear; ``control``: what commands must."""

    launch: str
    profile: str
    token: str
    control: str
    settings: ServingSettings


class LaunchOutcome(msgspec.Struct, frozen=True):
    """``error`` is empty where all replicas answer."""

    launch: str
    error: str = ""


_decode_access = msgspec.json.Decoder(ServingAccess).decode
_decode_outcome = msgspec.json.Decoder(LaunchOutcome).decode


def write(access: ServingAccess) -> None:
    """Before anything is submitted; replaces what an earlier start left. Raises ArgumentError where others could read."""
    name, project = access.settings.name, access.settings.project
    folder = places.private_url(name, project)
    system = for_url(folder)
    with contextlib.suppress(StorageError):
        system.delete(folder, recursive=True)
    system.make_dirs(folder, privacy.PRIVATE)
    if system.status(folder).permission & _OTHERS:
        raise ArgumentError(f"{folder} can be read by others, and tokens would lie there: delete it, and start again")
    _put(name, project, "access.json", access)


def read(name: str, project: str) -> ServingAccess | None:
    """None where there is none. Raises ArgumentError where somebody else may have written it."""
    data = _get(name, project, "access.json")
    return None if data is None else _decode_access(data)


@lru_cache(maxsize=64)
def of_launch(name: str, project: str, launch: str) -> ServingAccess | None:
    """As ``read``, once for each start; None for what another start has left."""
    found = read(name, project)
    return found if found is not None and found.launch == launch else None


def write_outcome(name: str, project: str, outcome: LaunchOutcome) -> None:
    """Say how the start went."""
    _put(name, project, "outcome.json", outcome)


def read_outcome(name: str, project: str, launch: str) -> LaunchOutcome | None:
    """None while it is not known."""
    data = _get(name, project, "outcome.json")
    found = None if data is None else _decode_outcome(data)
    return found if found is not None and found.launch == launch else None


def forget(name: str, project: str) -> None:
    """Take the tokens away."""
    folder = places.private_url(name, project)
    for_url(folder).delete(folder, recursive=True)


def _put(name: str, project: str, file: str, content: msgspec.Struct) -> None:
    url = urls.join(places.private_url(name, project), file)
    for_url(url).write_bytes(url, msgspec.json.encode(content))


def _get(name: str, project: str, file: str) -> bytes | None:
    url = urls.join(places.private_url(name, project), file)
    try:
        return trust.read_bytes(url, "it has a serving's addresses and tokens")[0]
    except PathNotFound:
        return None
