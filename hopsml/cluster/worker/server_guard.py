"""TensorFlow's server, kept to the worker's own address and to the members of its group.

It listens on every interface and obeys whoever connects; libhopsml_server.so (native/server/) stands between it and the
system. What that holds, and what it does not: docs/security.md. The same library keeps other libraries' ports in a range.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from pathlib import Path

PATH = Path(__file__).parents[2] / "collective" / "lib" / "libhopsml_server.so"
REMEDY = "make setup builds it where there is a C++ compiler (apt-get install g++); wheels bring it along"
UNGUARDED = "HOPSML_UNGUARDED_SERVER"  # "1": everybody may connect, as without hopsml


def is_ready() -> bool:
    """Whether servers of workers on this machine are guarded: the library is there, and nobody wants it otherwise."""
    return PATH.exists() and os.environ.get(UNGUARDED) != "1"


def guard(tf_config: str, libraries: str, secret: bytes = b"") -> str:
    """Guard the server that this process starts as the task of ``tf_config``; what hinders it, "" if nothing does.

    Args:
        tf_config: TensorFlow's TF_CONFIG. Who is alone in it starts no server.
        libraries: what the paths of the libraries begin with that the server is in; they are loaded.
        secret: that members prove to each other; without one they are known by user and address.
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
        libraries: prefix of the paths of the libraries, which let the kernel choose their ports.
        first, last: port numbers, both included.
    """
    if isinstance(library := _load(), str):
        return library
    return "" if library.hopsml_bind_within(libraries.encode(), first, last) > 0 else "its calls were not found"


def _members(tf_config: str) -> tuple[list[str], int]:
    """The addresses of all tasks, and which of them is this process'."""
    config = json.loads(tf_config or "{}")
    tasks = [(role, i, str(one)) for role, those in config.get("cluster", {}).items() for i, one in enumerate(those)]
    if len(tasks) < 2:
        return [address for _, _, address in tasks], 0
    own = config["task"]["type"], int(config["task"]["index"])
    return [address for _, _, address in tasks], [(role, index) for role, index, _ in tasks].index(own)


@functools.cache
def _load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
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
