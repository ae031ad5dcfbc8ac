"""Holds a place for a replica on a node of a cluster: the body of a Spark task.

It connects to the supervisor, shows its token, and starts, kills and listens to one replica as it is told; what the two
say to one another it passes on. Models' files are fetched on its machine. It ends with its connection, and its replica
with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import socket
import ssl
import sys
import tempfile
from pathlib import Path

import msgspec

from hopsml import redact
from hopsml.cluster.shared import processes
from hopsml.errors import HopsmlError
from hopsml.model.registry import MODELS
from hopsml.model.version import Version
from hopsml.serving import hands, places
from hopsml.serving.hands import LocalProcess
from hopsml.serving.messages import (
    AgentHello,
    AgentWelcome,
    EndAgent,
    EndReplica,
    FollowRoute,
    FromReplica,
    Line,
    LogSent,
    ReplicaEnded,
    ReplicaSaid,
    ReplicaStarted,
    RouteKept,
    SendLog,
    ServedVersion,
    ServingSettings,
    StartReplica,
    TellReplica,
    ToAgent,
    ToReplica,
)
from hopsml.serving.places import ServingFolder
from hopsml.serving.shipping import Shipper
from hopsml.storage import urls

log = logging.getLogger("hopsml.serving")

BACKLOG = 2048
CONNECT_TIMEOUT_S = 30.0
UNACKNOWLEDGED_S = 20.0


class PlaceBootstrap(msgspec.Struct, frozen=True):
    """What a task needs to find the supervisor. ``certificate``: the one that is trusted, PEM."""

    host: str
    port: int
    certificate: str
    token: str


class PlaceMeans(msgspec.Struct, frozen=True):
    """What Spark has given the task. ``variables``: the replica's, which say which GPUs are its own."""

    task: int = -1
    threads: int = 1
    variables: dict[str, str] = {}


class PlaceLost(HopsmlError):
    """The connection to the supervisor has ended without a word: Spark runs the task again."""


class PlaceAgent:
    """One place: at most one replica at a time."""

    def __init__(self, folder: ServingFolder, line: Line, settings: ServingSettings, host: str, means: PlaceMeans):
        self._folder, self._line, self._settings, self._host, self._means = folder, line, settings, host, means
        self._process: LocalProcess | None = None
        self._listening: asyncio.Task[None] | None = None
        self._to_replica: asyncio.Queue[ToReplica] = asyncio.Queue()
        self._telling: asyncio.Task[None] | None = None
        self._files: dict[int, ServedVersion] = {}  # on this machine

    async def live(self) -> None:
        """Until the supervisor says so. Raises PlaceLost."""
        shipper = Shipper(self._folder, self._settings)
        shipping = asyncio.create_task(shipper.run())
        try:
            while (message := await self._line.receive()) is not None:
                if isinstance(message, EndAgent):
                    return
                await self._do(message)
            raise PlaceLost("the driver of this serving is gone")
        finally:
            await self._end()
            shipping.cancel()
            await shipper.last()

    async def _do(self, message: object) -> None:
        if isinstance(message, StartReplica):
            await self._start(message.number)
        elif isinstance(message, EndReplica) and self._process is not None:
            self._process.kill()
        elif isinstance(message, TellReplica):
            self._to_replica.put_nowait(message.message)
        elif isinstance(message, SendLog):
            self._line.send(self._log(message.last))

    async def _start(self, number: int) -> None:
        await self._end()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            with socket.socket(family) as listener:
                listener.bind((self._host, 0))
                listener.listen(BACKLOG)
                port = listener.getsockname()[1]
                means = self._means
                self._process = await hands.start_process(
                    self._folder, number, listener, means.threads, FromReplica, means.variables
                )
        except OSError as error:
            self._line.send(ReplicaStarted(error=str(error)))
            return
        self._line.send(ReplicaStarted(self._process.pid, self._host, port))
        self._to_replica = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen(self._process))
        self._telling = asyncio.create_task(self._tell(self._process, self._to_replica))

    async def _listen(self, process: LocalProcess) -> None:
        while (message := await process.line.receive()) is not None:
            self._line.send(ReplicaSaid(message))  # type: ignore[arg-type]
        process.line.close()
        how = await process.ended()
        if self._process is process:
            self._process = None
        self._line.send(ReplicaEnded(how))

    async def _tell(self, process: LocalProcess, messages: asyncio.Queue[ToReplica]) -> None:
        """In the order in which they came, each when what it names is here."""
        while True:
            message = await messages.get()
            if isinstance(message, FollowRoute):
                try:
                    here = {number: await self._here(number, one) for number, one in message.versions.items()}
                except (HopsmlError, OSError) as error:
                    reason = redact.text(f"its files cannot be fetched on {socket.gethostname()}: {error}")
                    self._line.send(ReplicaSaid(RouteKept(message.route.number, reason)))
                    continue
                message = FollowRoute(message.route, here)
            process.line.send(message)

    async def _here(self, number: int, one: ServedVersion) -> ServedVersion:
        """A version with its files on this machine; those that were fetched before are used though the store be away."""
        known = self._files.get(number)
        if known is None or known.description != one.description or not Path(known.files).is_dir():
            url = urls.join(self._settings.project, MODELS, one.description.name, str(one.description.version))
            version = Version(url, one.description)
            files = await asyncio.to_thread(version.local_files, places.models_folder(), self._settings.trusted)
            known = self._files[number] = ServedVersion(str(files), one.description)
        return known

    def _log(self, last: int) -> LogSent:
        paths = self._folder.logs()
        if not paths:
            return LogSent(socket.gethostname(), "")
        lines = paths[-1].read_text(errors="replace").splitlines()[-last:]
        return LogSent(f"{socket.gethostname()}:{paths[-1]}", "\n".join(lines))

    async def _end(self) -> None:
        """Kill the replica that is left, if one is."""
        if self._telling is not None:
            self._telling.cancel()
        if self._process is not None:
            self._process.kill()
        if self._listening is not None:
            await asyncio.wait([self._listening])
            self._listening = None


def run_place(bootstrap: PlaceBootstrap, means: PlaceMeans) -> None:
    """The whole life of an agent. Raises PlaceLost, OSError: Spark runs the task again then."""
    processes.die_with_parent(os.getppid())
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    folder, lock = _own_folder()
    try:
        asyncio.run(_connected(bootstrap, means, folder))
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
        os.close(lock)


def _own_folder() -> tuple[ServingFolder, int]:
    """A folder of this agent's alone, and the lock that says that it lives; what killed agents left goes."""
    above = places.machines_folder() / "places"
    above.mkdir(mode=0o700, exist_ok=True)
    for left in above.iterdir():
        _put_away(ServingFolder(left))
    while True:
        folder = ServingFolder(Path(tempfile.mkdtemp(dir=above)))
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.lock.exists():  # else another agent has put it away between these two lines
            return folder, lock
        os.close(lock)


def _put_away(folder: ServingFolder) -> None:
    try:
        lock = os.open(folder.lock, os.O_RDWR)
    except OSError:  # gone by now, or just being made
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder.path, ignore_errors=True)
    except BlockingIOError:
        pass  # its agent lives
    finally:
        os.close(lock)


async def _connected(bootstrap: PlaceBootstrap, means: PlaceMeans, folder: ServingFolder) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned
    context.load_verify_locations(cadata=bootstrap.certificate)
    connecting = asyncio.open_connection(bootstrap.host, bootstrap.port, ssl=context)
    reader, writer = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
    _notice_losses(writer)
    line = Line(reader, writer, ToAgent)
    line.send(AgentHello(bootstrap.token, socket.gethostname(), means.task))
    welcome = await line.receive()
    if not isinstance(welcome, AgentWelcome):
        raise PlaceLost("the driver of this serving is gone, or does not want this agent")
    folder.write_token(welcome.token)
    folder.settings.write_bytes(msgspec.json.encode(welcome.settings))
    # What this agent cannot bring to storage before its end, the next one on this machine does.
    folder.requests.symlink_to(places.waiting_requests(welcome.settings.name, welcome.settings.project))
    host = writer.get_extra_info("sockname")[0]  # where the driver is reached from, it reaches this machine
    with contextlib.closing(line):
        await PlaceAgent(folder, line, welcome.settings, host, means).live()


def _notice_losses(writer: asyncio.StreamWriter) -> None:
    """A driver's machine that is gone says nothing: signs of life that nobody acknowledges end the connection."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1000))
