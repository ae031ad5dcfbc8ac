"""Zygote, a process next to the driver that imports the framework once and forks this machine's fork servers.

It is used only if agents share the driver's machine (local slots, Spark's ``local`` and ``local-cluster``): then one
import serves all of them, and it can begin while Spark is still starting. It runs as ``python -m
hopsml.cluster.forking.zygote LISTENER CONTROL MODULES`` until the control socket closes, that is, as long as the
driver.

An agent connects to an abstract Unix socket and sends the parameters with which it would start its fork server, and the
server's end of the socket pair. The zygote forks a child that takes over all of it and is a fork server like any other
from then on. If its imports would differ, or a fork is not safe, the zygote closes the socket pair instead, and the
agent starts a separate process. The connection stays open for the child's exit status. Both ends are in this file: the
driver starts the zygote, and an agent requests a fork server from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping

import msgspec

from hopsml.cluster.forking.fork_server import MARK, MARK_LENGTH, ForkServer, environment_of, own_sys_path
from hopsml.core import processes
from hopsml.core.newer_python import module_arguments

MAX_REQUEST = 1 << 17
# Variables that packages read while they are imported; others affect only the workers.
READ_AT_IMPORT = (
    "TF_", "KERAS_", "XLA_", "JAX_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "OPENBLAS_", "GOTO_", "LD_", "JE_",
)  # fmt: skip
READ_AT_START = ("PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONDONTWRITEBYTECODE", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class ForkRequest(msgspec.Struct, frozen=True):
    """Request of an agent to the zygote, sent with two descriptors: the fork server's socket and its stderr."""

    executable: str
    modules: tuple[str, ...]
    environment: dict[str, str]
    sys_path: tuple[str, ...]  # module path outside its installation
    cwd: str


class ServerExited(msgspec.Struct, frozen=True):
    """Report of the zygote to an agent that its fork server has ended; ``status`` as of wait(2)."""

    pid: int
    status: int


encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[ForkRequest] = msgspec.msgpack.Decoder(ForkRequest)
decode_exited: msgspec.msgpack.Decoder[ServerExited] = msgspec.msgpack.Decoder(ServerExited)


def differences(request: ForkRequest, modules: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """Return what would differ between the requested process and one with these imports; [] if it can be forked.

    Args:
        request: The agent's request.
        modules: Modules that are imported here.
        environment: Variables with which they were imported.
    """
    found = [f"module {name}" for name in request.modules if name not in modules]
    if request.executable != sys.executable:
        found.append(f"interpreter {request.executable}")
    for name in sorted({*environment, *request.environment}):
        matters = name.startswith(READ_AT_IMPORT) or name in READ_AT_START
        if matters and environment.get(name) != request.environment.get(name):
            found.append(f"variable {name}")
    return found


def has_same_user(connection: socket.socket) -> bool:
    """Return True if the peer belongs to this process's user, as any user may connect to an abstract name."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1]) == os.getuid()


class Zygote:
    """Event loop of the zygote; it has one thread, so that its children may fork again."""

    def __init__(self, listener: socket.socket, control: socket.socket, modules: tuple[str, ...]) -> None:
        self.listener, self.control, self.modules = listener, control, modules
        self.environment = dict(os.environ)  # before the imports
        self.base_path = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
        self.servers: dict[int, socket.socket] = {}  # pid -> its agent's connection
        self.waiting: set[socket.socket] = set()  # connected, without a request yet
        self.mode = ""

    def run(self) -> None:
        """Import the modules, then serve until the driver has ended."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, other:
            importer = ForkServer(mine, self.modules)
            self.mode = importer.warm_up().mode
            for descriptor in (importer.wakeup_r, importer.wakeup_w):
                os.close(descriptor)
        wakeup_r, wakeup_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
        while True:
            sockets = {each.fileno(): each for each in (self.control, self.listener, *self.waiting)}
            readable, _, _ = select.select([*sockets, wakeup_r], [], [])
            for descriptor in readable:
                if descriptor == wakeup_r:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wakeup_r, 4096)
                    self.reap()
                elif sockets[descriptor] is self.control:
                    return
                elif sockets[descriptor] is self.listener:
                    self.accept()
                else:
                    self.waiting.discard(sockets[descriptor])
                    self.handle_request(sockets[descriptor])

    def accept(self) -> None:
        """Accept an agent's connection if it is of this user."""
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.1)  # else the listener would be reported as ready again immediately
            return
        if has_same_user(connection):
            self.waiting.add(connection)
        else:
            connection.close()

    def handle_request(self, connection: socket.socket) -> None:
        """Fork a server for the agent, or close its socket, so that it starts a server itself."""
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST, 2)
            request = _decode.decode(data)
            if self.mode != "fork" or differences(request, self.modules, self.environment):
                connection.close()
                return
            served, errors = descriptors
            pid = os.fork()
            if pid == 0:
                self.become_server(request, served, errors, connection)
            self.servers[pid] = connection
        except (OSError, ValueError):  # includes msgspec's errors
            connection.close()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def become_server(self, request: ForkRequest, served: int, errors: int, connection: socket.socket) -> None:
        """Run a fork server in the forked child, until its agent has ended; never returns."""
        try:
            os.setsid()
            processes.become_subreaper()
            signal.set_wakeup_fd(-1)
            os.dup2(errors, 2)
            os.close(errors)
            for inherited in (self.listener, self.control, connection, *self.waiting, *self.servers.values()):
                inherited.close()
            self.apply_environment(request)
            server = ForkServer(socket.socket(fileno=served), request.modules)
            try:
                server.serve()
            finally:
                server.end_everything()
        except BaseException:  # noqa: BLE001 the child must not return to the zygote's loop
            traceback.print_exc()
        finally:
            os._exit(0)

    def apply_environment(self, request: ForkRequest) -> None:
        """Replace the zygote's variables, module path and working folder by the agent's."""
        overwrite_mark(request.environment[MARK])
        os.environ.clear()
        os.environ.update(request.environment)
        sys.path[:] = [*request.sys_path, *self.base_path]  # without the working directory, as ``python -P``
        os.chdir(request.cwd)

    def reap(self) -> None:
        """Report to agents how their servers ended, and end the processes that a killed server has left."""
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if not pid:
                break
            ended = True
            connection = self.servers.pop(pid, None)
            if connection is not None:
                with contextlib.suppress(OSError), connection:
                    connection.send(encode(ServerExited(pid, status)))
        if ended:
            processes.end_adopted_orphans(self.servers)


def overwrite_mark(value: str) -> None:
    """Overwrite the mark where the kernel reads it for /proc/PID/environ: in the strings with which the process began.

    Processes forked from this one are then found by it; a new value of os.environ would only be seen in those that it
    executes.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(MARK.encode())
    data = value.encode()
    if address and len(data) == MARK_LENGTH == len(ctypes.string_at(address)):
        ctypes.memmove(address, data, len(data))


def main() -> None:
    """Serve as a zygote until the driver has ended; for ``python -m hopsml.cluster.forking.zygote``."""
    listener, control, *modules = sys.argv[1:]
    processes.write_no_core_dumps()
    processes.become_subreaper()
    sockets = socket.socket(fileno=int(listener)), socket.socket(fileno=int(control))
    Zygote(*sockets, tuple(modules)).run()  # its fork servers end with their agents


CONNECT_S = 0.5
CLOSE_S = 1.0
HELD_LIMIT = 3  # checks in a row that find it stopped


class ZygoteProcess:
    """Driver's end of a zygote: a process that imports ``modules`` and accepts requests under ``name`` until closed."""

    def __init__(self, modules: tuple[str, ...], variables: Mapping[str, str] | None = None) -> None:
        """Start the process, without waiting for its imports.

        Args:
            modules: Modules to import.
            variables: Environment variables of the agents that differ from this process's.

        Raises:
            OSError: The process cannot be started.
        """
        self.modules = modules
        self._held = 0
        self.name = f"hopsml-zygote-{os.urandom(16).hex()}"
        self._control, control = socket.socketpair()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener, control:
            listener.bind(f"\0{self.name}")
            listener.listen(256)
            descriptors = [listener.fileno(), control.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, *module_arguments(__name__), *map(str, descriptors), *modules],
                env=environment_of({**os.environ, **(variables or {})}, "-" * MARK_LENGTH),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # its children write where their agents do; the agents report why an import failed
                stderr=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Pid of the zygote's process."""
        return self._process.pid

    def check_health(self) -> str:
        """Resume a stopped zygote, or end one that stays stopped; called once a second.

        If it ends, agents whose fork server it was about to fork start other processes.

        Returns:
            A text for users; "" if there is nothing to report.
        """
        self._held = self._held + 1 if processes.is_stopped(self.pid) else 0
        who = f"the process that imports modules for the workers of this machine ({self.pid})"
        if self._held == 1:
            self._process.send_signal(signal.SIGCONT)
            return f"{who} was stopped (SIGSTOP), and is resumed"
        if self._held == HELD_LIMIT:
            self._process.kill()
            return f"{who} is still stopped (SIGSTOP), and is killed"
        return ""

    def close(self) -> None:
        """End the zygote process; fork servers that were forked from it continue until their agents end."""
        self._control.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:  # it may hang in an import
            self._process.kill()
            self._process.wait()


class AdoptedForkServer:
    """Fork server that a zygote has forked for this agent, with a part of the interface of ``subprocess.Popen``."""

    def __init__(self, connection: socket.socket, mark: str) -> None:
        self.mark, self.pid = mark, -1
        self.returncode: int | None = None
        self._connection = connection

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            data = b""
            with contextlib.suppress(OSError):
                data = self._connection.recv(MAX_REQUEST)
            self._connection.close()
            # Without data the zygote has ended before it, so the status is unknown.
            self.returncode = os.waitstatus_to_exitcode(decode_exited.decode(data).status) if data else -signal.SIGKILL
        return self.returncode

    def withdraw(self) -> None:
        """Abandon the fork server: if it has not been forked yet, it ends right after the fork."""
        if self.returncode is None:
            self._connection.close()
            self.returncode = -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        """Wait at most ``timeout`` seconds for its end, and return the exit status.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time.
        """
        if self.returncode is None:
            select.select([self._connection], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
        return code


def request_fork_server(
    name: str, modules: tuple[str, ...], environment: Mapping[str, str], theirs: socket.socket
) -> AdoptedForkServer | None:
    """Request a fork server at the other end of ``theirs`` from the zygote of this name.

    The zygote may still close ``theirs`` instead of serving.

    Args:
        name: Name of the zygote.
        modules: Modules that the fork server has to have imported.
        environment: Variables of the fork server.
        theirs: The fork server's end of the socket pair.

    Returns:
        The fork server; None if there is no such zygote on this machine, or it is another user's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(CONNECT_S)
    try:
        connection.connect(f"\0{name}")
        if not has_same_user(connection):
            raise ConnectionError(f"the zygote {name} belongs to another user")
        request = ForkRequest(
            executable=sys.executable,
            modules=modules,
            environment=dict(environment),
            sys_path=tuple(own_sys_path()),
            cwd=os.getcwd(),
        )
        socket.send_fds(connection, [encode(request)], [theirs.fileno(), 2])
    except OSError:
        connection.close()
        return None
    connection.settimeout(None)
    return AdoptedForkServer(connection, environment[MARK])


if __name__ == "__main__":
    main()
