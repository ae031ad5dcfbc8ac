"""The process that keeps a serving up: ``python -m hopsml.serving.supervisor FOLDER LOCK ANNOUNCE LIFELINE``.

It holds the listening socket, so that the port stays whatever becomes of replicas, starts them, rolls them to other
versions, answers on a socket in its folder, and brings the request log to storage. LOCK is the locked file that keeps a
second one away; to ANNOUNCE goes one line, when all replicas answer or why not; at the end of LIFELINE (-1 for none) it
stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path

import msgspec

from hopsml import redact
from hopsml.cluster.shared import processes
from hopsml.errors import HopsmlError, StorageError
from hopsml.serving import claims
from hopsml.serving.messages import (
    LONGEST_LINE,
    AskStatus,
    AskTotal,
    ChangeRoute,
    Command,
    DrainNow,
    FollowRoute,
    FromReplica,
    Line,
    ReplicaAlive,
    RouteKept,
    RouteTurned,
    SendCounts,
    ServingSettings,
    SupervisorAnswer,
    TotalCounts,
    decode_settings,
    encode_line,
    known_versions,
)
from hopsml.serving.metrics import Sum
from hopsml.serving.places import ServingFolder
from hopsml.serving.shipping import Shipper
from hopsml.serving.supervision import (
    AllEnded,
    DrainReplica,
    Follow,
    KillReplica,
    RouteOutcome,
    Spawn,
    Supervision,
    SupervisionAction,
)
from hopsml.storage import python_child

log = logging.getLogger("hopsml.serving")

TICK_S = 0.1
COUNTS_TIMEOUT_S = 1.0
BACKLOG = 2048  # connections that nobody has accepted yet


class Process:
    """A replica's process, and the line to it."""

    def __init__(self, process: subprocess.Popen[bytes], line: Line) -> None:
        self.popen, self.line = process, line
        self.heard = asyncio.Event()  # since it was last asked for its counts
        self.killed_for = ""  # why the supervisor killed it


class Supervisor:
    """Carries out what ``Supervision`` decides."""

    def __init__(self, folder: ServingFolder, settings: ServingSettings, listener: socket.socket) -> None:
        self._folder, self._settings, self._listener = folder, settings, listener
        self._supervision = Supervision(settings.replicas)
        self._versions = dict(settings.versions)
        self._processes: dict[int, Process] = {}
        self._counts = Sum()
        self._outcomes: dict[int, asyncio.Future[str]] = {}
        self._newest = settings.route.number
        self._restarts = 0
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Start all replicas; why they do not answer, empty where they do."""
        outcome = self._awaited(self._settings.route.number)
        await self._carry_out(self._supervision.begin(self._settings.route, time.monotonic()))
        self._background(self._tick())
        return await outcome

    async def wait(self) -> None:
        """Until nothing runs any more."""
        await self._ended.wait()

    def stop(self) -> None:
        """Drain and end."""
        self._background(self._carry_out(self._supervision.stop(time.monotonic())))

    def status(self, error: str = "") -> SupervisorAnswer:
        """How it stands."""
        host, port = self._listener.getsockname()[:2]
        return SupervisorAnswer(
            error,
            host,
            port,
            os.getpid(),
            self._supervision.ready,
            tuple(one.popen.pid for one in self._processes.values()),
            self._supervision.settled,
            self._restarts,
        )

    async def answer(self, command: Command) -> SupervisorAnswer:
        """Do what somebody asks for."""
        if isinstance(command, ChangeRoute):
            if self._supervision.is_stopping:
                return self.status("the serving is stopping")
            self._newest += 1
            route = dataclasses.replace(command.route, number=self._newest)
            self._versions |= command.versions
            outcome = self._awaited(route.number)
            await self._carry_out(self._supervision.roll(route, time.monotonic(), command.timeout_s))
            return self.status(await outcome)
        if isinstance(command, AskStatus):
            return self.status()
        self.stop()
        await self.wait()
        return self.status()

    # ------------------------------------------------------------------------------------------ actions

    async def _carry_out(self, actions: Iterable[SupervisionAction]) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                await self._spawn(action.replica)
            elif isinstance(action, Follow):
                versions = known_versions(action.route, self._versions)
                self._processes[action.replica].line.send(FollowRoute(action.route, versions))
            elif isinstance(action, DrainReplica):
                self._processes[action.replica].line.send(DrainNow())
            elif isinstance(action, KillReplica):
                log.warning("replica %s is ended: %s", action.replica, action.reason)
                if (one := self._processes.get(action.replica)) is not None:  # else its end is on its way
                    one.killed_for = action.reason
                    one.popen.kill()
            elif isinstance(action, RouteOutcome):
                log.info("route %s: %s", action.number, action.error or "followed by all replicas")
                waiting = self._outcomes.pop(action.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(action.error)
            elif isinstance(action, AllEnded):
                self._ended.set()

    def _awaited(self, number: int) -> asyncio.Future[str]:
        return self._outcomes.setdefault(number, asyncio.get_running_loop().create_future())

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _spawn(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        share = max(1, len(os.sched_getaffinity(0)) // self._settings.replicas)
        threads = {name: str(share) for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")}
        environment = {**threads, "TF_CPP_MIN_LOG_LEVEL": "2", **python_child.environment()}
        numbers = map(str, (number, self._listener.fileno(), theirs.fileno(), os.getpid()))
        try:
            with theirs, self._folder.replica_log(number).open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "hopsml.serving.replica", str(self._folder.path), *numbers],
                    pass_fds=(self._listener.fileno(), theirs.fileno()),
                    cwd="/",
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
        except OSError as error:  # no room for one more process, or for its log
            ours.close()
            log.warning("replica %s could not be started: %s", number, error)
            how = f"could not be started: {error}"
            self._background(self._carry_out(self._supervision.exited(number, how, time.monotonic())))
            return
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        one = self._processes[number] = Process(process, Line(reader, writer, FromReplica))
        log.info("replica %s is process %s", number, process.pid)
        self._background(self._listen(number, one))

    # ------------------------------------------------------------------------------------------ events

    async def _listen(self, number: int, one: Process) -> None:
        """What a replica says, until its end."""
        is_first = True
        while (message := await one.line.receive()) is not None:
            now = time.monotonic()
            if is_first:
                is_first = False
                await self._carry_out(self._supervision.connected(number, now))
            if isinstance(message, (ReplicaAlive, AskTotal)):
                self._counts.update(number, message.counts)
                one.heard.set()
            if isinstance(message, ReplicaAlive):
                await self._carry_out(self._supervision.heard(number, message.is_loading, now))
            elif isinstance(message, RouteTurned):
                await self._carry_out(self._supervision.turned(number, message.number, now))
            elif isinstance(message, RouteKept):
                await self._carry_out(self._supervision.kept(number, message.number, message.reason, now))
            elif isinstance(message, AskTotal):
                self._background(self._tell_total(one))
        await self._reaped(number, one)

    async def _reaped(self, number: int, one: Process) -> None:
        """The line has ended, so the process has, or will at once."""
        one.line.close()
        if one.popen.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(one.popen.wait, 5.0)
        if one.popen.poll() is None:
            one.popen.kill()
            await asyncio.to_thread(one.popen.wait)
        del self._processes[number]
        self._counts.ended(number)
        how = f"was ended: {one.killed_for}" if one.killed_for else _ending(one.popen.returncode)
        if not self._supervision.is_stopping:
            self._restarts += 1
            log.warning("replica %s %s; its log is %s", number, how, self._folder.replica_log(number))
        await self._carry_out(self._supervision.exited(number, how, time.monotonic()))

    async def _tell_total(self, asker: Process) -> None:
        """Ask all others for their counts; those that do not answer are counted as they were last."""
        others = [one for one in self._processes.values() if one is not asker]
        for one in others:
            one.heard.clear()
            one.line.send(SendCounts())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(one.heard.wait() for one in others)), COUNTS_TIMEOUT_S)
        asker.line.send(TotalCounts(self._counts.total()))

    async def _tick(self) -> None:
        while not self._ended.is_set():
            await asyncio.sleep(TICK_S)
            await self._carry_out(self._supervision.tick(time.monotonic()))


def _ending(code: int) -> str:
    status = -code if code < 0 else code << 8
    if code < 0:
        return f"was {processes.describe_exit(status)}"
    return f"ended with exit status {code}"


def bound(host: str, port: int) -> socket.socket:
    """A listening socket. HopsmlError where the port is taken or the address is not this machine's."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise HopsmlError(
            f"cannot listen at {host}:{port}: {error.strerror or error}; name another port, or 0 for any that is free, and "
            "an address of this machine"
        ) from error
    listener.listen(BACKLOG)
    return listener


async def supervise(folder: ServingFolder, announce: int, lifeline: int) -> None:
    """From the claim to its end."""
    settings = decode_settings(folder.settings.read_bytes())
    loop = asyncio.get_running_loop()
    with contextlib.closing(bound(settings.host, settings.port)) as listener:
        port = listener.getsockname()[1]
        await asyncio.to_thread(claims.claim, settings, port, folder)
        try:
            supervisor = Supervisor(folder, settings, listener)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, supervisor.stop)
            if lifeline >= 0:
                loop.add_reader(lifeline, _lost, loop, lifeline, supervisor)
            server = await asyncio.start_unix_server(_door(supervisor), "control", limit=LONGEST_LINE)
            for door in server.sockets:
                processes.wake_by(door)  # whoever knocks
            shipper = Shipper(folder, settings)
            shipping = asyncio.create_task(shipper.run())
            error = await supervisor.start()
            _say(announce, supervisor.status(error))
            await supervisor.wait()
            server.close()
            shipping.cancel()
            await shipper.last()
        finally:
            await asyncio.to_thread(_release, settings)


def _lost(loop: asyncio.AbstractEventLoop, lifeline: int, supervisor: Supervisor) -> None:
    loop.remove_reader(lifeline)
    supervisor.stop()


def _release(settings: ServingSettings) -> None:
    try:
        claims.release(settings)
    except StorageError as error:
        log.warning("%s stays behind, which does no harm: %s", claims.url_of(settings), error)


def _door(supervisor: Supervisor) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Whoever may open the folder may ask."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer, Command)
        with contextlib.suppress(ConnectionError, msgspec.MsgspecError):
            while isinstance(command := await line.receive(), Command):
                line.send(await supervisor.answer(command))
                await writer.drain()
        line.close()

    return serve


def _say(announce: int, answer: SupervisorAnswer) -> None:
    with contextlib.suppress(OSError):  # whoever started it may be gone
        os.write(announce, encode_line(answer))
    os.close(announce)


def main(words: list[str]) -> None:
    """The program."""
    folder, _, announce, lifeline = words
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    redact.clean_log("hopsml")
    os.chdir(folder)  # its socket's path is short from here
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
