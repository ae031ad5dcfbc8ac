"""Zygote, a process next to the driver that imports the framework once and forks this machine's fork servers.

It is used only if agents share the driver's machine (local slots, Spark's ``local`` and ``local-cluster``): then one
import serves all of them, and it can begin while Spark is still starting. It runs as ``python -m
hopsml.cluster.forking.zygote LISTENER CONTROL MODULES`` until the control socket closes, that is, as long as the
driver.

An agent connects to an abstract Unix socket and sends the parameters with which it would start its fork server, and the
server's end of the socket pair. The zygote forks a child that takes over all of it and is a fork server like any other
from then on. If its imports would differ, or a fork is not safe, the zygote closes the socket pair instead, and the
agent starts a separate process. The connection stays open for the child's exit status.
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
import sys
import time
import traceback

import msgspec

from hopsml.cluster.forking.fork_environment import MARK, MARK_LENGTH
from hopsml.cluster.forking.fork_server import ForkServer
from hopsml.cluster.shared import processes

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


def is_own_user(connection: socket.socket) -> bool:
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
                    self.receive(sockets[descriptor])

    def accept(self) -> None:
        """Accept an agent's connection if it is of this user."""
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.1)  # else the listener would be reported as ready again immediately
            return
        if is_own_user(connection):
            self.waiting.add(connection)
        else:
            connection.close()

    def receive(self, connection: socket.socket) -> None:
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
            self.take_over(request)
            server = ForkServer(socket.socket(fileno=served), request.modules)
            try:
                server.serve()
            finally:
                server.end_everything()
        except BaseException:  # noqa: BLE001 the child must not return to the zygote's loop
            traceback.print_exc()
        finally:
            os._exit(0)

    def take_over(self, request: ForkRequest) -> None:
        """Replace the zygote's variables, module path and working folder by the agent's."""
        overwrite_mark(request.environment[MARK])
        os.environ.clear()
        os.environ.update(request.environment)
        sys.path[:] = [request.cwd, *request.sys_path, *self.base_path]
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
            processes.end_adopted(self.servers)


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


if __name__ == "__main__":
    main()
