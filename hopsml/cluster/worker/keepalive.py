"""TCP keepalive on the connections of frameworks that do not set it themselves, such as gloo's and gRPC's.

Firewalls and NAT gateways forget connections that are silent for a while and drop what comes on them later: with steps that
take longer both ends of a collective wait for ever. The kernel's probes keep such a connection known, and break one whose
other end does not answer. A process that is stopped or busy does no harm: its kernel answers.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import threading
from typing import Any

from hopsml import settings

INTERVAL_S = 2.0  # between two scans for new sockets: less than any firewall allows
PROBES = 6  # without an answer, after which the connection is broken
_SOCKETS = "socket:["


def start(silent_s: float) -> None:
    """Set keepalive on the TCP sockets of this process, now and as they come: the first probe after ``silent_s`` seconds.

    0 starts nothing. Children do not inherit the thread, but the sockets.
    """
    if silent_s > 0:
        threading.Thread(target=_scan_for_ever, args=(silent_s,), name="hopsml-keepalive", daemon=True).start()


def start_by_environment() -> None:
    """As ``start``, after the seconds that ``HOPSML_KEEPALIVE_S`` says."""
    start(settings.keepalive_s())


def _scan_for_ever(silent_s: float) -> None:
    known: set[str] = set()
    pause = threading.Event()
    while not pause.wait(min(INTERVAL_S, silent_s / 2)):
        known = scan(silent_s, known)


def scan(silent_s: float, known: set[str]) -> set[str]:
    """Set keepalive on all TCP sockets of this process that are not ``known``, and return all that it has.

    A socket whose owner has set keepalive stays as it is. Sockets are named as in /proc, by number and inode. Descriptors
    are used without a copy, which would hold a connection open that its owner closes at this moment.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # closed by now
            continue
        if target.startswith(_SOCKETS):
            name = f"{number} {target}"
            found.add(name)
            if name not in known:
                _keep_alive(int(number), silent_s)
    return found


def _keep_alive(descriptor: int, silent_s: float) -> None:
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
    return ctypes.CDLL(None, use_errno=True)


def _option(descriptor: int, option: int) -> int:
    """A number of the socket's own level; -1 where there is none."""
    value, size = ctypes.c_int(-1), ctypes.c_uint32(ctypes.sizeof(ctypes.c_int))
    failed = _library().getsockopt(descriptor, socket.SOL_SOCKET, option, ctypes.byref(value), ctypes.byref(size))
    return -1 if failed else value.value


def _set(descriptor: int, level: int, option: int, value: int) -> None:
    """Set it where it can be: the descriptor may have been closed, or be another one's by now, which does no harm."""
    number = ctypes.c_int(value)
    _library().setsockopt(descriptor, level, option, ctypes.byref(number), ctypes.sizeof(number))
