"""Access control of TensorFlow's server in a worker: only its own address, only members of its group.

The server listens on every interface and obeys any peer; libhopsml_server.so (native/server/) intercepts its system
calls. What this protects, and what it does not: docs/security.md. The same library restricts other libraries' ports to
a range.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from pathlib import Path

PATH = Path(__file__).parents[2] / "collective" / "lib" / "libhopsml_server.so"
REMEDY = "make setup builds it where there is a C++ compiler (apt-get install g++); wheels bring it along"
UNGUARDED = "HOPSML_UNGUARDED_SERVER"  # "1": any peer may connect, as without hopsml


def is_ready() -> bool:
    """Return True if servers of workers on this machine are guarded: the library exists, and nothing disables it."""
    return PATH.exists() and os.environ.get(UNGUARDED) != "1"


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
        return "TF_CONFIG does not say who its members are"
    if len(addresses) < 2:
        return ""
    if isinstance(library := _load(), str):
        return library
    texts = (ctypes.c_char_p * len(addresses))(*(address.encode() for address in addresses))
    guarded = library.hopsml_guard_server(libraries.encode(), texts, len(addresses), own, secret, len(secret))
    if guarded < 0:
        return "TF_CONFIG names members by other names than numeric addresses, which connections do not show"
    return "" if guarded else "its calls were not found in TensorFlow's libraries"


def bind_within(libraries: str, first: int, last: int) -> str:
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
