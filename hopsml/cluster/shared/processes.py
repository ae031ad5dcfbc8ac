"""Linux process control that the agent, the fork server and the worker share: death signals, subreapers, descendants."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PR_SET_PTRACER = 0x59616D61
_F_SETSIG = 10  # fcntl(2): the signal instead of SIGIO
UNREPORTED = 113  # exit status of a worker that could not tell how its function ended
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)


def open_standard_streams() -> None:
    """Put /dev/null in place of stdin, stdout and stderr where they are closed, as under some daemons, for children too.

    What is opened next would get their numbers: libuv aborts when it closes such a socket, and a child would write its
    errors into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def outlive_parent() -> None:
    """Undo ``die_with_parent``: live on when the parent ends."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def die_with_parent(expected_parent: int, number: int = signal.SIGKILL) -> None:
    """Get this signal when the parent THREAD ends; exits at once when the parent is gone already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != expected_parent:
        os._exit(9)


def write_no_core_dumps() -> None:
    """Disable core dumps of this process and of all processes it starts: its memory holds tokens and secrets.

    The hard limit is unchanged, so that a function that is being debugged can raise the limit for itself.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def let_look(pid: int) -> None:
    """Let a process, with all that it starts, look into this one where Yama (``kernel.yama.ptrace_scope=1``) forbids it.

    A kernel without Yama refuses the call, and needs none.
    """
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_PTRACER, pid)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process instead of init, so that it can end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def be_no_subreaper() -> None:
    """Undo ``become_subreaper``: orphans go to the next reaper above."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def is_subreaper() -> bool:
    """Whether orphaned descendants come to this process."""
    value = ctypes.c_int()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_GET_CHILD_SUBREAPER)")
    return bool(value.value)


def wake_by(connection: socket.socket) -> None:
    """Let the kernel send SIGCONT to this process with whatever comes through this socket, its end included.

    A process that was stopped (SIGSTOP) goes on when it is wanted, and when whoever wanted it is gone; for one that runs
    the signal means nothing.
    """
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, _F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)


def _parents() -> dict[int, int]:
    """pid -> parent's pid of every process; not every kernel offers /proc/PID/task/TID/children."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            found[int(entry)] = int(text[text.rindex(")") + 2 :].split()[1])
    return found


def is_stopped(pid: int) -> bool:
    """Whether the process is held by SIGSTOP or the like; one that a debugger has halted is not."""
    return _state(pid) == "T"


def has_ended(pid: int) -> bool:
    """Whether there is no such process, or one that only waits for being reaped."""
    return _state(pid) in ("", "Z", "X")


def _state(pid: int) -> str:
    """One letter, as of proc(5); empty where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text[text.rindex(")") + 2]


def descendants_of(pid: int) -> list[int]:
    """Pids of all descendants that are alive or not yet reaped, parents before their children."""
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


def nobody(pid: int) -> bool:
    """Of no process; see ``end_descendants``."""
    return False


def end_descendants(spare: int = 0, stays: Callable[[int], bool] = nobody) -> None:
    """Kill whatever is below this process, and reap it. For a subreaper, to which orphans come as well.

    ``spare``: a child that stays, and has no children. ``stays``: which of them stay, with all that is below them.
    """
    while below := [pid for pid in _below(os.getpid(), stays) if pid != spare]:
        for pid in below:
            kill_quietly(pid)
        for pid in set(below) & set(children_of(os.getpid())):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _below(pid: int, stays: Callable[[int], bool]) -> list[int]:
    found = descendants_of(pid)
    staying = {below for one in filter(stays, found) for below in (one, *descendants_of(one))}
    return [one for one in found if one not in staying]


def end_adopted(spare: Collection[int], timeout_s: float = 2.0) -> None:
    """Kill and reap what has come to this subreaper from below, with its descendants: children that lead another session
    than this process's, or are in one. ``spare``: those that this process has started in sessions of their own.

    Returns when two looks in a row have found nobody, or after ``timeout_s`` seconds: what hangs in the kernel cannot be
    waited for.
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
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def children_of(pid: int) -> list[int]:
    """Pids of the direct children of a process, zombies among them."""
    return [child for child, parent in _parents().items() if parent == pid]


def carrying(variable: str, value: str) -> list[int]:
    """Pids of the processes that were started with this environment variable, wherever they have re-parented to."""
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
    """Send a signal to a process; nothing happens where it is gone, or another user's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group_quietly(pgid: int, number: int = signal.SIGKILL) -> bool:
    """Signal a process group that may be gone; False when there is none."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def was_killed(status: int) -> bool:
    """Whether a wait status says that somebody ended the process: a signal that it does not get by a crash of its own."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) not in _CRASHES


def describe_exit(status: int, sender: str = "hopsml did not send it") -> str:
    """Describe a wait status in words. ``sender``: what is known of who sent SIGKILL, where that has ended the process."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        hint = ""
        if number == signal.SIGKILL:
            hint = f"; {sender}"
        elif number in _CRASHES:
            hint = "; a crash in native code: the log ends with the Python frames that led there"
        return f"killed by signal {number} ({name}){hint}"
    code = os.WEXITSTATUS(status)
    if code == UNREPORTED:
        return (
            "its function has ended, which could not be told, because something had closed the worker's descriptors "
            "(os.closerange, a library that makes daemons?): the traceback is in its log; close only what you opened"
        )
    return f"left the process with exit status {code} without returning from the training function"
