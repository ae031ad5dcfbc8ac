"""Fork server, a warm process that forks one worker for each assignment.

``python -m hopsml.cluster.forking.fork_server FD PARENT MODULES``

It has imported only the framework and has exactly one thread, so a worker that is forked from it starts without the
import, and without locks held by other threads. If the import started threads it reports "spawn", and workers are fresh
interpreters instead. It exchanges msgpack datagrams over a SOCK_SEQPACKET Unix socket; a launch carries the write end
of the worker's event pipe and the log file.

It reaps everything that its workers leave behind: each worker leads a session, whose process group is killed before the
worker is reaped (so no pid can have been reused), and this process is the subreaper for orphans beyond that. When the
agent has ended (end of file on the socket), all of it is killed; a stopped server is resumed by the kernel for that.
Its variables and module path are chosen such that its imports are safe to fork from.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from hopsml.core import processes
from hopsml.core.newer_python import module_arguments

MARK = "HOPSML_FORK_SERVER"  # a variable of every fork server, inherited by all processes that it starts
MARK_LENGTH = 48
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",  # OpenBLAS starts threads on import, and a process with threads cannot fork safely
    "TF_GRPC_REUSE_PORT": "1",  # TensorFlow may bind the port that the agent holds
}
# pyarrow's allocator starts a thread too; TensorFlow imports Keras, which imports pandas, which imports pyarrow.
_JEMALLOC = "JE_ARROW_MALLOC_CONF"
_NO_THREAD = "background_thread:false"


def new_mark() -> str:
    """Return a random value of ``MARK``, which no other fork server has."""
    return os.urandom(MARK_LENGTH // 2).hex()


def environment_of(base: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the variables of a fork server that is started by a process with the variables ``base``.

    Args:
        base: Variables of the process that starts it.
        mark: Value of ``MARK``.
    """
    environment = {**base, **_QUIET, "PYTHONPATH": os.pathsep.join(own_sys_path())}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment[_JEMALLOC] = ",".join(filter(None, (base.get(_JEMALLOC), _NO_THREAD)))  # the last setting counts
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment[MARK] = mark
    return environment


def own_sys_path() -> list[str]:
    """Return the entries of sys.path outside this interpreter's installation: Spark adds shipped files only there."""
    entries = (entry or os.getcwd() for entry in sys.path)
    return [entry for entry in entries if not entry.startswith((sys.prefix, sys.base_prefix))]


_TENSORFLOWS = frozenset({"tensorflow", "keras", "tf_keras"})
_TORCH_FIRST = ("torch", "torch._dynamo")


def preload_order(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the modules in the given order without duplicates, but torch before TensorFlow.

    Triton's library, which torch's optimizers import, crashes a process that has loaded TensorFlow's before; the other
    order works. Since a user's module may import either, torch's modules then precede all others.
    """
    given = tuple(dict.fromkeys(modules))
    of_torch = [name for name in given if name.partition(".")[0] == "torch"]
    if "torch" in of_torch and not _TENSORFLOWS.isdisjoint(given):
        of_torch = [*_TORCH_FIRST, *of_torch]
    return tuple(dict.fromkeys((*of_torch, *given)))


MAX_DATAGRAM = 1 << 16
MAX_DESCRIPTORS = 16
WORKER = "hopsml.cluster.worker.worker"
STRAYS_S = 1.0
_THREADS = "OMP_NUM_THREADS"


class LaunchWorker(msgspec.Struct, frozen=True, tag="launch"):
    """Request of the agent to start a worker, sent with file descriptors.

    These are the write end of the event pipe, the log, the read end of the pipe for the driver's messages, and slots
    for checkpoints and commits.
    """

    id: int
    assignment: str  # path of the file that worker.run reads
    cwd: str
    module: str = WORKER  # its run() is called in the worker


class SignalWorker(msgspec.Struct, frozen=True, tag="signal"):
    """Request of the agent to signal the worker's whole process group, if the worker still exists."""

    id: int
    number: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Request of the agent for a ``Pong``, at each heartbeat."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Response to a ``Ping``, which shows that the server's loop is running."""


class Imported(msgspec.Struct, frozen=True, tag="ready"):
    """Report of the server, sent once, that modules are imported; ``mode`` is "fork" or "spawn"."""

    mode: str
    problem: str
    pid: int = 0  # of the server


class Launched(msgspec.Struct, frozen=True, tag="launched"):
    """Report of the server that the worker of this id runs, under this pid."""

    id: int
    pid: int


class NotLaunched(msgspec.Struct, frozen=True, tag="not-launched"):
    """Report of the server that the worker of this id could not be started."""

    id: int
    problem: str


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Report of the server that the worker and all that it started have ended; ``status`` as of wait(2)."""

    id: int
    status: int
    max_rss_mb: int


Request = LaunchWorker | SignalWorker | Ping
Reply = Imported | Launched | NotLaunched | Exited | Pong

encode = msgspec.msgpack.Encoder().encode
decode_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
decode_reply: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class ProcessStartRefused(Exception):
    """Error if the system starts no further process, because of its limit of processes or of memory."""


@dataclass
class _Worker:
    """Id and pid of a running worker."""

    id: int
    pid: int


class ForkServer:
    """Event loop of the fork server; one thread, no asyncio, so that a forked child inherits nothing that runs."""

    def __init__(self, connection: socket.socket, modules: tuple[str, ...]) -> None:
        self.connection = connection
        self.modules = modules
        self.workers: dict[int, _Worker] = {}  # by pid
        self.mode = "fork"
        self.wakeup_r, self.wakeup_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def warm_up(self) -> Imported:
        """Import the modules, and determine if forking is safe afterwards.

        The garbage collector is disabled during the imports: it would repeatedly traverse their half million objects,
        for a quarter of TensorFlow's 3.3 s, and find nothing. Afterwards they are excluded from collection permanently:
        they belong to modules, and a worker whose collector does not touch them continues to share their pages with
        this process.
        """
        problem = ""
        threads_of_users = os.environ.get(_THREADS)
        os.environ[_THREADS] = (
            "1"  # torch and JAX would start a pool of threads, and a process with threads cannot fork
        )
        gc.disable()
        for module in self.modules:
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 the user's function will meet it again and report it
                problem = f"import {module}: {type(error).__name__}: {error}"
        gc.freeze()
        gc.enable()
        if threads_of_users is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = threads_of_users
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            self.mode = "spawn"
            problem = problem or (
                f"importing {', '.join(self.modules)} left {threads} threads running, so workers "
                "are spawned instead of forked"
            )
        return Imported(self.mode, problem, os.getpid())

    def serve(self) -> None:
        """Import the modules, then carry out requests until the agent has ended."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakeup_w, warn_on_full_buffer=False)
        processes.wake_on_data(self.connection)
        try:
            self.connection.send(encode(self.warm_up()))
        except OSError:
            return  # the agent has ended already
        # Imported here for all workers, while the agent prepares the first launch.
        from hopsml.cluster.worker import worker  # noqa: F401

        # From here on workers may exist: this process outlives the agent for as long as it takes to end their sessions.
        processes.outlive_parent()
        while True:
            readable, _, _ = select.select([self.connection.fileno(), self.wakeup_r], [], [])
            if self.wakeup_r in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wakeup_r, 4096)
                self.reap()
            if self.connection.fileno() in readable and not self.handle_request():
                return

    def handle_request(self) -> bool:
        """Carry out one request, and return False when the agent has ended."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, MAX_DATAGRAM, MAX_DESCRIPTORS)
        except ConnectionError:
            return False
        if not data:
            return False
        request = decode_request.decode(data)
        if isinstance(request, Ping):
            return self.send(Pong())
        if isinstance(request, SignalWorker):
            for worker in self.workers.values():
                if worker.id == request.id and not processes.kill_group_quietly(worker.pid, request.number):
                    processes.kill_quietly(worker.pid, request.number)  # too young to lead a process group
            return True
        try:
            pid = self.launch(request, *descriptors)
        except ProcessStartRefused as error:  # the running workers continue
            return self.send(NotLaunched(request.id, str(error)))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.workers[pid] = _Worker(request.id, pid)
        return self.send(Launched(request.id, pid))

    def send(self, answer: Pong | NotLaunched | Launched) -> bool:
        """Send the agent an answer, and return False if the agent has ended."""
        try:
            self.connection.send(encode(answer))
        except ConnectionError:
            return False
        return True

    # -------------------------------------------------------------------------------- start of workers

    def launch(self, request: LaunchWorker, events: int, log: int, inbox: int, *slots: int) -> int:
        """Start a worker in a new session, and return its pid.

        Args:
            request: The worker's assignment.
            events: Write end of the event pipe.
            log: Descriptor of the log.
            inbox: Read end of the pipe for the driver's messages.
            slots: Descriptors of slots for checkpoints and commits.

        Raises:
            ProcessStartRefused: The system starts no further process.
        """
        if self.mode == "spawn":
            return self.spawn(request, events, log, inbox, slots)
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            raise ProcessStartRefused(f"no process can be forked: {error}") from error
        if pid == 0:
            self.become_worker(request, events, log, inbox, slots, server)
        return pid

    def spawn(self, request: LaunchWorker, events: int, log: int, inbox: int, slots: tuple[int, ...]) -> int:
        """Start a worker as a fresh interpreter, and return its pid; arguments and errors as in ``launch``."""
        for descriptor in (events, inbox, *slots):
            os.set_inheritable(descriptor, True)
        worker = [
            *module_arguments(request.module),
            request.assignment,
            str(events),
            str(os.getpid()),
            request.cwd,
            str(inbox),
            *map(str, slots),
        ]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        command = [sys.executable, *worker]
        try:
            return os.posix_spawn(sys.executable, command, dict(os.environ), file_actions=actions, setsid=True)
        except OSError as error:
            raise ProcessStartRefused(f"no process can be started: {error}") from error

    def become_worker(
        self, request: LaunchWorker, events: int, log: int, inbox: int, slots: tuple[int, ...], server: int
    ) -> None:
        """Run a worker in the forked child; never returns."""
        code = 1
        try:
            os.setsid()
            processes.die_with_parent(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self.connection.fileno(), self.wakeup_r, self.wakeup_w):
                os.close(descriptor)
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            os.chdir(request.cwd)
            if numpy_random := sys.modules.get("numpy.random"):
                numpy_random.seed()  # else all workers of a server, and of a zygote, would draw the same numbers
            code = importlib.import_module(request.module).run(request.assignment, events, slots, inbox)
        except BaseException:  # noqa: BLE001 the child must not return to the server's loop
            traceback.print_exc()
        finally:
            os._exit(code)

    # -------------------------------------------------------------------------------- end of workers

    def reap(self) -> None:
        """Reap processes that have ended; a worker's process group is killed before its pid is released."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            worker = self.workers.pop(pid, None)
            if worker is not None:
                processes.kill_group_quietly(pid)
            _, status, usage = os.wait4(pid, 0)
            if worker is not None:
                self.end_strays()
                reply = Exited(worker.id, status, usage.ru_maxrss // 1024)
                with contextlib.suppress(OSError):
                    self.connection.send(encode(reply))

    def end_strays(self) -> None:
        """Kill orphans that were re-parented to this process (double forks, new sessions), except for workers.

        Waits at most STRAYS_S until they have ended: one that hangs in the kernel must not prevent others from being
        reaped.
        """
        deadline = time.monotonic() + STRAYS_S
        while strays := [pid for pid in processes.children_of(os.getpid()) if pid not in self.workers]:
            for pid in strays:
                kill_and_reap(pid, *processes.descendants_of(pid))
            if time.monotonic() > deadline:
                return

    def end_everything(self) -> None:
        """Kill and reap all descendants, when the agent has ended."""
        while pids := processes.descendants_of(os.getpid()):
            kill_and_reap(*pids)


def kill_and_reap(*pids: int) -> None:
    """Kill these processes and reap those that are children, without waiting for any."""
    for pid in pids:
        processes.kill_quietly(pid)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    time.sleep(0.001)


def main() -> None:
    """Serve an agent until it has ended; for ``python -m hopsml.cluster.forking.fork_server``."""
    descriptor, parent, *modules = sys.argv[1:]
    processes.die_with_parent(int(parent))
    processes.write_no_core_dumps()  # also applies to workers, runners and sidecars
    processes.become_subreaper()
    server = ForkServer(socket.socket(fileno=int(descriptor)), tuple(modules))
    try:
        server.serve()
    finally:
        server.end_everything()


if __name__ == "__main__":
    main()
