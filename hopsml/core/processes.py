"""Processes of this machine: identity, control (death signals, subreapers, descendants), and how they have ended.

``python -m hopsml.core.processes PARENT PROGRAM ARGUMENTS... PIDFD`` becomes a program that ends with process PARENT.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PR_SET_PTRACER = 0x59616D61
_F_SETSIG = 10  # fcntl(2): sets the signal sent instead of SIGIO
NICENESS = 5  # of a program that observes another process, so that it does not compete with it
UNREPORTED = 113  # exit status of a worker that could not report how its function ended
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)


def open_standard_streams() -> None:
    """Open /dev/null as stdin, stdout and stderr if these are closed, as under some daemons; children inherit it.

    Files opened next would get their numbers: libuv aborts when it closes such a socket, and a child process would
    write its errors into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _prctl(option: int, value: int) -> None:
    """Call prctl(2); raise OSError on failure."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def outlive_parent() -> None:
    """Undo ``die_with_parent``: continue when the parent ends."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def die_with_parent(expected_parent: int, number: int = signal.SIGKILL) -> None:
    """Request this signal for the end of the parent THREAD; exit at once if the parent has already ended."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != expected_parent:
        os._exit(9)


def exit_with_parent(parent_pid: int, parent_pidfd: int = -1) -> None:
    """Wait for the end of the parent process, then exit; for a thread of its own.

    ``die_with_parent`` would end this process with the parent's THREAD that started it.

    Args:
        parent_pid: The parent's process id.
        parent_pidfd: Its pidfd; -1 on kernels without them.
    """
    if parent_pidfd >= 0:
        select.select([parent_pidfd], [], [])
    else:
        while os.getppid() == parent_pid:
            time.sleep(0.5)
    os._exit(0)


def write_no_core_dumps(pid: int = 0) -> None:
    """Disable core dumps of a process and of all that it starts from now on: its memory holds tokens and secrets.

    The hard limit is unchanged, so that a function that is being debugged can raise the limit for itself.

    On platforms that limit only the own process, such as macOS, nothing is done for another one.

    Args:
        pid: The process; 0: this one.

    Raises:
        ProcessLookupError: It has ended.
    """
    if not hasattr(resource, "prlimit"):
        if not pid:
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        return
    _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))


def allow_tracing_by(pid: int) -> None:
    """Allow a process and its descendants to trace this one where Yama (``kernel.yama.ptrace_scope=1``) forbids it.

    A kernel without Yama refuses the call, and does not need it.
    """
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_PTRACER, pid)


def become_subreaper() -> None:
    """Make this process a subreaper: orphaned descendants become its children instead of init's.

    It can then end them.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stop_being_subreaper() -> None:
    """Undo ``become_subreaper``: orphans go to the next reaper above."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def is_subreaper() -> bool:
    """Return True if this process is a subreaper, to which orphaned descendants re-parent."""
    value = ctypes.c_int()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_GET_CHILD_SUBREAPER)")
    return bool(value.value)


def wake_on_data(connection: socket.socket) -> None:
    """Make the kernel send SIGCONT to this process for all data that arrives on this socket, and for its end.

    A process that was stopped (SIGSTOP) continues when it gets a request, or when the requesting process has gone; a
    running process ignores the signal.
    """
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, _F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)


def _stat(pid: int | str) -> list[bytes]:
    """Return the fields of proc(5)'s stat after the name, from the state on; [] if there is no such process.

    They are bytes: any user of the host may give a process a name that is no text.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _parents() -> dict[int, int]:
    """Return the parent's pid of every process; not every kernel offers /proc/PID/task/TID/children."""
    found = {entry: _stat(entry) for entry in os.listdir("/proc") if entry.isdigit()}
    return {int(pid): int(fields[1]) for pid, fields in found.items() if fields}


def is_stopped(pid: int) -> bool:
    """Return True if the process is stopped by SIGSTOP or the like; False if a debugger has halted it."""
    return _state(pid) == "T"


def has_ended(pid: int) -> bool:
    """Return True if there is no such process, or only a zombie."""
    return _state(pid) in ("", "Z", "X")


def _state(pid: int) -> str:
    """Return the state letter of proc(5); "" if there is no such process."""
    fields = _stat(pid)
    return fields[0].decode() if fields else ""


def start_time_of(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None if it does not exist or has ended.

    This distinguishes processes that used one pid one after another.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None


def pid_namespace() -> str:
    """Return an id of the set of processes in which a pid is unique: this boot of this machine or container.

    "" where it cannot be read.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def is_other_container(namespace: str) -> bool:
    """Return True for the ``pid_namespace`` of another container that may still exist: of this boot of the machine."""
    own = pid_namespace()
    return namespace not in ("", own) and namespace.partition("/")[0] == own.partition("/")[0]


def descendants_of(pid: int) -> list[int]:
    """Return the pids of all descendants that are alive or not yet reaped, parents before their children."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents().items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    queue = list(children.get(pid, ()))
    while queue:
        current = queue.pop(0)
        found.append(current)
        queue += children.get(current, ())
    return found


def match_no_process(pid: int) -> bool:
    """Return False for every process: the default of ``end_descendants``."""
    return False


def end_descendants(spare: int = 0, stays: Callable[[int], bool] = match_no_process) -> None:
    """Kill and reap all descendants of this process; a subreaper's include orphans.

    Args:
        spare: pid of a child that is not killed; it must have no children.
        stays: returns True for processes that are not killed, nor their descendants.
    """
    while below := [pid for pid in _below(os.getpid(), stays) if pid != spare]:
        for pid in below:
            kill_quietly(pid)
        for pid in set(below) & set(children_of(os.getpid())):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _below(pid: int, stays: Callable[[int], bool]) -> list[int]:
    """Return the descendants of a process without those that stay and theirs."""
    found = descendants_of(pid)
    staying = {below for one in filter(stays, found) for below in (one, *descendants_of(one))}
    return [one for one in found if one not in staying]


def end_adopted_orphans(spare: Collection[int], timeout_s: float = 2.0) -> None:
    """Kill and reap the orphans that have re-parented to this subreaper, with their descendants.

    Children in another session than this process's count as orphans. Returns when two checks in a row have found none,
    or after ``timeout_s`` seconds, as a process that hangs in the kernel cannot be awaited.

    Args:
        spare: pids that this process itself has started in other sessions.
        timeout_s: time limit in seconds.
    """
    deadline, looks_without = time.monotonic() + timeout_s, 0
    while looks_without < 2 and time.monotonic() < deadline:
        adopted = [pid for pid in children_of(os.getpid()) if pid not in spare and _session(pid) != os.getsid(0)]
        for pid in adopted:
            for below in (pid, *descendants_of(pid)):
                kill_quietly(below)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        looks_without = 0 if adopted else looks_without + 1
        time.sleep(0.002)


def _session(pid: int) -> int:
    """Return the session id of a process; -1 if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def children_of(pid: int) -> list[int]:
    """Return the pids of the direct children of a process, including zombies."""
    return [child for child, parent in _parents().items() if parent == pid]


def processes_with_variable(variable: str, value: str) -> list[int]:
    """Return the pids of all processes that were started with this environment variable, whatever their parents are."""
    mark = f"{variable}={value}".encode()
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
            except OSError:
                continue
    return found


def kill_quietly(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process; ignored if it has ended, or belongs to another user."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group_quietly(pgid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal to a process group; return False if there is none, or it may not be signalled."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have names relative to the first one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"


def was_killed(status: int) -> bool:
    """Return True if a wait status shows a process killed from outside, by a signal other than those of crashes."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) not in _CRASHES


KERNEL_KILL = "the kernel sent this signal for lack of memory"  # as part of a worker's cause of failure


def describe_exit(status: int, sender: str = "hopsml did not send it") -> str:
    """Describe a wait status in words.

    Args:
        status: wait status as of wait(2).
        sender: what is known of the sender of SIGKILL, if that has ended the process.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal_name(number)
        hint = ""
        if number == signal.SIGKILL:
            hint = f"; {sender}"
        elif number in _CRASHES:
            hint = "; a crash in native code: the log ends with the Python frames that led there"
        return f"killed by signal {number} ({name}){hint}"
    code = os.WEXITSTATUS(status)
    if code == UNREPORTED:
        return (
            "the training function has ended, but its result could not be sent, since the worker's file descriptors "
            "were closed (by os.closerange, or by a library that creates daemons?). Its log has the traceback; close "
            "only descriptors that the function has opened"
        )
    return f"the process exited with status {code} before the training function returned"


def process_name() -> str:
    """Return the name of this process: its machine, its id, its start time, and a unique suffix."""
    return f"{_machine()}.{os.getpid()}.{start_time_of(os.getpid())}.{secrets.token_hex(4)}"


def has_named_process_ended(holder: str) -> bool:
    """Return True if a process has certainly ended: it belonged to this machine, and does not exist any more."""
    machine, _, rest = holder.partition(".")
    numbers = rest.split(".")
    if machine != _machine() or machine == "-" or len(numbers) != 3 or not (numbers[0] + numbers[1]).isdecimal():
        return False
    pid, started = int(numbers[0]), int(numbers[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return started != (start_time_of(pid) or started)  # None: the start time is not visible to this user


def _machine() -> str:
    """Return the scope in which process ids are unique: the machine's boot and the PID namespace (a container)."""
    boot, _, namespace = pid_namespace().partition("/")
    return f"{boot}-{namespace.removeprefix('pid:[').removesuffix(']')}"


def run_with_deadline(command: list[str], timeout_s: float = 15.0, cwd: str | None = None) -> tuple[str, str]:
    """Run a process, and return its output (including standard error) and its problem; it is killed at the deadline."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return "", f"it did not end within {timeout_s:g} s"
    except OSError as error:
        return "", error.strerror or str(error)
    output = done.stdout.decode(errors="replace")
    return output, "" if done.returncode == 0 else f"it ended with status {done.returncode}: {output.strip()[-200:]}"


def main(arguments: list[str]) -> None:
    """Execute a program in this process, at lower priority, with a death signal for the parent's end, which survives exec.

    Args:
        arguments: Pid of the parent, the program's path and arguments, and what ``python_child`` appends.
    """
    parent, *command, _ = arguments
    die_with_parent(int(parent))
    os.nice(NICENESS)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
