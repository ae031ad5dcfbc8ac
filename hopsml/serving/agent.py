"""Agent of a serving on a cluster: the body of a Spark task, which holds a slot for one replica on a node.

It connects to the supervisor and authenticates by a token. On request it starts and kills its replica, and forwards the
messages between both. It downloads the files of models to its machine. It ends with its connection, and the replica
ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hopsml.cluster.shared import tls
from hopsml.core import delegation_tokens, file_locks, processes, redact
from hopsml.core.delegation_tokens import OwnTokenFile
from hopsml.core.newer_python import asyncio_timeout
from hopsml.errors import ArgumentError, HopsmlError
from hopsml.model.registry import MODELS
from hopsml.model.version import Version
from hopsml.serving import definitions, replica_launcher
from hopsml.serving.definitions import ServingFolder
from hopsml.serving.messages import (
    LONGEST_LINE,
    AgentHello,
    AgentWelcome,
    EndAgent,
    EndReplica,
    FollowRoute,
    ForwardToReplica,
    FromAgent,
    FromReplica,
    ReplicaEnded,
    ReplicaLogLines,
    ReplicaMessage,
    ReplicaStarted,
    RouteRejected,
    SendLog,
    ServedVersion,
    ServingSettings,
    StartReplica,
    ToAgent,
    ToReplica,
    UseTokens,
    decode_for_agent,
    encode_for_agents,
)
from hopsml.serving.replica_launcher import LocalReplica
from hopsml.serving.request_log import RequestLogUploader
from hopsml.storage import urls

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = logging.getLogger("hopsml.serving")

BACKLOG = 2048
UNACKNOWLEDGED_S = 20.0
LAST_S = 5.0  # for the last messages
NOT_WELCOME = "the driver of this serving has ended, or has rejected this agent"


class AgentBootstrap(msgspec.Struct, frozen=True):
    """Address and credentials with which a task connects to the supervisor.

    Attributes:
        host: Host of the supervisor.
        port: Port of the supervisor.
        certificate: Trusted certificate, in PEM format.
        token: Token of the agents.
        has_tokens: True if the supervisor sends delegation tokens after its welcome.
    """

    host: str
    port: int
    certificate: str
    token: str
    has_tokens: bool = False


class AgentResources(msgspec.Struct, frozen=True):
    """Resources that Spark assigned to the task.

    Attributes:
        task: ID of the task attempt; -1 without Spark.
        threads: Number of threads of a model.
        variables: Environment variables of the replica, which select its GPUs.
    """

    task: int = -1
    threads: int = 1
    variables: dict[str, str] = {}


class SupervisorLostError(HopsmlError):
    """Error for a connection to the supervisor that ended unexpectedly, after which Spark runs the task again."""


class DriverConnection:
    """Connection to the supervisor, on which messages are sent in order without waiting; a context manager."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._sending = asyncio.create_task(self._send_all())

    async def __aenter__(self) -> DriverConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio_timeout(LAST_S):
                await asyncio.wait(
                    [self._sending, asyncio.create_task(self._unsent.join())], return_when=asyncio.FIRST_COMPLETED
                )
        self._sending.cancel()
        await self._connection.close()

    def send(self, message: FromAgent) -> None:
        """Send a message without waiting."""
        self._unsent.put_nowait(encode_for_agents(message))

    async def receive(self) -> ToAgent | None:
        """Return the next message; None when the supervisor has disconnected."""
        from websockets.exceptions import ConnectionClosed

        try:
            return decode_for_agent(await self._connection.recv(decode=False))
        except ConnectionClosed:
            return None

    async def _send_all(self) -> None:
        """Send queued messages until the connection ends."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._connection.send(await self._unsent.get())
                self._unsent.task_done()


class ServingAgent:
    """Agent with at most one replica at a time."""

    def __init__(
        self,
        folder: ServingFolder,
        line: DriverConnection,
        settings: ServingSettings,
        host: str,
        means: AgentResources,
        tokens: OwnTokenFile | None = None,
    ):
        """Initialize the agent without a replica.

        Args:
            folder: Private folder of the agent.
            line: Connection to the supervisor.
            settings: Settings of the serving.
            host: Address of this machine at which the driver can reach the replica.
            means: Resources of the task.
            tokens: File for delegation tokens, which the replica inherits; None on a cluster without Kerberos.
        """
        self._tokens = tokens
        self._folder, self._line, self._settings, self._host, self._means = folder, line, settings, host, means
        self._process: LocalReplica | None = None
        self._listening: asyncio.Task[None] | None = None
        self._to_replica: asyncio.Queue[ToReplica] = asyncio.Queue()
        self._telling: asyncio.Task[None] | None = None
        self._files: dict[int, ServedVersion] = {}  # files on this machine

    async def handle_messages(self) -> None:
        """Handle messages until the supervisor ends the agent.

        Raises:
            SupervisorLostError: The connection ended before.
        """
        shipper = RequestLogUploader(self._folder, self._settings)
        shipping = asyncio.create_task(shipper.run())
        try:
            while (message := await self._line.receive()) is not None:
                if isinstance(message, EndAgent):
                    return
                await self._do(message)
            raise SupervisorLostError("the driver of this serving has ended")
        finally:
            await self._end()
            shipping.cancel()
            await shipper.upload_remaining()

    async def _do(self, message: object) -> None:
        """Handle one message of the supervisor."""
        if isinstance(message, StartReplica):
            await self._start(message.number)
        elif isinstance(message, EndReplica) and self._process is not None:
            self._process.kill()
        elif isinstance(message, ForwardToReplica):
            self._to_replica.put_nowait(message.message)
        elif isinstance(message, SendLog):
            self._line.send(self._log(message.last))
        elif isinstance(message, UseTokens) and self._tokens is not None:
            try:
                self._tokens.replace(delegation_tokens.parse(message.data))
            except (OSError, ArgumentError) as error:
                log.warning("new delegation tokens could not be stored: %s", error)

    async def _start(self, number: int) -> None:
        """Start a replica at a free port, and report its process or the error."""
        await self._end()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            with socket.socket(family) as listener:
                listener.bind((self._host, 0))
                listener.listen(BACKLOG)
                port = listener.getsockname()[1]
                means = self._means
                self._process = await replica_launcher.start_process(
                    self._folder, number, listener, means.threads, FromReplica, means.variables
                )
        except OSError as error:
            self._line.send(ReplicaStarted(error=str(error)))
            return
        self._line.send(ReplicaStarted(self._process.pid, self._host, port))
        self._to_replica = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen(self._process))
        self._telling = asyncio.create_task(self._tell(self._process, self._to_replica))

    async def _listen(self, process: LocalReplica) -> None:
        """Forward the messages of the replica, then report how it ended."""
        while (message := await process.connection.receive()) is not None:
            self._line.send(ReplicaMessage(message))  # type: ignore[arg-type]
        process.connection.close()
        how = await process.wait_for_end()
        if self._process is process:
            self._process = None
        self._line.send(ReplicaEnded(how))

    async def _tell(self, process: LocalReplica, messages: asyncio.Queue[ToReplica]) -> None:
        """Forward messages to the replica in order; before a route, download the files of its versions."""
        while True:
            message = await messages.get()
            if isinstance(message, FollowRoute):
                try:
                    here = {number: await self._here(number, one) for number, one in message.versions.items()}
                except (HopsmlError, OSError) as error:
                    reason = redact.text(f"the files of the model cannot be fetched on {socket.gethostname()}: {error}")
                    self._line.send(ReplicaMessage(RouteRejected(message.route.number, reason)))
                    continue
                message = FollowRoute(message.route, here)
            process.connection.send(message)

    async def _here(self, number: int, one: ServedVersion) -> ServedVersion:
        """Return a version with its files on this machine.

        Files that were downloaded before are used even if the storage is unavailable.
        """
        known = self._files.get(number)
        if known is None or known.description != one.description or not Path(known.files).is_dir():
            url = urls.join(self._settings.project, MODELS, one.description.name, str(one.description.version))
            version = Version(url, one.description)
            files = await asyncio.to_thread(
                version.local_files, definitions.model_cache_folder(), self._settings.trusted
            )
            known = self._files[number] = ServedVersion(str(files), one.description)
        return known

    def _log(self, last: int) -> ReplicaLogLines:
        """Return the newest lines of the replica's log."""
        paths = self._folder.logs()
        if not paths:
            return ReplicaLogLines(socket.gethostname(), "")
        lines = paths[-1].read_text(errors="replace").splitlines()[-last:]
        return ReplicaLogLines(f"{socket.gethostname()}:{paths[-1]}", "\n".join(lines))

    async def _end(self) -> None:
        """Kill the remaining replica, if any."""
        if self._telling is not None:
            self._telling.cancel()
        if self._process is not None:
            self._process.kill()
        if self._listening is not None:
            await asyncio.wait([self._listening])
            self._listening = None


def run_agent(bootstrap: AgentBootstrap, means: AgentResources) -> None:
    """Run an agent to its end.

    Raises:
        SupervisorLostError: The connection ended; Spark runs the task again.
        OSError: The supervisor cannot be reached, or the disk is full; Spark runs the task again.
    """
    processes.die_with_parent(os.getppid())
    processes.write_no_core_dumps()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    folder, lock = _own_folder()
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, lock)
        undo.callback(shutil.rmtree, folder.path, ignore_errors=True)
        tokens = None
        if bootstrap.has_tokens:
            tokens = OwnTokenFile(folder.path)
            undo.callback(tokens.close)
        asyncio.run(_connected(bootstrap, means, folder, tokens))


def _own_folder() -> tuple[ServingFolder, int]:
    """Return a private folder of this agent, and its lock, which marks the folder as in use."""
    above = definitions.local_servings_folder() / "places"
    above.mkdir(mode=0o700, exist_ok=True)
    lock_name = ServingFolder(above).lock.name
    file_locks.delete_abandoned_folders(above, "*", lock_name)
    folder, lock = file_locks.make_locked_folder(above, lock_name)
    return ServingFolder(folder), lock


async def _connected(
    bootstrap: AgentBootstrap, means: AgentResources, folder: ServingFolder, tokens: OwnTokenFile | None
) -> None:
    """Connect to the supervisor and run the agent."""
    from websockets.exceptions import InvalidHandshake

    try:
        connection = await tls.connect(
            ((bootstrap.host, bootstrap.port),), bootstrap.token, bootstrap.certificate, LONGEST_LINE
        )
    except InvalidHandshake as error:
        raise SupervisorLostError(NOT_WELCOME) from error
    # Closes the connection if the driver's machine does not acknowledge data; a failed machine sends nothing.
    own: socket.socket = connection.transport.get_extra_info("socket")
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1000))
    async with DriverConnection(connection) as line:
        line.send(AgentHello(socket.gethostname(), means.task))
        welcome = await line.receive()
        if not isinstance(welcome, AgentWelcome):
            raise SupervisorLostError(NOT_WELCOME)
        folder.write_token(welcome.token)
        folder.settings.write_bytes(msgspec.json.encode(welcome.settings))
        # Segments that this agent cannot upload before its end are uploaded by the next agent on this machine.
        folder.requests.symlink_to(
            definitions.ensure_request_segments_folder(welcome.settings.name, welcome.settings.project)
        )
        host = connection.local_address[0]  # the driver can reach this address
        await ServingAgent(folder, line, welcome.settings, host, means, tokens).handle_messages()
