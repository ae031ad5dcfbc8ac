"""Load of a serving, which its supervisor publishes in the project for the web page: without tokens or requests.

    <project>/Serving/<name>.load.json    replaced every ``PUBLISH_S`` seconds; deleted when the serving ends

It lies below the packages of servings and of the job service, as neither imports the other.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from hopsml.core.decoding import checked
from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record

SERVING = "Serving"  # folder of the project
PUBLISH_S = 10.0
STALE_S = 4 * PUBLISH_S  # age at which a load does not describe a running serving any more
_LOAD, _DEFINITION = ".load.json", ".json"


class VersionLoad(msgspec.Struct, frozen=True):
    """Requests that one version has answered.

    Attributes:
        version: Its number.
        requests: Number of answered requests since the start.
        failed: Number of those with an error of the server.
        rate: Answered requests per second in the last interval.
    """

    version: int
    requests: int
    failed: int
    rate: float


class ServingLoad(msgspec.Struct, frozen=True):
    """State and load of a running serving.

    Attributes:
        updated_s: Time of the publication, in seconds since 1970.
        started_s: Time of the start, in seconds since 1970.
        user: User who started it.
        machine: Host name of the supervisor's machine.
        url: URL at which it answers.
        application: ID of the Spark application on a cluster.
        replicas: Configured number of replicas.
        ready: Number of replicas that answer.
        restarts: Number of restarts of replicas.
        version: Version that answers by default; None while the first one is loaded.
        canary: Version that answers a share of the requests; None if there is none.
        share: Share of the canary, 0 to 1.
        waiting: Number of requests that wait for their computation.
        seconds: Mean time to answer a request in the last interval; None without requests.
        versions: Load by version, in order.
        rates: Answered requests per second of the last intervals, the newest last.
        interval_s: Length of an interval, in seconds.
    """

    updated_s: float
    started_s: float
    user: str
    machine: str
    url: str
    application: str
    replicas: int
    ready: int
    restarts: int
    version: int | None
    canary: int | None
    share: float
    waiting: int
    seconds: float | None
    versions: list[VersionLoad]
    rates: list[float]
    interval_s: float = PUBLISH_S


class ServedModel(msgspec.Struct, frozen=True):
    """Fields of a serving's definition that describe what it serves.

    Attributes:
        name: Name of the serving.
        model: Name of the model.
        version: Version as it was requested: a number, an alias, "latest" or "best".
        replicas: Configured number of replicas.
        profile: Profile of the cluster; empty for a single machine.
        creator: User who created the definition.
        created: Time of its creation, in UTC.
    """

    name: str
    model: str
    version: int | str = "latest"
    replicas: int = 1
    profile: str = ""
    creator: str = ""
    created: datetime | None = None


_decode_load = checked(msgspec.json.Decoder(ServingLoad).decode)
_decode_model = checked(msgspec.json.Decoder(ServedModel).decode)


def load_url(name: str, project: str) -> str:
    """Return the URL of a serving's load; ``project`` is the project's URL."""
    return urls.join(project, SERVING, f"{name}{_LOAD}")


def write_load(name: str, project: str, load: ServingLoad) -> None:
    """Replace the published load of a serving. Raises StorageError."""
    url = load_url(name, project)
    for_url(url).write_bytes(url, msgspec.json.encode(load))


def delete_load(name: str, project: str) -> None:
    """Delete the published load of a serving. Raises StorageError."""
    url = load_url(name, project)
    for_url(url).delete(url)


def read_load(name: str, project: str) -> ServingLoad | None:
    """Return the published load of a serving; None if there is none. Raises StorageError."""
    url = load_url(name, project)
    try:
        return _decode_load(read_record(url))
    except PathNotFound:
        return None
    except msgspec.MsgspecError as error:
        raise StorageError(f"cannot read {url}: it does not describe a load ({error}); delete it", url) from error


def serving_names(project: str) -> list[str]:
    """Return the sorted names of the servings that a project defines. Raises StorageError."""
    url = urls.join(project, SERVING)
    try:
        entries = for_url(url).list_dir(url)
    except PathNotFound:
        return []
    endings = [entry.name.removesuffix(_DEFINITION) for entry in entries if entry.name.endswith(_DEFINITION)]
    return sorted(name for name in endings if name and "." not in name)


def read_served_model(name: str, project: str) -> ServedModel | None:
    """Return what a serving serves; None if it is not defined. Raises StorageError."""
    url = urls.join(project, SERVING, f"{name}{_DEFINITION}")
    try:
        return _decode_model(read_record(url))
    except PathNotFound:
        return None
    except msgspec.MsgspecError as error:
        raise StorageError(f"cannot read {url}: it does not describe a serving ({error}); delete it", url) from error
