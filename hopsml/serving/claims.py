"""Who serves a name: one server at most, by a file that is written exclusively.

On one machine the lock in the serving's folder decides, which ends with its holder however that ends: a file that an
ended server of this user left here is replaced. One of another machine's, or another user's, is believed.
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime

import msgspec

from hopsml import settings as hopsml_settings
from hopsml.errors import AlreadyServed, PathExists, PathNotFound, StorageError
from hopsml.serving import places
from hopsml.serving.messages import ServingSettings
from hopsml.serving.places import ServingFolder
from hopsml.storage import trust
from hopsml.storage.filesystem import for_url


class ServerRecord(msgspec.Struct, frozen=True):
    """``<name>.server.json``. ``folder``: of the serving on that machine; its token lies there.

    On a cluster: ``machine`` and ``pid`` are the driver's, ``application`` is Spark's id, ``launch`` tells this start from
    all others, and the tokens lie in the project.
    """

    name: str
    host: str
    port: int
    machine: str
    user: str
    folder: str
    pid: int
    started: datetime
    application: str = ""
    profile: str = ""
    launch: str = ""
    process_started: int | None = None  # of the driver: tells it from one that gets its pid later
    pid_namespace: str = ""  # in which its pid means something

    @property
    def is_on_cluster(self) -> bool:
        """Whether it is a Spark application."""
        return bool(self.launch)

    @property
    def url(self) -> str:
        """Where it answers. One that listens at all addresses is asked by its machine's name."""
        host = self.machine if self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether it is this user's, on this machine, and no Spark application."""
        return not self.is_on_cluster and (self.machine, self.user) == (
            socket.gethostname(),
            hopsml_settings.user_name(),
        )


_decoder = msgspec.json.Decoder(ServerRecord)


def url_of(settings: ServingSettings) -> str:
    """The file's."""
    return places.server_url(settings.name, settings.project)


def claim(settings: ServingSettings, port: int, folder: ServingFolder) -> ServerRecord:
    """Be the server of the name; the folder's lock is held. Raises AlreadyServed, StorageError."""
    record = ServerRecord(
        settings.name,
        settings.host,
        port,
        socket.gethostname(),
        hopsml_settings.user_name(),
        str(folder.path),
        os.getpid(),
        datetime.now(UTC),
    )
    url = url_of(settings)
    data = _encoded(record)
    try:
        trust.write_bytes(url, data, overwrite=False)
    except PathExists:
        earlier = read(settings.name, settings.project)
        if earlier is not None and not (earlier.is_here and earlier.folder == record.folder):
            raise taken(earlier, url) from None
        trust.write_bytes(url, data)
    return record


def claim_on_cluster(project: str, record: ServerRecord) -> None:
    """Be the server of the name. Raises AlreadyServed, StorageError."""
    url = places.server_url(record.name, project)
    try:
        trust.write_bytes(url, _encoded(record), overwrite=False)
    except PathExists:
        earlier = read(record.name, project)
        if earlier is not None:
            raise taken(earlier, url) from None
        trust.write_bytes(url, _encoded(record), overwrite=False)


def _encoded(record: ServerRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def taken(record: ServerRecord, url: str) -> AlreadyServed:
    """Names the other's address and the remedy."""
    return AlreadyServed(
        f"'{record.name}' is served already, at {record.url} by {record.user} on {record.machine} (process {record.pid}, "
        f"since {record.started:%Y-%m-%d %H:%M} UTC): go over to another version with serving.roll, stop it there, or "
        f"choose another name; if that machine is gone for good, delete {url}"
    )


def read(name: str, project: str) -> ServerRecord | None:
    """Who serves a name, or did when it ended without a word; None for nobody.

    Raises StorageError, and ArgumentError where the file is somebody's who is not trusted: requests would go where it
    says.
    """
    url = places.server_url(name, project)
    try:
        data, _ = trust.read_bytes(url, "it has the address to which requests and their token are sent")
    except PathNotFound:
        return None
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise StorageError(f"cannot read {url}: it says nothing of a server ({error}); delete it", url) from error


def release_on_cluster(project: str, record: ServerRecord) -> None:
    """Be it no longer; another's claim is left alone."""
    found = read(record.name, project)
    if found is not None and found.launch == record.launch:
        url = places.server_url(record.name, project)
        for_url(url).delete(url)


def release(settings: ServingSettings) -> None:
    """Be it no longer; another's claim is left alone."""
    record = read(settings.name, settings.project)
    if record is not None and record.is_here and record.pid == os.getpid():
        url = url_of(settings)
        for_url(url).delete(url)
