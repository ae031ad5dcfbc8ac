"""Python on macOS, simulated on Linux: Python imports this first if the folder is on PYTHONPATH, in child processes too.

Absent here as there: /proc, prctl(2), epoll, eventfd, memfd, pidfd, pipe2, CPU affinity, file preallocation, abstract
sockets, and options of sockets. ``os.fork`` is refused, since system libraries of macOS are not safe after it. psutil,
which has a version for macOS, is imported before and still reads /proc. Present as there: ``resource``, signal masks.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable
from types import ModuleType
from typing import Any

import psutil  # noqa: F401

_ABSENT = {
    os: (
        "eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "memfd_create", "MFD_CLOEXEC",
        "pidfd_open", "pipe2", "sched_getaffinity", "sched_setaffinity", "posix_fallocate", "posix_fadvise",
        "copy_file_range", "splice", "setns", "unshare", "setresuid", "setresgid", "getrandom", "waitid", "P_ALL",
        "P_PID", "WNOWAIT", "O_TMPFILE", "O_DIRECT", "O_PATH", "getxattr", "listxattr", "setxattr",
    ),
    select: ("epoll", "EPOLLIN"),
    socket: (
        "SO_PEERCRED", "SO_PASSCRED", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "TCP_QUICKACK", "SOCK_CLOEXEC",
        "SOCK_NONBLOCK", "MSG_NOSIGNAL",
    ),
    signal: ("sigtimedwait", "sigwaitinfo", "SIGPWR", "SIGRTMIN", "SIGRTMAX", "SIGSTKFLT", "pidfd_send_signal"),
    resource: ("prlimit", "RLIMIT_OFILE", "RLIMIT_RTPRIO"),
}  # fmt: skip
_HIDDEN = ("/proc", "/sys", "/dev/shm")


def _is_hidden(path: Any) -> bool:
    """Return True for a path that macOS does not have; psutil may still read it."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if isinstance(path, int) or caller.startswith("psutil"):
        return False
    text = os.fsdecode(path)
    return any(text == folder or text.startswith(f"{folder}/") for folder in _HIDDEN)


def _hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if _is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        return function(path, *arguments, **options)

    return call


def _refuse_fork() -> int:
    raise OSError(35, "os.fork() is refused: this process simulates macOS")


class _Library(ctypes.CDLL):
    """C library without the calls of Linux."""

    def __getattr__(self, name: str) -> Any:
        """Return a function of the library."""
        if self._name is None and name in ("prctl", "epoll_create1", "memfd_create", "unshare", "setns", "gettid"):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


class _Socket(socket.socket):
    """Socket without names that are not files."""

    def bind(self, address: Any) -> None:
        """Bind to an address."""
        _refuse_abstract(address)
        super().bind(address)

    def connect(self, address: Any) -> None:
        """Connect to an address."""
        _refuse_abstract(address)
        super().connect(address)


def _refuse_abstract(address: Any) -> None:
    if isinstance(address, (str, bytes)) and address[:1] in ("\0", b"\0"):
        raise FileNotFoundError(2, "No such file or directory")


def _simulate() -> None:
    sysconfig.get_config_vars()  # read from a module that is named after the platform
    proxies: Any = ModuleType("_scproxy")  # extension module of macOS, which urllib imports there
    proxies._get_proxy_settings = proxies._get_proxies = dict
    sys.modules["_scproxy"] = proxies
    for module, names in _ABSENT.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for owner, name in (
        (builtins, "open"),
        *((os, name) for name in ("open", "listdir", "stat", "readlink", "scandir")),
    ):
        setattr(owner, name, _hiding(getattr(owner, name)))
    import io

    io.open = builtins.open  # which pathlib calls
    os.fork = _refuse_fork
    ctypes.CDLL = _Library  # type: ignore[misc]
    socket.socket = _Socket  # type: ignore[misc]
    sys.platform = "darwin"
    real = os.uname()
    os.uname = lambda: os.uname_result(("Darwin", real.nodename, "24.0.0", "Darwin Kernel Version 24.0.0", "arm64"))  # type: ignore[assignment]


_simulate()
