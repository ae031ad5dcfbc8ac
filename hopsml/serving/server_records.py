"""Exclusive right to serve a name, as a file that is written exclusively in the project.

On one machine, the lock in the serving's folder decides: it is released when its process ends for any reason. The file
that an ended server of this user left on this machine is replaced. A file of another machine, user or container (which
may have the same host name and a folder of the same path) remains valid.
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime

import msgspec

from hopsml.core import settings as hopsml_settings
from hopsml.errors import AlreadyServed, PathExists, PathNotFound, StorageError
from hopsml.serving import places
from hopsml.serving.messages import ServingSettings
from hopsml.serving.places import ServingFolder
from hopsml.storage import trust
from hopsml.storage.filesystem import for_url
from hopsml.tracking import machine


class ServerRecord(msgspec.Struct, frozen=True):
    """Content of ``<name>.server.json``: the server of a name.

    Attributes:
        name: Name of the serving.
        host: Address at which it listens.
        port: Port at which it listens.
        machine: Host name of its machine; on a cluster, of the driver's.
        user: User who started it.
        folder: Folder of the serving on that machine, which contains its token; "" on a cluster, where the tokens are
            in the project.
        pid: Process ID of the server; on a cluster, of the driver.
        started: Time of its start, in UTC.
        application: ID of the Spark application on a cluster.
        profile: Profile of the cluster.
        launch: Random ID of the start on a cluster.
        process_started: Start time of the process, which distinguishes it from a later one with the same ID.
        pid_namespace: PID namespace of ``pid``.
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
    process_started: int | None = None
    pid_namespace: str = ""

    @property
    def is_on_cluster(self) -> bool:
        """True if the server is a Spark application."""
        return bool(self.launch)

    @property
    def url(self) -> str:
        """URL of the server, by its machine's name if it listens at all addresses."""
        host = self.machine if self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """True if this user runs the server on this machine, not as a Spark application and not in another container."""
        here = (socket.gethostname(), hopsml_settings.user_name())
        return not self.is_on_cluster and not self.is_in_another_container and (self.machine, self.user) == here

    @property
    def is_in_another_container(self) -> bool:
        """True if the server is in another PID namespace of this machine; its host name may be the same."""
        return machine.is_beside(self.pid_namespace)


_decoder = msgspec.json.Decoder(ServerRecord)


def url_of(settings: ServingSettings) -> str:
    """Return the URL of the server file."""
    return places.server_url(settings.name, settings.project)


def claim(settings: ServingSettings, port: int, folder: ServingFolder) -> ServerRecord:
    """Become the server of the name, on this machine; the lock of the folder must be held.

    Args:
        settings: Settings of the serving.
        port: Port at which the server listens.
        folder: Folder of the serving.

    Raises:
        AlreadyServed: Another server has the name.
        StorageError: The file cannot be written.
    """
    record = ServerRecord(
        settings.name,
        settings.host,
        port,
        socket.gethostname(),
        hopsml_settings.user_name(),
        str(folder.path),
        os.getpid(),
        datetime.now(UTC),
        process_started=machine.process_started(os.getpid()),
        pid_namespace=machine.pid_namespace(),
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
    """Become the server of the name, on a cluster.

    Args:
        project: URL of the project.
        record: Record of this server.

    Raises:
        AlreadyServed: Another server has the name.
        StorageError: The file cannot be written.
    """
    url = places.server_url(record.name, project)
    try:
        trust.write_bytes(url, _encoded(record), overwrite=False)
    except PathExists:
        earlier = read(record.name, project)
        if earlier is not None:
            raise taken(earlier, url) from None
        trust.write_bytes(url, _encoded(record), overwrite=False)


def _encoded(record: ServerRecord) -> bytes:
    """Return a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def taken(record: ServerRecord, url: str) -> AlreadyServed:
    """Return the error that names the other server's address and the remedy."""
    where = f"{record.machine}, in another container" if record.is_in_another_container else record.machine
    return AlreadyServed(
        f"'{record.name}' is served already, at {record.url} by {record.user} on {where} (process {record.pid}, since "
        f"{record.started:%Y-%m-%d %H:%M} UTC): go over to another version with serving.roll, stop it there, or "
        f"choose another name; if it is gone for good, delete {url}"
    )


def read(name: str, project: str) -> ServerRecord | None:
    """Return the server of a name, which may have ended without releasing it; None if there is none.

    Args:
        name: Name of the serving.
        project: URL of the project.

    Raises:
        StorageError: The file cannot be read.
        ArgumentError: The owner of the file is not trusted; requests would go to the address in it.
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
    """Delete the server file of a serving on a cluster, unless it belongs to another start."""
    found = read(record.name, project)
    if found is not None and found.launch == record.launch:
        url = places.server_url(record.name, project)
        for_url(url).delete(url)


def release(settings: ServingSettings) -> None:
    """Delete the server file of this process, unless it belongs to another server."""
    record = read(settings.name, settings.project)
    if record is not None and record.is_here and record.pid == os.getpid():
        url = url_of(settings)
        for_url(url).delete(url)
