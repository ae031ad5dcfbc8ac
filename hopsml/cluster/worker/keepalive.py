"""TCP keepalive on the connections of frameworks that do not set it themselves, such as gloo's and gRPC's.

Firewalls and NAT gateways drop the state of idle connections, and then discard their packets: if a step takes longer than
their time-out, both ends of a collective wait for ever. The kernel's probes keep that state alive, and break a connection
whose other end does not answer. A process that is stopped or busy is not affected: its kernel answers the probes.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import threading
from typing import Any

from hopsml.core import settings

INTERVAL_S = 2.0  # between two scans for new sockets: shorter than the idle time-out of any firewall
PROBES = 6  # without an answer, after which the connection is broken
_SOCKETS = "socket:["


def start(silent_s: float) -> None:
    """Start a thread that sets TCP keepalive on all present and future sockets of this process.

    Child processes inherit the sockets, but not the thread.

    Args:
        silent_s: Seconds without traffic after which the first probe is sent; 0 starts nothing.
    """
    if silent_s > 0:
        threading.Thread(target=_scan_for_ever, args=(silent_s,), name="hopsml-keepalive", daemon=True).start()


def start_by_environment() -> None:
    """Start TCP keepalive with the idle time of the variable ``HOPSML_KEEPALIVE_S``, in seconds."""
    start(settings.keepalive_s())


def _scan_for_ever(silent_s: float) -> None:
    """Scan for new sockets until the process ends."""
    known: set[str] = set()
    pause = threading.Event()
    while not pause.wait(min(INTERVAL_S, silent_s / 2)):
        known = scan(silent_s, known)


def scan(silent_s: float, known: set[str]) -> set[str]:
    """Set keepalive on all TCP sockets of this process that are not ``known``, and return the names of all its sockets.

    A socket whose owner has set keepalive is not changed. Sockets are named as in /proc, by number and inode.
    Descriptors are not duplicated: a copy would hold a connection open that its owner closes at this moment.

    Args:
        silent_s: Seconds without traffic after which the first probe is sent.
        known: Names of sockets from the scan before.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # closed since the folder was listed
            continue
        if target.startswith(_SOCKETS):
            name = f"{number} {target}"
            found.add(name)
            if name not in known:
                _keep_alive(int(number), silent_s)
    return found


def _keep_alive(descriptor: int, silent_s: float) -> None:
    """Set keepalive on a TCP socket that does not have it."""
    if _option(descriptor, socket.SO_PROTOCOL) != socket.IPPROTO_TCP or _option(descriptor, socket.SO_KEEPALIVE):
        return
    silent, pause = max(1, round(silent_s)), max(1, round(silent_s / 3))
    for option, value in (
        (socket.TCP_KEEPIDLE, silent),
        (socket.TCP_KEEPINTVL, pause),
        (socket.TCP_KEEPCNT, PROBES),
    ):
        _set(descriptor, socket.IPPROTO_TCP, option, value)
    _set(descriptor, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


@functools.cache
def _library() -> Any:
    """Return the C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def _option(descriptor: int, option: int) -> int:
    """Return an integer option at level SOL_SOCKET; -1 if it cannot be read."""
    value, size = ctypes.c_int(-1), ctypes.c_uint32(ctypes.sizeof(ctypes.c_int))
    failed = _library().getsockopt(descriptor, socket.SOL_SOCKET, option, ctypes.byref(value), ctypes.byref(size))
    return -1 if failed else value.value


def _set(descriptor: int, level: int, option: int, value: int) -> None:
    """Set an integer option; a failure is ignored, because the descriptor may have been closed or reused since."""
    number = ctypes.c_int(value)
    _library().setsockopt(descriptor, level, option, ctypes.byref(number), ctypes.sizeof(number))
