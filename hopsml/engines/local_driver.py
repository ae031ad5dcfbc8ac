"""Driver as a process of this machine, under a supervisor that outlives whoever started it.

    <folder>/lock         locked by the supervisor while it is alive
    <folder>/running      process IDs and start times of the supervisor and its driver
    <folder>/output.log   output of the driver
    <folder>/ended        exit status of the driver; written last

The supervisor is ``python -m hopsml.engines.local_driver FOLDER``, which reads its order as JSON from standard input:
the environment may contain secrets, which must not appear in a file or a command line. Disk space for the state
files is allocated before the driver starts, so that a full disk hides neither its start nor its exit status.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from hopsml.core import file_locks, processes
from hopsml.core.newer_python import module_arguments
from hopsml.core.states import Lifecycle
from hopsml.errors import ClusterError
from hopsml.storage import durable, python_child

LOCK, RUNNING, ENDED, OUTPUT = "lock", "running", "ended", "output.log"
ROOM = 4096  # size of a state file in bytes
LOCK_TIMEOUT_S = 5.0  # a process that reads the status holds the lock for a moment
_LONGEST_PROBLEM = 300  # characters; each takes up to 12 bytes in JSON, and all of it must fit into ``ROOM``
INTERRUPT_S = 15.0  # for a driver to cancel its run and write its files
TERMINATE_S = 5.0
_SERVER = b"\0-m\0hopsml.serving.supervisor\0"  # part of the command line of a server of models
_KINDS = {"pid": int, "ticks": int, "driver": int, "driver_ticks": int, "host": str, "pid_namespace": str}
_KINDS |= {"status": int, "problem": str}  # of the values in state files
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class DriverOrder:
    """Driver to be started.

    Attributes:
        command: Command line.
        environment: Environment variables of the driver.
        is_bound: True if the driver ends with its supervisor, which then ends it in order on SIGTERM, and kills all
            processes that the driver has left; False if the supervisor ignores signals, and its driver outlives it.
        masks_interrupt: True to start the driver with SIGINT blocked, which it unblocks itself: while Python starts,
            the signal would cause a traceback.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    is_bound: bool = False
    masks_interrupt: bool = False


@dataclass(frozen=True)
class DriverStatus:
    """Status of a driver.

    Attributes:
        state: STARTING, RUNNING, FINISHED, FAILED, STOPPED (killed) or LOST (its supervisor left no exit status).
        exit_status: Exit status, negative for a signal; 127 if the driver could not be started.
        problem: Error of a start that failed.
        was_requested: True if the supervisor was requested to end the driver.
    """

    state: Lifecycle
    exit_status: int = 0
    problem: str = ""
    was_requested: bool = False


def start(folder: Path, order: DriverOrder) -> None:
    """Start a supervisor, which starts the driver, and return once it has detached itself.

    Args:
        folder: Existing folder, in which no driver was started before.
        order: The driver.

    Raises:
        OSError: The supervisor cannot be started, or the folder belongs to another driver.
    """
    with (
        open(folder / LOCK, "w") as lock,
        open(folder / OUTPUT, "ab") as output,
        os.fdopen(os.memfd_create("hopsml-order"), "w+b") as content,
    ):
        _lock(lock.fileno(), folder)  # never unlocked here: the supervisor shares the lock
        content.write(json.dumps(vars(order) | {"environment": dict(order.environment)}).encode())
        content.seek(0)
        supervisor = subprocess.run(  # ends once the supervisor has detached itself
            [sys.executable, *module_arguments("hopsml.engines.local_driver"), str(folder)],
            check=False,
            stdin=content,
            stdout=output,
            stderr=output,
            env=python_child.environment(),
            pass_fds=[lock.fileno()],  # the supervisor holds the lock further
            start_new_session=True,
        )
    if supervisor.returncode:
        raise OSError(
            f"the supervisor of a driver left with exit status {supervisor.returncode}; see {folder}/{OUTPUT}"
        )


def status_of(folder: Path) -> DriverStatus | None:
    """Return the status of the driver of a folder; None if none has been started there."""
    if (ended := _ended(folder)) is not None:
        return ended
    running = _read(folder / RUNNING, "pid", "ticks") or {}
    if _lives(running, "driver") or file_locks.is_locked(folder / LOCK) or _lives(running):
        return DriverStatus(Lifecycle.RUNNING if "driver" in running else Lifecycle.STARTING)
    if (ended := _ended(folder)) is not None:  # it may have ended since the first read
        return ended
    return DriverStatus(Lifecycle.LOST) if running else None


def signal_driver(folder: Path, number: int) -> None:
    """Send a signal to the driver's process group, if the recorded driver still runs."""
    running = _read(folder / RUNNING, "driver", "driver_ticks")
    if running and _lives(running, "driver"):
        processes.kill_group_quietly(running["driver"], number)


def request_end(folder: Path) -> bool:
    """Request the supervisor of a bound driver to end it; return False if there is no supervisor to ask yet.

    Raises:
        ClusterError: The supervisor runs on another machine, or in another container.
    """
    running = _read(folder / RUNNING, "pid", "ticks", "host", "pid_namespace")
    if running is None:
        return False
    end_supervisor(folder, running)
    return True


def end_supervisor(folder: Path, running: Mapping[str, Any]) -> None:
    """Request the supervisor of a folder, with these recorded facts, to end its driver.

    Raises:
        ClusterError: It runs on another machine, or in another container.
    """
    if running["pid_namespace"] != processes.pid_namespace():
        raise ClusterError(f"{folder} runs on {running['host']}, out of reach from here; end it there")
    if _lives(running):
        processes.kill_quietly(running["pid"], signal.SIGTERM)
        processes.kill_quietly(running["pid"], signal.SIGCONT)  # a stopped process handles no SIGTERM


def read_part(path: Path, offset: int, limit: int) -> tuple[bytes, int, int] | None:
    """Read a part of a log file; None if it cannot be read.

    Args:
        path: Path of the file.
        offset: Offset of the first byte; a negative value counts from the end.
        limit: Maximum number of bytes.

    Returns:
        The bytes, the offset of the first one, and the length of the file.
    """
    try:
        with open(path, "rb") as file:
            length = os.fstat(file.fileno()).st_size
            begin = max(0, length + offset) if offset < 0 else min(offset, length)
            file.seek(begin)
            return file.read(min(limit, length - begin)), begin, length
    except OSError:
        return None


def _lock(descriptor: int, folder: Path) -> None:
    """Lock the open lock file of a folder; raise OSError if another driver's supervisor holds it."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while not file_locks.try_lock(descriptor):
        if (folder / RUNNING).exists() or time.monotonic() > deadline:
            raise OSError(f"{folder} is another driver's, which holds {folder / LOCK}; start this one in a new folder")
        time.sleep(0.01)


def _lives(running: Mapping[str, Any], role: Literal["pid", "driver"] = "pid") -> bool:
    """Return True if the recorded supervisor, or its driver, still runs: that process, and none with its pid later."""
    if role not in running or running.get("pid_namespace", here := processes.pid_namespace()) != here:
        return False
    began: int = running.get("ticks" if role == "pid" else "driver_ticks", 0)
    return processes.start_time_of(running[role]) == began


def _ended(folder: Path) -> DriverStatus | None:
    """Return the status of a driver that has ended; None if that is not recorded."""
    ended = _read(folder / ENDED, "status", "problem")
    if ended is None:
        return None
    status, was_requested = ended["status"], bool(ended.get("requested"))
    if was_requested or status == -signal.SIGKILL:
        state = Lifecycle.STOPPED
    else:
        state = Lifecycle.FAILED if status else Lifecycle.FINISHED
    return DriverStatus(state, status, str(ended["problem"]), was_requested)


def _read(path: Path, *names: str) -> dict[str, Any] | None:
    """Read a JSON file that has these keys; None if it is missing, incomplete, damaged or of another kind.

    Process IDs below 2 are damage: a signal to -1, 0 or 1 as a process or group would reach all processes of this user.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or any(name not in found for name in names):
        return None
    if any(type(found[name]) is not kind for name, kind in _KINDS.items() if name in found):
        return None
    return found if all(found.get(role, 2) > 1 for role in ("pid", "driver")) else None


# ------------------------------------------------------------------------------------------ supervisor


class _EndRequested(BaseException):
    """Raised by the handler of SIGTERM."""


def main(folder: Path, order: DriverOrder) -> None:
    """Create the state files, detach from the starting process, run the driver, and record its exit status."""
    processes.write_no_core_dumps()  # of the driver as well: its variables may hold secrets
    try:
        running = os.open(folder / RUNNING, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.exit(f"{folder} is another driver's")
    fresh = folder / f"{ENDED}.new"
    try:
        os.write(running, b" " * ROOM)
        fresh.write_bytes(b" " * ROOM)
    except OSError as error:
        (folder / RUNNING).unlink()  # nothing has been started
        sys.exit(f"{folder}: {error.strerror}")
    if os.fork():  # the starter waits only for this process, and has no child to reap later
        os._exit(0)
    os.setsid()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # signals that end the starter must not end its drivers
    if order.is_bound:
        processes.become_subreaper()
        signal.signal(signal.SIGTERM, _on_sigterm)
    status, problem, was_requested = _supervise(order, folder, running)
    ended = {"status": status, "problem": problem[:_LONGEST_PROBLEM], "requested": was_requested, "at_s": time.time()}
    with open(fresh, "r+b") as file:
        file.write(json.dumps(ended).encode().ljust(ROOM))
    durable.sync_file(fresh)
    fresh.rename(folder / ENDED)
    durable.sync_file(folder)


def _supervise(order: DriverOrder, folder: Path, running: int) -> tuple[int, str, bool]:
    """Run the driver; return its exit status, the error of a failed start, and whether its end was requested."""
    driver: subprocess.Popen[bytes] | None = None
    stays: Callable[[int], bool] = processes.match_no_process
    own: dict[str, Any] = {"pid": os.getpid(), "ticks": processes.start_time_of(os.getpid()) or 0}
    own |= {"host": socket.gethostname(), "pid_namespace": processes.pid_namespace()}
    try:
        os.pwrite(running, json.dumps(own).encode().ljust(ROOM), 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until ``driver`` is set
        driver = _start(order, folder, running, own)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        status = driver.wait()
        stays = _serves
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return status, "", False
    except _EndRequested:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return -signal.SIGTERM if driver is None else _end(driver), "", True
    except OSError as error:
        return 127, f"{order.command[0]} could not be started: {error.strerror}", False
    finally:
        if order.is_bound:
            processes.end_descendants(stays=stays)


def _start(order: DriverOrder, folder: Path, running: int, own: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the driver in its own process group.

    It records itself before it executes its program: if it outlives its supervisor, it is found at whatever moment
    that is killed.
    """
    me = os.getpid()

    def begin() -> None:
        if order.is_bound:
            processes.die_with_parent(me)
        facts = own | {"driver": os.getpid(), "driver_ticks": processes.start_time_of(os.getpid()) or 0}
        os.pwrite(running, json.dumps(facts).encode().ljust(ROOM), 0)
        if order.masks_interrupt:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    with open(folder / OUTPUT, "ab") as output:
        return subprocess.Popen(
            order.command,
            env=dict(order.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=begin,
        )


def _serves(pid: int) -> bool:
    """Return True for a server process of ``hopsml.serving``, which outlives its starter unless that is ended early."""
    try:
        return _SERVER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _end(driver: subprocess.Popen[bytes]) -> int:
    """Interrupt the driver as Ctrl-C does, so that it cancels its run; then terminate it, then kill it."""
    for number, patience_s in ((signal.SIGINT, INTERRUPT_S), (signal.SIGTERM, TERMINATE_S)):
        processes.kill_quietly(driver.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return driver.wait(patience_s)
    processes.kill_group_quietly(driver.pid)
    return driver.wait()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Unwind the main thread on SIGTERM."""
    raise _EndRequested


if __name__ == "__main__":
    main(Path(sys.argv[1]), DriverOrder(**json.load(sys.stdin)))
