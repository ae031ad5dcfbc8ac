"""Server of a name: its record in the project, whether it has ended, and the private files of a serving on a cluster.

The record is written exclusively. On one machine, the lock in the serving's folder decides: it is released when its
process ends for any reason. The file that an ended server of this user left on this machine is replaced. A file of
another machine, user or container (which may have the same host name and a folder of the same path) remains valid.

    <project>/Serving/<name>.server.json            the record
    <project>/Serving/<name>.private/access.json    tokens and settings: for the driver and for the owner's clients
    <project>/Serving/<name>.private/outcome.json   result of the start, for the process that started the serving
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from datetime import datetime
from functools import lru_cache

import msgspec

from hopsml import submission
from hopsml.core import processes, settings
from hopsml.core import settings as hopsml_settings
from hopsml.core.decoding import checked
from hopsml.core.newer_python import UTC
from hopsml.errors import (
    AlreadyServed,
    ApplicationNotFound,
    ArgumentError,
    ClusterError,
    PathExists,
    PathNotFound,
    StorageError,
)
from hopsml.serving import definitions
from hopsml.serving.definitions import ServingFolder
from hopsml.serving.messages import ServingSettings
from hopsml.storage import privacy, trust, urls
from hopsml.storage.filesystem import for_url
from hopsml.yarn import ResourceManager

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


_decode_access = checked(msgspec.json.Decoder(ServingAccess).decode)
_decode_outcome = checked(msgspec.json.Decoder(LaunchOutcome).decode)


def write_access(access: ServingAccess) -> None:
    """Write the private file before the submission, replacing the folder of an earlier start.

    Raises:
        ArgumentError: Other users can read the folder.
    """
    name, project = access.settings.name, access.settings.project
    folder = definitions.private_folder_url(name, project)
    system = for_url(folder)
    with contextlib.suppress(StorageError):
        system.delete(folder, recursive=True)
    system.make_dirs(folder, privacy.PRIVATE)
    if system.status(folder).permission & _OTHERS:
        raise ArgumentError(f"{folder} can be read by other users, but must contain tokens; delete it, and start again")
    _write_private(name, project, "access.json", access)


def read_access(name: str, project: str) -> ServingAccess | None:
    """Return tokens and settings of a serving; None if there are none.

    Raises:
        ArgumentError: The file belongs to a user who is not trusted.
    """
    data = _read_private(name, project, "access.json")
    return None if data is None else _decode_access(data)


@lru_cache(maxsize=64)
def read_launch_access(name: str, project: str, launch: str) -> ServingAccess | None:
    """Return tokens and settings of one start, read once per start; None if the file is of another start."""
    found = read_access(name, project)
    return found if found is not None and found.launch == launch else None


def write_outcome(name: str, project: str, outcome: LaunchOutcome) -> None:
    """Write the result of a start."""
    _write_private(name, project, "outcome.json", outcome)


def read_outcome(name: str, project: str, launch: str) -> LaunchOutcome | None:
    """Return the result of a start; None while it is unknown."""
    data = _read_private(name, project, "outcome.json")
    found = None if data is None else _decode_outcome(data)
    return found if found is not None and found.launch == launch else None


def delete_access(name: str, project: str) -> None:
    """Delete the tokens and settings of a serving."""
    folder = definitions.private_folder_url(name, project)
    for_url(folder).delete(folder, recursive=True)


def _write_private(name: str, project: str, file: str, content: msgspec.Struct) -> None:
    """Write a file of the private folder."""
    url = urls.join(definitions.private_folder_url(name, project), file)
    for_url(url).write_bytes(url, msgspec.json.encode(content))


def _read_private(name: str, project: str, file: str) -> bytes | None:
    """Return the content of a file of the private folder, if its owner is trusted; None if it does not exist."""
    url = urls.join(definitions.private_folder_url(name, project), file)
    try:
        return trust.read_bytes(url, "it contains the addresses and tokens of a serving")[0]
    except PathNotFound:
        return None


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
        return processes.is_other_container(self.pid_namespace)


_decode_record = checked(msgspec.json.Decoder(ServerRecord).decode)


def server_record_url(settings: ServingSettings) -> str:
    """Return the URL of the server file."""
    return definitions.server_url(settings.name, settings.project)


def register_server(settings: ServingSettings, port: int, folder: ServingFolder) -> ServerRecord:
    """Become the server of the name, on this machine; the lock of the folder must be held.

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
        process_started=processes.start_time_of(os.getpid()),
        pid_namespace=processes.pid_namespace(),
    )
    url = server_record_url(settings)
    data = _encoded(record)
    try:
        trust.write_bytes(url, data, overwrite=False)
    except PathExists:
        earlier = read_server_record(settings.name, settings.project)
        if earlier is not None and not (earlier.is_here and earlier.folder == record.folder):
            raise already_served_error(earlier, url) from None
        trust.write_bytes(url, data)
    return record


def register_cluster_server(project: str, record: ServerRecord) -> None:
    """Become the server of the name, on a cluster.

    Raises:
        AlreadyServed: Another server has the name.
        StorageError: The file cannot be written.
    """
    url = definitions.server_url(record.name, project)
    try:
        trust.write_bytes(url, _encoded(record), overwrite=False)
    except PathExists:
        earlier = read_server_record(record.name, project)
        if earlier is not None:
            raise already_served_error(earlier, url) from None
        trust.write_bytes(url, _encoded(record), overwrite=False)


def _encoded(record: ServerRecord) -> bytes:
    """Return a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def already_served_error(record: ServerRecord, url: str) -> AlreadyServed:
    """Return the error that names the other server's address and the remedy."""
    where = f"{record.machine}, in another container" if record.is_in_another_container else record.machine
    return AlreadyServed(
        f"'{record.name}' is already served at {record.url} by {record.user} on {where} (process {record.pid}, since "
        f"{record.started:%Y-%m-%d %H:%M} UTC). Switch to another version with serving.roll, stop it there, or "
        f"choose another name; if that server no longer exists, delete {url}"
    )


def read_server_record(name: str, project: str) -> ServerRecord | None:
    """Return the server of a name, which may have ended without releasing it; None if there is none.

    Raises:
        StorageError: The file cannot be read.
        ArgumentError: The owner of the file is not trusted; requests would go to the address in it.
    """
    url = definitions.server_url(name, project)
    try:
        data, _ = trust.read_bytes(url, "it contains the address to which requests and their token are sent")
    except PathNotFound:
        return None
    try:
        return _decode_record(data)
    except msgspec.MsgspecError as error:
        raise StorageError(f"cannot read {url}: it does not describe a server ({error}); delete it", url) from error


def release_cluster_server(project: str, record: ServerRecord) -> None:
    """Delete the server file of a serving on a cluster, unless it belongs to another start."""
    found = read_server_record(record.name, project)
    if found is not None and found.launch == record.launch:
        url = definitions.server_url(record.name, project)
        for_url(url).delete(url)


def release_server(settings: ServingSettings) -> None:
    """Delete the server file of this process, unless it belongs to another server."""
    record = read_server_record(settings.name, settings.project)
    if record is not None and record.is_here and record.pid == os.getpid():
        url = server_record_url(settings)
        for_url(url).delete(url)


YARNS = "application_"  # prefix of YARN's application IDs
POLL_S = 0.2


def describe_end(record: ServerRecord) -> str:
    """Return the text about how a serving's application has ended; empty if it runs or its state is unknown here."""
    if not record.is_on_cluster:
        return ""
    if _is_known_here(record) and _driver_has_ended(record):
        return f"its driver, process {record.pid}, has ended"
    return describe_yarn_end(record.application) if record.application.startswith(YARNS) else ""


def end_server(record: ServerRecord, timeout_s: float) -> bool:
    """Kill a serving whose driver does not answer.

    Returns:
        False if its end was not seen in ``timeout_s``, or cannot be seen from this machine.

    Raises:
        ClusterError: YARN does not know the application, refuses to end it, or has not ended it in time.
    """
    if _is_known_here(record) and not _driver_has_ended(record):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(record.pid, signal.SIGKILL)
    if record.application.startswith(YARNS):
        submission.end_application(record.application, timeout_s=timeout_s)
        return True
    return wait_for_end(record, timeout_s)


def wait_for_end(record: ServerRecord, timeout_s: float) -> bool:
    """Wait for the end of a serving's application; False after the timeout, or if its state is unknown here."""
    deadline = time.monotonic() + timeout_s
    is_yarns = record.application.startswith(YARNS)
    if not is_yarns and not _is_known_here(record):
        return False
    while time.monotonic() < deadline:
        if describe_yarn_end(record.application) if is_yarns else _driver_has_ended(record):
            return True
        time.sleep(POLL_S)
    return False


def describe_yarn_end(application: str) -> str:
    """Return the text about how an application has ended; empty if it runs or YARN does not answer."""
    try:
        found = ResourceManager.from_environment().application(application)
    except ApplicationNotFound:
        return f"YARN no longer knows {application}"
    except ClusterError:
        return ""
    return f"{application} is over: {found.final_status} {found.diagnostics}".strip() if found.is_final else ""


def _is_known_here(record: ServerRecord) -> bool:
    """Return True if the driver's pid is valid here: on the same machine, of the same user, in the same PID namespace.

    A container may have the host name of its machine, but another PID namespace.
    """
    is_here = (record.machine, record.user) == (socket.gethostname(), settings.user_name())
    return is_here and record.pid_namespace in ("", processes.pid_namespace())


def _driver_has_ended(record: ServerRecord) -> bool:
    """Return True if the driver process has ended, even if its pid was reused."""
    began = record.process_started
    return processes.has_ended(record.pid) or (began is not None and processes.start_time_of(record.pid) != began)
