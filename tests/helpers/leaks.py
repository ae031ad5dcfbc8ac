"""Detection of processes, threads, sockets, variables and files that a test leaves behind.

    before = Snapshot.take(test_id)
    ...                                   # the test
    for line in leaks_since(before): ...  # empty, or one line for each leak

Checked are processes (descendants, and those that left the process tree but have the test's mark in their
environment), threads, listening sockets, environment variables and entries of the temporary folder.
Things that fixtures of a wider scope start belong to no test: pytest sets them up before the snapshot.
If they are started later, within a test, wrap the start in ``not_of_this_test()``.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.helpers import clock

MARK = "HOPSML_TEST_ID"  # in os.environ during a test; detached descendants have it as well
GRACE_S = 90.0  # for what ends by itself: a replacement agent whose driver has ended retries for two leases

# Variables that a library sets at its import, for good; a test cannot help it.
LIBRARY_VARIABLES = (
    "KERAS_", "TORCHINDUCTOR_", "TF2_BEHAVIOR", "TF_CPP_", "TF_ENABLE_ONEDNN_OPTS", "KMP_", "OMP_", "GRPC_", "ABSL_", "JPY_",
    "SPARK_AUTH_SOCKET", "SPARK_BUFFER_SIZE", "PYSPARK_PIN_THREAD", "PYTEST_", MARK,
)  # fmt: skip

# Threads that a library keeps for the life of the process, by the module that their class or function is
# from.
LIBRARY_THREADS = (
    "py4j.",
    "pyspark.",
    "tqdm.",
    "pytest_timeout",
    "IPython.",
    "ipykernel.",
    "tensorflow.",
    "keras.",
)
LIBRARY_THREAD_NAMES = ("fsspecIO",)  # fsspec's event loop

# Helper processes that multiprocessing keeps until the process ends, files of TensorFlow's autograph, and locks of uv's
# builds.
LIBRARY_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
LIBRARY_FILES = ("__autograph_generated_file", "torchinductor_", "__pycache__", "uv-setuptools-")


@dataclass(frozen=True)
class Process:
    """One live process; ``started`` (clock ticks since boot) distinguishes successive processes with one pid."""

    pid: int
    parent: int
    started: int
    command: str


@dataclass(frozen=True)
class Snapshot:
    """State before a test."""

    test_id: str
    pids: frozenset[int]  # of every process on the machine
    newest: int  # the last pid that the kernel has given out
    ticks: float  # clock ticks since boot
    threads: frozenset[threading.Thread]
    listeners: frozenset[int]  # inodes
    environment: dict[str, str]
    temporary: frozenset[str]

    @classmethod
    def take(cls, test_id: str) -> Snapshot:
        """Record the present state; ``test_id`` is the value of MARK during the test."""
        return cls(
            test_id=test_id,
            newest=newest_pid(),
            ticks=time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"),
            pids=frozenset(all_pids()),
            threads=frozenset(threading.enumerate()),
            listeners=frozenset(listening_sockets()),
            environment=dict(os.environ),
            temporary=frozenset(os.listdir(tempfile.gettempdir())),
        )


class _Exempt:
    """Resources started within a test that belong to a fixture of a wider scope."""

    def __init__(self) -> None:
        self.pids: set[tuple[int, int]] = set()
        self.threads: set[threading.Thread] = set()
        self.listeners: set[int] = set()
        self.temporary: set[str] = set()


EXEMPT = _Exempt()


@contextmanager
def not_of_this_test() -> Iterator[None]:
    """Assign resources started within this block to a fixture that outlives the test."""
    before = Snapshot.take("")
    mark = os.environ.pop(MARK, None)
    try:
        yield
    finally:
        if mark is not None:
            os.environ[MARK] = mark
        after = Snapshot.take("")
        EXEMPT.pids |= {(found.pid, found.started) for found in _fresh(before)}
        EXEMPT.threads |= after.threads - before.threads
        EXEMPT.listeners |= after.listeners - before.listeners
        EXEMPT.temporary |= after.temporary - before.temporary


# ---------------------------------------------------------------------- processes


def all_pids() -> Iterator[int]:
    """Return the pids of all processes of the machine."""
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def newest_pid() -> int:
    """Return the last assigned pid; if it has decreased, the kernel has wrapped around."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[4])


def all_processes() -> Iterator[Process]:
    """Return all live processes of the machine, without zombies."""
    return filter(None, map(read_process, all_pids()))


def read_process(pid: int) -> Process | None:
    """Return the live process ``pid``, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, fields = text.partition(b"(")[2].rpartition(b")")[0], text.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), name.decode(errors="replace"))


def new_processes(before: Snapshot) -> list[Process]:
    """Return live processes of the test: with its mark in the environment, or descendants of this process.

    A descendant of an older child (a Python worker of a session's JVM, for example) belongs to that child.
    """
    fresh = {found.pid: found for found in _fresh(before) if (found.pid, found.started) not in EXEMPT.pids}
    ours = [found for found in fresh.values() if _has_mark(found.pid, before.test_id) or _is_ours(found, fresh)]
    return [found for found in ours if not any(library in described(found) for library in LIBRARY_PROCESSES)]


def _fresh(before: Snapshot) -> Iterator[Process]:
    """Return live processes started later. Older ones are not read, as that takes longer than most tests."""
    wrapped_around = newest_pid() < before.newest
    for pid in all_pids():
        is_old = pid in before.pids
        if (
            (wrapped_around or not is_old)
            and (found := read_process(pid))
            and (not is_old or found.started > before.ticks)
        ):
            yield found


def _has_mark(pid: int, test_id: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={test_id}".encode() in file.read().split(b"\0")
    except OSError:  # ended, or of another user
        return False


def _is_ours(found: Process, fresh: dict[int, Process]) -> bool:
    while found.parent != os.getpid():
        parent = fresh.get(found.parent)
        if parent is None:
            return False
        found = parent
    return True


def described(found: Process) -> str:
    """Return the process with its complete command line, as far as it is readable."""
    try:
        with open(f"/proc/{found.pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = ""
    return f"process {found.pid}: {(command or found.command)[:200]}"


# ---------------------------------------------------------------------- threads, sockets, variables, files


def new_threads(before: Snapshot) -> list[str]:
    """Return running threads, daemon or not, that the test started, except those of known libraries."""
    known = before.threads | EXEMPT.threads
    executors = {_executor(thread) for thread in known if thread.is_alive()} - {""}
    return [
        f"{'daemon ' if thread.daemon else ''}thread {thread.name!r} of {_origin(thread)}"
        for thread in threading.enumerate()
        if thread not in known
        and not _origin(thread).startswith(LIBRARY_THREADS)
        and thread.name not in LIBRARY_THREAD_NAMES
        and _executor(thread) not in executors  # which starts its threads one by one, as it needs them
        # a thread of C code that called into Python and cannot be joined
        and not isinstance(thread, threading._DummyThread)
    ]


def _executor(thread: threading.Thread) -> str:
    """Return the name of the thread's pool (``concurrent.futures``); "" if there is none."""
    return thread.name.rpartition("_")[0] if _origin(thread) == "concurrent.futures.thread" else ""


def _origin(thread: threading.Thread) -> str:
    """Return the module whose code the thread runs: of a bound method's object, of the function, or of its class."""
    target = getattr(thread, "_target", None)
    if owner := getattr(target, "__self__", None):
        return type(owner).__module__
    return str(getattr(target, "__module__", None) or type(thread).__module__)


def listening_sockets() -> dict[int, str]:
    """Return inode -> address of every socket, of any family, that this process listens on."""
    found: dict[int, str] = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(entry))
            if stat.S_ISSOCK(status.st_mode) and status.st_ino not in found:
                with socket.socket(fileno=os.dup(int(entry))) as copy:
                    if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found[status.st_ino] = str(copy.getsockname())
        except OSError:  # closed in the meantime
            pass
    return found


def new_listeners(before: Snapshot) -> list[str]:
    """Return sockets that the test opened and that still listen."""
    now = listening_sockets()
    return [f"listening socket {now[inode]}" for inode in now if inode not in before.listeners | EXEMPT.listeners]


def changed_names(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return environment variables that were set, changed or removed, except those that libraries set permanently."""
    changed = (name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return sorted(name for name in changed if not name.startswith(LIBRARY_VARIABLES))


def changed_variables(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the changed variables, one line each."""
    return [
        f"environment variable {name}: {before.get(name)!r} became {after.get(name)!r}"
        for name in changed_names(before, after)
    ]


def new_temporary(before: Snapshot) -> list[str]:
    """Return entries of the temporary folder that the test created."""
    folder = tempfile.gettempdir()
    fresh = set(os.listdir(folder)) - before.temporary - EXEMPT.temporary
    return [
        f"in the temporary folder: {os.path.join(folder, name)}"
        for name in sorted(fresh)
        if not name.startswith(LIBRARY_FILES) and not _is_probe(os.path.join(folder, name))
    ]


def _is_probe(path: str) -> bool:
    """True if this is a probe file of Python's tempfile, which a process killed at that moment cannot remove."""
    try:
        return re.fullmatch(r"[a-z0-9_]{8}", os.path.basename(path)) is not None and os.stat(path).st_size <= 4
    except FileNotFoundError:
        return True


# ---------------------------------------------------------------------- all together


def leaks_since(before: Snapshot, grace_s: float | None = None) -> list[str]:
    """Return a line for each leak; waits up to ``grace_s`` seconds for resources that are ending.

    Remaining processes are killed, so that later tests are unaffected.
    """
    deadline = clock.awake() + (GRACE_S if grace_s is None else grace_s)
    pause_s = 0.002
    while (left := _left(before)) and clock.awake() < deadline:
        if pause_s > 0.1:
            gc.collect()  # resources that only a reference cycle keeps open are not leaks
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)
    for process in new_processes(before):
        _kill(process)
    return left + changed_variables(before.environment, dict(os.environ))  # these do not go by waiting


def _left(before: Snapshot) -> list[str]:
    looks: list[Callable[[Snapshot], list[str]]] = [new_threads, new_listeners, new_temporary]
    return [described(found) for found in new_processes(before)] + [line for look in looks for line in look(before)]


def _kill(process: Process) -> None:
    same = read_process(process.pid)
    if same and same.started == process.started:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
