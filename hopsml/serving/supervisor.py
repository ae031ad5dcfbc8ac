"""Supervisor process of a serving: ``python -m hopsml.serving.supervisor FOLDER LOCK ANNOUNCE LIFELINE``.

It holds the listening socket, so that the port does not change when replicas fail. It starts the replicas, switches
them to other versions, answers commands on a socket in its folder, and uploads the request log. LOCK is the locked file
that prevents a second supervisor. One line is written to ANNOUNCE when all replicas answer or the start has failed. At
the end of LIFELINE (-1 for none) the supervisor stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path

import msgspec

from hopsml.core import processes, redact
from hopsml.core.metrics import Counts
from hopsml.core.newer_python import asyncio_wait_for
from hopsml.errors import HopsmlError, StorageError
from hopsml.serving import server_records
from hopsml.serving.definitions import ServingFolder
from hopsml.serving.load_publisher import published
from hopsml.serving.messages import (
    ChangeRoute,
    Command,
    DrainNow,
    FollowRoute,
    JsonLinesConnection,
    ReplicaAlive,
    RouteActivated,
    RouteRejected,
    SendCounts,
    ServedVersion,
    ServingSettings,
    StatusRequest,
    SupervisorAnswer,
    TotalCounts,
    TotalCountsRequest,
    decode_settings,
    encode_line,
    versions_of_route,
)
from hopsml.serving.metrics import ReplicaCountsSum
from hopsml.serving.replica_launcher import LocalReplicaLauncher, ReplicaLauncher, ReplicaProcess
from hopsml.serving.request_log import RequestLogUploader
from hopsml.serving.routes import (
    AllReplicasEnded,
    DrainReplica,
    KillReplica,
    RouteOutcome,
    SendRoute,
    SpawnReplica,
    Supervision,
    SupervisionAction,
)

log = logging.getLogger("hopsml.serving")

TICK_S = 0.1
COUNTS_TIMEOUT_S = 1.0
BACKLOG = 2048  # connections that have not been accepted yet


class SupervisedReplica:
    """Replica process with its connection.

    Attributes:
        heard: Set when counts have arrived since the last request for them.
        killed_for: Reason for which the supervisor killed the process; "" if it did not.
    """

    def __init__(self, process: ReplicaProcess) -> None:
        self.process, self.connection = process, process.connection
        self.heard = asyncio.Event()
        self.killed_for = ""  # reason for which the supervisor killed it


class Supervisor:
    """Supervisor of all replicas, which carries out the decisions of ``Supervision``."""

    def __init__(self, settings: ServingSettings, hands: ReplicaLauncher, address: tuple[str, int]) -> None:
        """Initialize the supervisor without replicas."""
        self._settings, self._hands, self._address = settings, hands, address
        self._supervision = Supervision(settings.replicas)
        self._versions = dict(settings.versions)
        self._processes: dict[int, SupervisedReplica] = {}
        self._starting: dict[int, asyncio.Task[None]] = {}  # replicas without a process yet
        self._counts = ReplicaCountsSum()
        self._outcomes: dict[int, asyncio.Future[str]] = {}
        self._newest = settings.route.number
        self._restarts = 0
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Start all replicas, and return the error of the start; empty if all of them answer."""
        outcome = self._awaited(self._settings.route.number)
        await self._carry_out(self._supervision.begin(self._settings.route, time.monotonic()))
        self._background(self._tick())
        return await outcome

    async def wait_for_end(self) -> None:
        """Wait until no replica runs any more."""
        await self._ended.wait()

    def stop(self) -> None:
        """Begin to drain and end all replicas."""
        self._background(self._carry_out(self._supervision.stop(time.monotonic())))

    def status(self, error: str = "") -> SupervisorAnswer:
        """Return the status of the serving, with the error of a command if given."""
        return SupervisorAnswer(
            error,
            *self._address,
            os.getpid(),
            self._supervision.ready_count,
            tuple(one.process.pid for one in self._processes.values()),
            self._supervision.settled,
            self._restarts,
            replicas=len(self._supervision.replicas),
        )

    def counts(self) -> Counts:
        """Return the sums of the replicas' metrics, of each as it has reported them last."""
        return self._counts.total()

    async def execute_command(self, command: Command) -> SupervisorAnswer:
        """Carry out a command, and return the answer."""
        if isinstance(command, ChangeRoute):
            if self._supervision.is_stopping:
                return self.status("the serving is stopping")
            if (known := self._changed(command.versions)) is not None:
                return self.status(
                    f"the files of version {known} have changed since it was loaded, since it was exported again; "
                    "export a changed model as a new version, or stop and start the serving"
                )
            self._newest += 1
            route = dataclasses.replace(command.route, number=self._newest)
            self._versions |= command.versions
            outcome = self._awaited(route.number)
            await self._carry_out(self._supervision.roll(route, time.monotonic(), command.timeout_s))
            return self.status(await outcome)
        if isinstance(command, StatusRequest):
            return self.status()
        self.stop()
        await self.wait_for_end()
        return self.status()

    def _changed(self, versions: Mapping[int, ServedVersion]) -> int | None:
        """Return the number of a served version whose files in ``versions`` differ from the loaded ones, or None."""
        settled = self._supervision.settled
        for number in versions.keys() & (settled.versions if settled else ()):
            if self._versions[number].description.digest != versions[number].description.digest:
                return number
        return None

    # ------------------------------------------------------------------------------------------ actions

    async def _carry_out(self, actions: Iterable[SupervisionAction]) -> None:
        """Carry out the actions of the state machine."""
        for action in actions:
            if isinstance(action, SpawnReplica):
                self._starting[action.replica] = asyncio.create_task(self._spawn(action.replica))
            elif isinstance(action, SendRoute):
                versions = versions_of_route(action.route, self._versions)
                self._processes[action.replica].connection.send(FollowRoute(action.route, versions))
            elif isinstance(action, DrainReplica):
                if not await self._given_up(action.replica):
                    self._processes[action.replica].connection.send(DrainNow())
            elif isinstance(action, KillReplica):
                log.warning("replica %s is stopped: %s", action.replica, action.reason)
                one = None if await self._given_up(action.replica) else self._processes.get(action.replica)
                if one is not None:  # otherwise it is ending already
                    one.killed_for = action.reason
                    one.process.kill()
            elif isinstance(action, RouteOutcome):
                log.info("route %s: %s", action.number, action.error or "all replicas serve the new route")
                waiting = self._outcomes.pop(action.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(action.error)
            elif isinstance(action, AllReplicasEnded):
                self._ended.set()

    def _awaited(self, number: int) -> asyncio.Future[str]:
        """Return the future of a route's outcome."""
        return self._outcomes.setdefault(number, asyncio.get_running_loop().create_future())

    def _background(self, work: Coroutine[None, None, None]) -> None:
        """Run work as a task of this supervisor."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _spawn(self, number: int) -> None:
        """Start a replica process, and begin to receive its messages."""
        try:
            process = await self._hands.start_replica(number)
        except OSError as error:
            del self._starting[number]
            log.warning("replica %s could not be started: %s", number, error)
            await self._carry_out(
                self._supervision.replica_exited(number, f"could not be started: {error}", time.monotonic())
            )
            return
        del self._starting[number]
        one = self._processes[number] = SupervisedReplica(process)
        log.info("replica %s is process %s", number, process.pid)
        self._background(self._listen(number, one))

    async def _given_up(self, number: int) -> bool:
        """Cancel the start of a replica without a process, and return True if there was such a start."""
        starting = self._starting.pop(number, None)
        if starting is None:
            return False
        starting.cancel()
        await asyncio.wait([starting])
        await self._carry_out(self._supervision.replica_exited(number, "was not started", time.monotonic()))
        return True

    # ------------------------------------------------------------------------------------------ events

    async def _listen(self, number: int, one: SupervisedReplica) -> None:
        """Handle the messages of a replica until it ends."""
        is_first = True
        while (message := await one.connection.receive()) is not None:
            now = time.monotonic()
            if is_first:
                is_first = False
                await self._carry_out(self._supervision.replica_connected(number, now))
            if isinstance(message, (ReplicaAlive, TotalCountsRequest)):
                self._counts.update(number, message.counts)
                one.heard.set()
            if isinstance(message, ReplicaAlive):
                await self._carry_out(self._supervision.heartbeat_received(number, message.is_loading, now))
            elif isinstance(message, RouteActivated):
                await self._carry_out(self._supervision.route_took_effect(number, message.number, now))
            elif isinstance(message, RouteRejected):
                await self._carry_out(self._supervision.route_refused(number, message.number, message.reason, now))
            elif isinstance(message, TotalCountsRequest):
                self._background(self._tell_total(one))
        await self._reaped(number, one)

    async def _reaped(self, number: int, one: SupervisedReplica) -> None:
        """Handle the end of a replica process."""
        one.connection.close()
        ended = await one.process.wait_for_end()
        del self._processes[number]
        self._counts.mark_ended(number)
        how = f"was ended: {one.killed_for}" if one.killed_for else ended
        if not self._supervision.is_stopping:
            self._restarts += 1
            log.warning("replica %s %s; its log is %s", number, how, one.process.log_location)
        await self._carry_out(self._supervision.replica_exited(number, how, time.monotonic()))

    async def _tell_total(self, asker: SupervisedReplica) -> None:
        """Request the counts of all other replicas, and send the sum to the asking one.

        For replicas that do not answer in time, the last known counts are used.
        """
        others = [one for one in self._processes.values() if one is not asker]
        for one in others:
            one.heard.clear()
            one.connection.send(SendCounts())
        with contextlib.suppress(TimeoutError):
            await asyncio_wait_for(asyncio.gather(*(one.heard.wait() for one in others)), COUNTS_TIMEOUT_S)
        asker.connection.send(TotalCounts(self._counts.total()))

    async def _tick(self) -> None:
        """Advance the state machine periodically."""
        while not self._ended.is_set():
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for number in list(self._starting):  # waits for an agent
                await self._carry_out(self._supervision.heartbeat_received(number, True, now))
            await self._carry_out(self._supervision.tick(now))


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        HopsmlError: The port is in use, or the address is not this machine's.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise HopsmlError(
            f"cannot listen at {host}:{port}: {error.strerror or error}; use an address of this machine, and another "
            "port, or 0 for any free port"
        ) from error
    listener.listen(BACKLOG)
    return listener


async def supervise(folder: ServingFolder, announce: int, lifeline: int) -> None:
    """Run the supervisor, from the claim of the name to its release.

    Args:
        folder: Folder of the serving.
        announce: File descriptor for the announcement.
        lifeline: File descriptor at whose end the supervisor stops; -1 for none.
    """
    settings = decode_settings(folder.settings.read_bytes())
    loop = asyncio.get_running_loop()
    with contextlib.closing(listening_socket(settings.host, settings.port)) as listener:
        port = listener.getsockname()[1]
        record = await asyncio.to_thread(server_records.register_server, settings, port, folder)
        try:
            threads = max(1, len(os.sched_getaffinity(0)) // settings.replicas)
            hands = LocalReplicaLauncher(folder, listener, threads)
            supervisor = Supervisor(settings, hands, listener.getsockname()[:2])
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, supervisor.stop)
            if lifeline >= 0:
                loop.add_reader(lifeline, _lost, loop, lifeline, supervisor)
            server = await asyncio.start_unix_server(_door(supervisor), "control")
            for door in server.sockets:
                processes.wake_on_data(door)  # a stopped supervisor continues when a client connects
            shipper = RequestLogUploader(folder, settings)
            shipping = asyncio.create_task(shipper.run())
            async with published(supervisor.status, supervisor.counts, record, settings.project):
                error = await supervisor.start()
                _say(announce, supervisor.status(error))
                await supervisor.wait_for_end()
            server.close()
            shipping.cancel()
            await shipper.upload_remaining()
        finally:
            await asyncio.to_thread(_release, settings)


def _lost(loop: asyncio.AbstractEventLoop, lifeline: int, supervisor: Supervisor) -> None:
    """Stop the supervisor because its lifeline has ended."""
    loop.remove_reader(lifeline)
    supervisor.stop()


def _release(settings: ServingSettings) -> None:
    """Delete the server record; an error is logged."""
    try:
        server_records.release_server(settings)
    except StorageError as error:
        log.warning(
            "%s cannot be deleted, and remains without effect: %s", server_records.server_record_url(settings), error
        )


def _door(supervisor: Supervisor) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return the handler of the command socket; access to the folder is the authorization."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = JsonLinesConnection(reader, writer, Command)
        with contextlib.suppress(ConnectionError, msgspec.MsgspecError):
            while isinstance(command := await line.receive(), Command):
                line.send(await supervisor.execute_command(command))
                await writer.drain()
        line.close()

    return serve


def _say(announce: int, answer: SupervisorAnswer) -> None:
    """Write the announcement to its descriptor, and close that."""
    with contextlib.suppress(OSError):  # the starting process may have ended
        os.write(announce, encode_line(answer))
    os.close(announce)


def main(words: list[str]) -> None:
    """Run the program with its command-line arguments."""
    folder, _, announce, lifeline = words
    processes.write_no_core_dumps()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    redact.mask_logger("hopsml")
    os.chdir(folder)  # shortens the path of the socket
    with contextlib.suppress(FileNotFoundError):
        os.unlink("control")
    try:
        asyncio.run(supervise(ServingFolder(Path(folder)), int(announce), int(lifeline)))
    except HopsmlError as error:
        log.error("%s", error)
        _say(int(announce), SupervisorAnswer(str(error)))
        sys.exit(1)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink("control")


if __name__ == "__main__":
    main(sys.argv[1:])
