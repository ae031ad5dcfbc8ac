"""Agent's client of the fork server: starts it, launches workers, signals them and learns how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from hopsml.cluster.forking import fork_server, zygote
from hopsml.cluster.forking.fork_server import (
    MARK,
    Exited,
    Imported,
    Launched,
    LaunchWorker,
    NotLaunched,
    Ping,
    Pong,
    SignalWorker,
    environment_of,
    new_mark,
)
from hopsml.core import processes
from hopsml.core.newer_python import module_arguments

_T = TypeVar("_T")

LOOK_AGAIN_S = 0.005
HELD_LIMIT = 3  # heartbeats for which it has been stopped
SILENT_LIMIT = 30  # heartbeats for which it has not responded


def start_process(modules: tuple[str, ...], zygote_name: str = "") -> Started:
    """Start a fork server, and return its process and the agent's end of its socket.

    The caller's thread must live as long as the agent, since the server ends with it.

    Args:
        modules: Modules that it imports.
        zygote_name: Name of a zygote on this machine that may have imported them already; "": none.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = environment_of(os.environ, new_mark())
    with theirs:
        adopted = zygote.request_fork_server(zygote_name, modules, environment, theirs) if zygote_name else None
        return adopted or _execute(modules, environment, theirs), ours


def _execute(modules: tuple[str, ...], environment: dict[str, str], theirs: socket.socket) -> _Popen:
    """Start a fork server as a separate process."""
    module = "hopsml.cluster.forking.fork_server"
    process = _Popen(
        [sys.executable, *module_arguments(module), str(theirs.fileno()), str(os.getpid()), *modules],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        # Signals to the agent's process group must not reach it: when an executor dies, Spark's daemon sends SIGHUP to
        # its whole group, and a server that died of it would leave processes that the workers have started.
        start_new_session=True,
    )
    _OWN.add(process.pid)
    process.mark = environment[MARK]
    return process


_OWN: set[int] = set()  # servers that this process has started and not yet waited for, and children that it had before


def exempt_from_killing(pids: Iterable[int]) -> None:
    """Exempt children of this process from being killed with what a fork server has left."""
    _OWN.update(pids)


class _Popen(subprocess.Popen[bytes]):
    """Process of the server, with the mark that all its descendants carry."""

    mark = ""


Started = tuple[_Popen | zygote.AdoptedForkServer, socket.socket]


class ForkClient:
    """Client of one warm server process, which is replaced when it dies or when other modules are needed."""

    def __init__(
        self, modules: tuple[str, ...], process: _Popen | zygote.AdoptedForkServer, connection: socket.socket
    ) -> None:
        self.modules = modules
        self.ready: asyncio.Future[Imported] = asyncio.get_running_loop().create_future()
        self._process = process
        self._connection = connection
        self._connection.setblocking(False)
        self._launched: dict[int, asyncio.Future[int]] = {}
        self._exited: dict[int, asyncio.Future[Exited]] = {}
        self._last_id = 0
        self._ended: set[int] = set()
        self._held = self._silent = 0  # heartbeats
        self._asked = False  # True while a ``Pong`` is awaited
        self._given_up = ""  # why it was ended
        self.broken = False
        asyncio.get_running_loop().add_reader(connection.fileno(), self._receive)

    def _receive(self) -> None:
        """Process a message of the server, or the end of its connection."""
        try:
            data = self._connection.recv(fork_server.MAX_DATAGRAM)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data and isinstance(self._process, zygote.AdoptedForkServer) and not self.ready.done():
            self._help_oneself()
            return
        if not data:
            self._break()
            return
        reply = fork_server.decode_reply.decode(data)
        if isinstance(reply, Imported):
            _resolve(self.ready, reply)
        elif isinstance(reply, Pong):
            self._asked = False
        elif isinstance(reply, Launched):
            _resolve(self._launched.get(reply.id), reply.pid)
        elif isinstance(reply, NotLaunched):
            _refuse(self._launched.get(reply.id), reply.problem)
        else:
            _resolve(self._exited.get(reply.id), reply)

    def _help_oneself(self) -> None:
        """Start a separate process, which imports the modules itself, as the zygote refused or died."""
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        self._connection.close()
        self._process, self._connection = start_process(self.modules)
        self._connection.setblocking(False)
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._receive)

    def _break(self) -> None:
        """Process the server's death: its workers have died by their parent-death signal, but not their children."""
        if self.broken:
            return
        self.broken = True
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        how = self._how_it_ended()
        self._end_rest()
        error = ConnectionError(how)
        futures: list[asyncio.Future[Any]] = [self.ready, *self._launched.values(), *self._exited.values()]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the error as retrieved: asyncio would log it if no task waits

    def _how_it_ended(self) -> str:
        """Return how the server has ended, as text."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its socket is closed, so it is about to end
        if self._given_up:
            return self._given_up
        code = self._process.returncode
        how = processes.describe_exit(-code) if code is not None and code < 0 else f"it ended with status {code}"
        doing = "" if self.ready.done() else f" while importing {', '.join(self.modules) or 'nothing'}"
        return f"the fork server{doing}: {how}"

    @property
    def pid(self) -> int:
        """Pid of the server; 0 while it has not been forked yet."""
        told = self.ready.result().pid if self.ready.done() and not self.ready.exception() else 0
        return told or max(0, self._process.pid)

    @property
    def is_unresponsive(self) -> bool:
        """True if it was stopped, or did not respond, at the last heartbeats."""
        return not self.broken and (self._held > 0 or self._silent >= HELD_LIMIT)

    def check_health(self, is_needed: bool) -> str:
        """Resume a stopped server, or end one that stays stopped or does not respond; called at each heartbeat.

        It is ended only if it ``is_needed``: tasks that wait for it get its ConnectionError. Otherwise its workers
        continue without it.

        Args:
            is_needed: True if the agent needs the server to start workers.

        Returns:
            A text for users; "" if there is nothing to report.
        """
        if self.broken or not self.pid:
            return ""
        self._held = self._held + 1 if processes.is_stopped(self.pid) else 0
        self._silent = self._silent + 1 if self._asked else 0
        if self.ready.done() and not self._asked:
            self._asked = True
            with contextlib.suppress(OSError):
                self._connection.send(fork_server.encode(Ping()))
        who = f"the process that starts workers on this host (fork server, process {self.pid})"
        if is_needed and (self._held >= HELD_LIMIT or self._silent >= SILENT_LIMIT):
            beats = self._held or self._silent
            self._given_up = (
                f"{who} {'was stopped' if self._held else 'did not answer'} for {beats} heartbeats, and was killed"
            )
            processes.kill_quietly(self.pid)
            return self._given_up
        if self._held == 1:
            processes.kill_quietly(self.pid, signal.SIGCONT)
            return f"{who} was stopped (SIGSTOP), and is resumed"
        return ""

    async def launch(
        self,
        assignment: str,
        cwd: str,
        events: int,
        log: int,
        slots: Sequence[int] = (),
        inbox: int | None = None,
        module: str = fork_server.WORKER,
    ) -> tuple[int, int]:
        """Start a worker, and return its id and pid.

        Args:
            assignment: Path of the file that the worker reads.
            cwd: Working folder of the worker.
            events: Write end of the worker's event pipe.
            log: Descriptor of its log file.
            slots: Descriptors of slots for checkpoints and commits.
            inbox: Read end of the pipe for the driver's messages; None: it gets none.
            module: Module whose ``run`` is called in the worker.

        Raises:
            ConnectionError: The server has ended.
            OSError: The server could not start the worker.
        """
        await self.ready
        self._last_id += 1
        identity = self._last_id
        loop = asyncio.get_running_loop()
        launched = self._launched[identity] = loop.create_future()
        self._exited[identity] = loop.create_future()
        try:
            self._send_launch(LaunchWorker(identity, assignment, cwd, module), (events, log), slots, inbox)
            return identity, await launched
        except BaseException:  # the caller does not get its id, and so cannot wait for its end
            del self._exited[identity]
            raise
        finally:
            del self._launched[identity]

    def _send_launch(
        self, launch: LaunchWorker, outputs: tuple[int, int], slots: Sequence[int], inbox: int | None
    ) -> None:
        """Send the request to launch a worker, with its descriptors."""
        nothing = os.open(os.devnull, os.O_RDONLY) if inbox is None else -1
        try:
            descriptors = [*outputs, nothing if inbox is None else inbox, *slots]
            socket.send_fds(self._connection, [fork_server.encode(launch)], descriptors)
        except OSError:  # it has just ended; the reader is about to detect that
            raise ConnectionError(self._how_it_ended()) from None
        finally:
            if nothing >= 0:
                os.close(nothing)

    async def wait_for_exit(self, identity: int) -> Exited:
        """Wait until the worker and its whole process group have ended, and return how it ended; may be called once."""
        try:
            return await self._exited[identity]
        finally:
            del self._exited[identity]

    def signal(self, identity: int, number: int) -> None:
        """Send a signal to the process group of a worker; does nothing if the server has ended."""
        if not self.broken:
            # it has ended, and its workers with it: the reader is about to detect that
            with contextlib.suppress(OSError):
                self._connection.send(fork_server.encode(SignalWorker(identity, number)))

    async def close(self, timeout_s: float = 5.0) -> None:
        """End the server with all workers, by force after ``timeout_s`` seconds."""
        if not self.broken:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self.broken = True
        self._connection.close()
        if isinstance(self._process, zygote.AdoptedForkServer) and not self.ready.done():
            self._process.withdraw()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._process.poll() is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        if self._process.poll() is None:
            self._end_marked()
            if isinstance(self._process, zygote.AdoptedForkServer):
                self._process.withdraw()
            self._process.wait()
        self._end_rest()

    def _end_rest(self) -> None:
        """End the processes that a dead server has left.

        Its workers have died with it, by their parent-death signal.
        """
        self._end_marked()
        _OWN.discard(self._process.pid)
        if processes.is_subreaper():
            processes.end_adopted_orphans(_OWN)

    def _end_marked(self) -> None:
        """Kill the processes with the server's mark until two scans in a row find none.

        A process that is just being executed shows no environment, so one scan may miss it.
        """
        looks_without = 0
        while looks_without < 2:
            pids = [
                pid for pid in processes.processes_with_variable(MARK, self._process.mark) if pid not in self._ended
            ]
            for pid in pids:
                processes.kill_quietly(pid, signal.SIGKILL)
                self._ended.add(pid)
            looks_without = 0 if pids else looks_without + 1
            if not pids:
                time.sleep(LOOK_AGAIN_S)


def _resolve(future: asyncio.Future[_T] | None, value: _T) -> None:
    """Set a future's result, unless no task waits for it any more (None)."""
    if future is not None and not future.done():
        future.set_result(value)


def _refuse(future: asyncio.Future[_T] | None, problem: str) -> None:
    """Set a future's error, unless no task waits for it any more (None)."""
    if future is not None and not future.done():
        future.set_exception(OSError(problem))
