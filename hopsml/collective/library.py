"""Loader of libhopsml_collective.so, with the types of its C interface (native/collective/collective.h)."""

from __future__ import annotations

import ctypes
import functools
import socket
from enum import IntEnum
from pathlib import Path

from hopsml.errors import CollectiveUnavailable

PATH = Path(__file__).parent / "lib" / "libhopsml_collective.so"


class CallStatus(IntEnum):
    """Status codes of the library's calls."""

    OK = 0
    PEER_LOST = 1
    DEADLINE = 2
    MISMATCH = 3
    REFUSED = 4
    ARGUMENT = 5
    SYSTEM = 6
    ENDED = 7
    CHANGED = 8
    UNAVAILABLE = 9


class GroupOptions(ctypes.Structure):
    """Structure ``hopsml_options`` of the library."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("addresses", ctypes.POINTER(ctypes.c_char_p)),
        ("hosts", ctypes.POINTER(ctypes.c_char_p)),
        ("listener", ctypes.c_int32),
        ("generation", ctypes.c_uint64),
        ("secret", ctypes.c_char_p),
        ("secret_size", ctypes.c_size_t),
        ("form_timeout_s", ctypes.c_double),
        ("timeout_s", ctypes.c_double),
        ("resumable", ctypes.c_int32),
        ("network_timeout_s", ctypes.c_double),
        ("algorithm", ctypes.c_int32),
        ("guest", ctypes.c_int32),
        ("encryption", ctypes.c_int32),
    )


_GROUP, _MEMORY, _COUNT, _NUMBER, _NAME = (
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.c_char_p,
)
_GENERATION = ctypes.c_uint64
_RETURNS = {
    "form": (_NUMBER, ctypes.POINTER(GroupOptions), ctypes.POINTER(_GROUP), ctypes.c_char_p, ctypes.c_size_t),
    "reform": (_NUMBER, _GROUP, ctypes.POINTER(GroupOptions), ctypes.c_char_p, ctypes.c_size_t),
    "rank": (ctypes.c_int32, _GROUP),
    "size": (ctypes.c_int32, _GROUP),
    "generation": (_GENERATION, _GROUP),
    "made_in": (_GENERATION, _GROUP),
    "waiting": (ctypes.c_int32, _GROUP),
    "ask_pause": (None, _GROUP),
    "pause_agreed": (ctypes.c_int32, _GROUP),
    "all_reduce": (_NUMBER, _GROUP, _MEMORY, _MEMORY, _COUNT, _NUMBER, _NUMBER, _NUMBER, _NAME),
    "all_gather": (_NUMBER, _GROUP, _MEMORY, _MEMORY, _COUNT, _NUMBER, _GENERATION, _NAME),
    "broadcast": (_NUMBER, _GROUP, _MEMORY, _MEMORY, _COUNT, _NUMBER, ctypes.c_int32, _GENERATION, _NAME),
    "reduce_scatter": (_NUMBER, _GROUP, _MEMORY, _MEMORY, _COUNT, _NUMBER, _NUMBER, _GENERATION, _NAME),
    "barrier": (_NUMBER, _GROUP, _NAME),
    "problem": (ctypes.c_char_p, _GROUP),
    "lost_rank": (ctypes.c_int32, _GROUP),
    "end": (None, _GROUP, _NAME),
    "release": (None, _GROUP),
    "set_current": (None, _GROUP),
    "count_into": (None, _MEMORY),
}


@functools.cache
def load(path: Path = PATH) -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises:
        CollectiveUnavailable: if it is missing; the text contains the remedy.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        remedy = (
            "install hopsml's wheel for Linux (manylinux) on every node, which contains it, or build it by make setup, or "
            "a wheel with it by make wheel, with a C++ compiler (apt-get install g++)"
        )
        text = f"hopsml's own collective cannot be loaded on {socket.gethostname()}: {error} ({remedy})"
        raise CollectiveUnavailable(text) from error
    for name, (returned, *arguments) in _RETURNS.items():
        function = getattr(library, f"hopsml_{name}")
        function.restype, function.argtypes = returned, arguments
    return library
