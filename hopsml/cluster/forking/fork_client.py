"""The agent's side of the fork server: start it, launch workers, signal them, learn how they ended."""

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

from hopsml.cluster.forking import fork_server, zygote_process
from hopsml.cluster.forking.fork_environment import MARK, environment_of, new_mark
from hopsml.cluster.forking.fork_server import (
    Exited,
    Imported,
    Launched,
    LaunchWorker,
    NotLaunched,
    Ping,
    Pong,
    SignalWorker,
)
from hopsml.cluster.shared import processes

_T = TypeVar("_T")

LOOK_AGAIN_S = 0.005
HELD_LIMIT = 3  # heartbeats for which it has been stopped
SILENT_LIMIT = 30  # heartbeats for which it has not answered


def start_process(modules: tuple[str, ...], zygote: str = "") -> Started:
    """The server process and the agent's end of its socket. Call it from the thread that lives as long as the agent.

    ``zygote``: name of one on this machine, if there is, that may have the imports already.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = environment_of(os.environ, new_mark())
    with theirs:
        adopted = zygote_process.adopt(zygote, modules, environment, theirs) if zygote else None
        return adopted or _execute(modules, environment, theirs), ours


def _execute(modules: tuple[str, ...], environment: dict[str, str], theirs: socket.socket) -> _Popen:
    module = "hopsml.cluster.forking.fork_server"
    process = _Popen(
        [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid()), *modules],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        # Signals to the agent's group are not for it: when an executor dies, Spark's daemon sends SIGHUP to its whole
        # group, and a server that died of that would leave what the workers have started.
        start_new_session=True,
    )
    _OWN.add(process.pid)
    process.mark = environment[MARK]
    return process


_OWN: set[int] = set()  # servers that this process has started and not yet waited for; and what it had before


def spare(pids: Iterable[int]) -> None:
    """Name children of this process that must live on when what a fork server has left is killed."""
    _OWN.update(pids)


class _Popen(subprocess.Popen[bytes]):
    """The server's process, with the mark that everything below it carries."""

    mark = ""


Started = tuple[_Popen | zygote_process.Adopted, socket.socket]


class ForkClient:
    """One warm server process; replaced whole when it dies or when other modules are wanted."""

    def __init__(
        self, modules: tuple[str, ...], process: _Popen | zygote_process.Adopted, connection: socket.socket
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
        self._asked = False  # whether it owes an answer
        self._given_up = ""  # why it was ended
        self.broken = False
        asyncio.get_running_loop().add_reader(connection.fileno(), self._receive)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(fork_server.MAX_DATAGRAM)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data and isinstance(self._process, zygote_process.Adopted) and not self.ready.done():
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
        """The zygote did not want to, or died: a process of the agent's own does its imports itself."""
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        self._connection.close()
        self._process, self._connection = start_process(self.modules)
        self._connection.setblocking(False)
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._receive)

    def _break(self) -> None:
        """The server died; so did its workers, by their death signal, but not what they had started."""
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
                future.exception()  # whoever waits sees it; nobody has to

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its socket is closed: it is at its very end
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
    def is_held(self) -> bool:
        """Whether it was seen stopped, or did not answer, at the last heartbeats."""
        return not self.broken and (self._held > 0 or self._silent >= HELD_LIMIT)

    def look_after(self, is_needed: bool) -> str:
        """With each heartbeat: wake a server that is stopped; returns what people should know, or nothing.

        One that stays stopped, or does not answer, is ended where it ``is_needed``: whoever waits for it gets its
        ConnectionError. Where it is not, its workers go on without it.
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
                f"{who} {'was stopped' if self._held else 'did not answer'} for {beats} heartbeats and was ended"
            )
            processes.kill_quietly(self.pid)
            return self._given_up
        if self._held == 1:
            processes.kill_quietly(self.pid, signal.SIGCONT)
            return f"{who} was stopped (SIGSTOP); it is woken"
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
        """Start a worker; returns (id, pid). Raises ConnectionError when the server is gone, OSError where it starts none.

        Without an ``inbox`` nothing can be told to it. ``module``: whose ``run`` it is.
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
        except BaseException:  # nobody has its number, so nobody will ask how it ended
            del self._exited[identity]
            raise
        finally:
            del self._launched[identity]

    def _send_launch(
        self, launch: LaunchWorker, outputs: tuple[int, int], slots: Sequence[int], inbox: int | None
    ) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY) if inbox is None else -1
        try:
            descriptors = [*outputs, nothing if inbox is None else inbox, *slots]
            socket.send_fds(self._connection, [fork_server.encode(launch)], descriptors)
        except OSError:  # it has ended this moment; the reader is about to see that
            raise ConnectionError(self._how_it_ended()) from None
        finally:
            if nothing >= 0:
                os.close(nothing)

    async def exited(self, identity: int) -> Exited:
        """Wait until the worker and its whole group are gone; returns how it ended. To be asked once."""
        try:
            return await self._exited[identity]
        finally:
            del self._exited[identity]

    def signal(self, identity: int, number: int) -> None:
        """Send a signal to the process group of a worker; nothing happens where the server is gone."""
        if not self.broken:
            with contextlib.suppress(OSError):  # it is gone, and its workers with it: the reader is about to see that
                self._connection.send(fork_server.encode(SignalWorker(identity, number)))

    async def close(self, timeout_s: float = 5.0) -> None:
        """End the server with all workers, by force after ``timeout_s`` seconds."""
        if not self.broken:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self.broken = True
        self._connection.close()
        if isinstance(self._process, zygote_process.Adopted) and not self.ready.done():
            self._process.withdraw()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._process.poll() is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        if self._process.poll() is None:
            self._end_marked()
            if isinstance(self._process, zygote_process.Adopted):
                self._process.withdraw()
            self._process.wait()
        self._end_rest()

    def _end_rest(self) -> None:
        """What a server has left that could not do so itself: it is gone, and its workers with it, by their death signal."""
        self._end_marked()
        _OWN.discard(self._process.pid)
        if processes.is_subreaper():
            processes.end_adopted(_OWN)

    def _end_marked(self) -> None:
        """Until two looks in a row find nobody: a process that is just being executed shows no environment."""
        looks_without = 0
        while looks_without < 2:
            pids = [pid for pid in processes.carrying(MARK, self._process.mark) if pid not in self._ended]
            for pid in pids:
                processes.kill_quietly(pid, signal.SIGKILL)
                self._ended.add(pid)
            looks_without = 0 if pids else looks_without + 1
            if not pids:
                time.sleep(LOOK_AGAIN_S)


def _resolve(future: asyncio.Future[_T] | None, value: _T) -> None:
    """``future``: None where nobody waits for it any more."""
    if future is not None and not future.done():
        future.set_result(value)


def _refuse(future: asyncio.Future[_T] | None, problem: str) -> None:
    if future is not None and not future.done():
        future.set_exception(OSError(problem))
