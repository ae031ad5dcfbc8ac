"""Private files of a serving on a cluster, in a folder of the project that only its owner can read.

The folder contains:

    <project>/Serving/<name>.private/access.json    tokens and settings: for the driver and for the owner's clients
    <project>/Serving/<name>.private/outcome.json   result of the start, for the process that started the serving
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
    """Tokens and settings of one start of a serving.

    Attributes:
        launch: Random ID of the start.
        profile: Profile of the cluster.
        token: Token required for requests.
        control: Token required for commands.
        settings: Settings of the serving.
    """

    launch: str
    profile: str
    token: str
    control: str
    settings: ServingSettings


class LaunchOutcome(msgspec.Struct, frozen=True):
    """Result of a start; ``error`` is empty if all replicas answer."""

    launch: str
    error: str = ""


_decode_access = msgspec.json.Decoder(ServingAccess).decode
_decode_outcome = msgspec.json.Decoder(LaunchOutcome).decode


def write(access: ServingAccess) -> None:
    """Write the private file before the submission, replacing the folder of an earlier start.

    Args:
        access: Tokens and settings to write.

    Raises:
        ArgumentError: Other users can read the folder.
    """
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
    """Return tokens and settings of a serving; None if there are none.

    Raises:
        ArgumentError: The file belongs to a user who is not trusted.
    """
    data = _get(name, project, "access.json")
    return None if data is None else _decode_access(data)


@lru_cache(maxsize=64)
def of_launch(name: str, project: str, launch: str) -> ServingAccess | None:
    """Return tokens and settings of one start, read once per start; None if the file is of another start."""
    found = read(name, project)
    return found if found is not None and found.launch == launch else None


def write_outcome(name: str, project: str, outcome: LaunchOutcome) -> None:
    """Write the result of a start."""
    _put(name, project, "outcome.json", outcome)


def read_outcome(name: str, project: str, launch: str) -> LaunchOutcome | None:
    """Return the result of a start; None while it is unknown."""
    data = _get(name, project, "outcome.json")
    found = None if data is None else _decode_outcome(data)
    return found if found is not None and found.launch == launch else None


def forget(name: str, project: str) -> None:
    """Delete the tokens and settings of a serving."""
    folder = places.private_url(name, project)
    for_url(folder).delete(folder, recursive=True)


def _put(name: str, project: str, file: str, content: msgspec.Struct) -> None:
    """Write a file of the private folder."""
    url = urls.join(places.private_url(name, project), file)
    for_url(url).write_bytes(url, msgspec.json.encode(content))


def _get(name: str, project: str, file: str) -> bytes | None:
    """Return the content of a file of the private folder, if its owner is trusted; None if it does not exist."""
    url = urls.join(places.private_url(name, project), file)
    try:
        return trust.read_bytes(url, "it has a serving's addresses and tokens")[0]
    except PathNotFound:
        return None
