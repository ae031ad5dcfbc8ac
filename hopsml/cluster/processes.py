"""Linux process control that the agent, the fork server and the worker share: death signals, subreapers, descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def outlive_parent() -> None:
    """Take back ``die_with_parent``."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def die_with_parent(expected_parent: int, number: int = signal.SIGKILL) -> None:
    """Get this signal when the parent THREAD ends; exits at once when the parent is gone already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != expected_parent:
        os._exit(9)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process instead of init, so that it can end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


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
    """Whether the process is held by SIGSTOP or a debugger."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] in "Tt"


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


def end_descendants(spare: int = 0) -> None:
    """Kill whatever is below this process, and reap it. For a subreaper, to which orphans come as well.

    ``spare``: a child that stays, and has no children.
    """
    while below := [pid for pid in descendants_of(os.getpid()) if pid != spare]:
        for pid in below:
            kill_quietly(pid)
        for pid in set(below) & set(children_of(os.getpid())):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children_of(pid: int) -> list[int]:
    """Pids of the direct children."""
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
    """Signal a process that may be gone."""
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


def describe_exit(status: int) -> str:
    """A wait status in words: what the user's operations people would say."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        hint = ""
        if number == signal.SIGKILL:
            hint = "; nobody in hopsml sent it: most often the kernel or YARN ended it for using too much memory"
        elif number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT):
            hint = "; a crash in native code: the log ends with the Python frames that led there"
        return f"killed by signal {number} ({name}){hint}"
    code = os.WEXITSTATUS(status)
    return f"left the process with exit status {code} without returning from the training function"
