"""Access control of TensorFlow's server in a worker: only its own address, only members of its group.

The server listens on every interface and obeys any peer; libhopsml_server.so (native/server/) intercepts its system
calls. What this protects, and what it does not: docs/security.md. The same library restricts other libraries' ports to
a range.

Connections of frameworks that set no TCP keepalive, such as gloo's and gRPC's, get it here: firewalls and NAT gateways
drop the state of idle connections and discard their packets, so that both ends of a collective would wait for ever.
The kernel answers the probes for a process that is stopped or busy.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

from hopsml.core.variables import SETTINGS

INTERVAL_S = 2.0  # between two scans for new sockets: shorter than the idle time-out of any firewall
PROBES = 6  # without an answer, after which the connection is broken
_SOCKETS = "socket:["


def start_keepalive(silent_s: float) -> None:
    """Start a thread that sets TCP keepalive on all present and future sockets of this process.

    Child processes inherit the sockets, but not the thread.

    Args:
        silent_s: Seconds without traffic after which the first probe is sent; 0 starts nothing.
    """
    if silent_s > 0:
        threading.Thread(target=_scan_for_ever, args=(silent_s,), name="hopsml-keepalive", daemon=True).start()


def start_keepalive_by_environment() -> None:
    """Start TCP keepalive with the idle time of the variable ``HOPSML_KEEPALIVE_S``, in seconds."""
    start_keepalive(SETTINGS.keepalive_s)


def _scan_for_ever(silent_s: float) -> None:
    """Scan for new sockets until the process ends."""
    known: set[str] = set()
    pause = threading.Event()
    while not pause.wait(min(INTERVAL_S, silent_s / 2)):
        known = set_keepalive(silent_s, known)


def set_keepalive(silent_s: float, known: set[str]) -> set[str]:
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
        _set_option(descriptor, socket.IPPROTO_TCP, option, value)
    _set_option(descriptor, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


@functools.cache
def _c_library() -> Any:
    """Return the C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def _option(descriptor: int, option: int) -> int:
    """Return an integer option at level SOL_SOCKET; -1 if it cannot be read."""
    value, size = ctypes.c_int(-1), ctypes.c_uint32(ctypes.sizeof(ctypes.c_int))
    failed = _c_library().getsockopt(descriptor, socket.SOL_SOCKET, option, ctypes.byref(value), ctypes.byref(size))
    return -1 if failed else value.value


def _set_option(descriptor: int, level: int, option: int, value: int) -> None:
    """Set an integer option; a failure is ignored, because the descriptor may have been closed or reused since."""
    number = ctypes.c_int(value)
    _c_library().setsockopt(descriptor, level, option, ctypes.byref(number), ctypes.sizeof(number))


PATH = Path(__file__).parents[2] / "collective" / "lib" / "libhopsml_server.so"
REMEDY = "build it by make setup with a C++ compiler (apt-get install g++), or install a wheel, which contains it"


def are_servers_guarded() -> bool:
    """Return True if servers of workers on this machine are guarded: the library exists, and nothing disables it."""
    return PATH.exists() and not SETTINGS.unguarded_server


def guard(tf_config: str, libraries: str, secret: bytes = b"") -> str:
    """Guard the server that this process starts as the task of ``tf_config``.

    Args:
        tf_config: TensorFlow's TF_CONFIG. A single task starts no server.
        libraries: Prefix of the paths of the loaded libraries that contain the server.
        secret: Secret that members prove to each other; without one they are identified by user and address.

    Returns:
        Why the server cannot be guarded; "" on success.
    """
    try:
        addresses, own = _members(tf_config)
    except (ValueError, LookupError, TypeError, AttributeError):
        return "TF_CONFIG does not list the members"
    if len(addresses) < 2:
        return ""
    if isinstance(library := _load(), str):
        return library
    texts = (ctypes.c_char_p * len(addresses))(*(address.encode() for address in addresses))
    guarded = library.hopsml_guard_server(libraries.encode(), texts, len(addresses), own, secret, len(secret))
    if guarded < 0:
        return "TF_CONFIG has members without numeric addresses, which cannot be compared with connections"
    return "" if guarded else "its calls were not found in TensorFlow's libraries"


def restrict_ports(libraries: str, first: int, last: int) -> str:
    """Restrict the listening ports of some loaded libraries to a range; return why it fails, "" on success.

    Args:
        libraries: Prefix of the paths of the libraries, which let the kernel choose their ports.
        first: Lowest port number.
        last: Highest port number.
    """
    if isinstance(library := _load(), str):
        return library
    return "" if library.hopsml_bind_within(libraries.encode(), first, last) > 0 else "its calls were not found"


def _members(tf_config: str) -> tuple[list[str], int]:
    """Return the addresses of all tasks, and the index of this process's task among them."""
    config = json.loads(tf_config or "{}")
    tasks = [(role, i, str(one)) for role, those in config.get("cluster", {}).items() for i, one in enumerate(those)]
    if len(tasks) < 2:
        return [address for _, _, address in tasks], 0
    own = config["task"]["type"], int(config["task"]["index"])
    return [address for _, _, address in tasks], [(role, index) for role, index, _ in tasks].index(own)


@functools.cache
def _load() -> ctypes.CDLL | str:
    """Return the library, or the reason why it cannot be loaded."""
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        return f"{error} ({REMEDY})"
    library.hopsml_guard_server.argtypes = (
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    library.hopsml_guard_server.restype = ctypes.c_int32
    library.hopsml_bind_within.argtypes = (ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32)
    library.hopsml_bind_within.restype = ctypes.c_int32
    return library
