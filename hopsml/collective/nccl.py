"""NCCL for arrays on GPUs: its library, and a communicator of the members of a ``Group``.

The library is that of the wheel ``nvidia-nccl-cu12`` or ``-cu13`` (a dependency of torch), or the system's. The group
forms the communicator: it sends NCCL's identifier to members that have proved the run's secret, and before each
operation it compares the members' calls, so that no GPU waits for a call that another member does not make. NCCL opens
its own connections, which are neither authenticated nor encrypted (docs/security.md).

Source: NCCL user guide, "Creating a communicator with options" and "Fault tolerance" (calls that do not block, abort).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from hopsml.collective.group import Group, lookup_number
from hopsml.errors import (
    ArgumentError,
    CollectiveEnded,
    CollectiveError,
    CollectiveTimeout,
    CollectiveUnavailable,
    PeerLost,
)

TYPES: Final = {"uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
REDUCTIONS: Final = {"sum": 0, "max": 2, "min": 3, "mean": 4}
LIBRARY: Final = "libnccl.so.2"
FORM_TIMEOUT_S: Final = 60.0
WATCH_AFTER_S: Final = 1.0  # seconds of an operation after which a second thread checks whether all members live
_SUCCESS, _INVALID_USAGE, _REMOTE_ERROR, _IN_PROGRESS = 0, 5, 6, 7
_ID_BYTES: Final = 128


class _Identifier(ctypes.Structure):
    """Structure ``ncclUniqueId`` of NCCL."""

    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


class _Config(ctypes.Structure):
    """First fields of ``ncclConfig_t`` as of NCCL 2.14, which later versions accept, with defaults for the others."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )


_MAGIC, _CONFIG_VERSION = 0xCAFEBEEF, 21400


@dataclass(frozen=True)
class GpuMemory:
    """Contiguous array on this thread's current GPU.

    ``stream`` is the CUDA stream that computes its values, and in which the operation is enqueued. ``finished`` returns
    True once all work in that stream is done.
    """

    address: int
    shape: tuple[int, ...]
    type: str
    stream: int
    finished: Callable[[], bool]

    @property
    def count(self) -> int:
        """Number of elements of the array."""
        return int(np.prod(self.shape, dtype=np.int64))


class GpuGroup:
    """Members of a group, each with its own GPU. A call returns when its result is available.

    All members make the same calls in the same order. A call that fails ends this group, as in a ``Group``.
    """

    def __init__(self, group: Group, *, timeout_s: float = 0.0) -> None:
        """Form the communicator with every member of ``group``; each uses its thread's current device.

        Args:
            group: the group of processes.
            timeout_s: seconds that an operation may take; 0: no limit while all members live.

        Raises:
            CollectiveUnavailable: NCCL's library is missing.
            ArgumentError: two members have the same GPU.
            CollectiveTimeout: NCCL's members did not connect in time.
            CollectiveError: NCCL failed; the text contains its message.
            PeerLost: a member was lost.
        """
        self._library, self._group, self._timeout_s = _load(), group, timeout_s
        self._ended = ""
        identifier = _Identifier()
        if group.rank == 0:
            self._check(self._library.ncclGetUniqueId(ctypes.byref(identifier)), "its identifier")
        received = group.broadcast(np.frombuffer(bytes(identifier), "uint8"), name="identifier of NCCL")
        identifier = _Identifier.from_buffer_copy(received.tobytes())
        config = _Config(ctypes.sizeof(_Config), _MAGIC, _CONFIG_VERSION, 0)
        self._handle = ctypes.c_void_p()
        place = group.size, identifier, group.rank
        status = self._library.ncclCommInitRankConfig(ctypes.byref(self._handle), *place, ctypes.byref(config))
        self._release = weakref.finalize(self, self._library.ncclCommAbort, self._handle)
        self._settle(status, "the forming of its group", lambda: True, FORM_TIMEOUT_S)

    def all_reduce(self, source: GpuMemory, target: GpuMemory, reduction: str, *, name: str = "") -> None:
        """Reduce all members' ``source`` into ``target``, of the same shape and type; "mean" is only for floats."""
        if reduction == "mean" and source.type.startswith(("int", "uint")):
            raise ArgumentError(
                f"the mean of {source.type} values cannot be computed, since NCCL supports means of floats only; "
                "compute a sum, and divide it"
            )
        kind = lookup_number(REDUCTIONS, "reduction", reduction)
        self._call("all_reduce", f"{reduction} {name}", source, target, "ncclAllReduce", source.count, kind)

    def all_gather(self, source: GpuMemory, target: GpuMemory, *, name: str = "") -> None:
        """Gather all members' ``source``, in rank order, into ``target``, whose first axis counts ranks."""
        self._call("all_gather", name, source, target, "ncclAllGather", source.count)

    def broadcast(self, source: GpuMemory, target: GpuMemory, root: int, *, name: str = "") -> None:
        """Copy the ``source`` of member ``root`` into every member's ``target``."""
        self._call("broadcast", f"from {root} {name}", source, target, "ncclBroadcast", source.count, root)

    def end(self, why: str = "") -> None:
        """End the group: operations in progress on the GPU are aborted, and the other members' fail or time out."""
        self._ended = self._ended or why or "the group was ended"
        self._release()

    def _call(
        self, operation: str, what: str, source: GpuMemory, target: GpuMemory, function: str, *arguments: int
    ) -> None:
        """Run one operation.

        ``arguments`` are the number of elements, and NCCL's arguments after the type.
        """
        if self._ended:
            raise CollectiveEnded(self._ended)
        count, *rest = arguments
        kind = lookup_number(TYPES, "type", source.type)
        called = f"{operation} {what.strip()} of {source.type} {source.shape} on GPUs"
        # a member with another call, or that has ended, is reported here, before a GPU waits for it
        self._group.barrier(called)
        memory = ctypes.c_void_p(source.address), ctypes.c_void_p(target.address), ctypes.c_size_t(count)
        status = getattr(self._library, function)(*memory, kind, *rest, self._handle, ctypes.c_void_p(source.stream))
        self._settle(status, called, source.finished, self._timeout_s)

    def _settle(self, status: int, what: str, finished: Callable[[], bool], timeout_s: float) -> None:
        """Wait until NCCL has finished ``what``; on an error, or if a member is lost, end the group."""
        started_at, watch = time.monotonic(), _Watch(self._group, what)
        try:
            while True:
                state = ctypes.c_int(status)
                if status in (_SUCCESS, _IN_PROGRESS) and self._handle.value is not None:
                    status = self._library.ncclCommGetAsyncError(self._handle, ctypes.byref(state)) or state.value
                if status not in (_SUCCESS, _IN_PROGRESS):
                    self._check(status, what)
                if status == _SUCCESS and finished():
                    break
                waited = time.monotonic() - started_at
                if timeout_s and waited > timeout_s:
                    raise CollectiveTimeout(f"NCCL has not done {what} within {timeout_s:g} s")
                if waited > WATCH_AFTER_S:
                    watch.enter_barrier()
                time.sleep(min(waited / 50, 0.001))
            watch.close()
        except BaseException as error:
            self.end(f"NCCL's group ended: {error}")
            raise

    def _check(self, status: int, what: str) -> None:
        """Raise the error of a status other than success."""
        if status == _SUCCESS:
            return
        words = (self._library.ncclGetLastError(None) or b"").decode(errors="replace").strip()
        text = f"NCCL failed in {what}: {words or self._library.ncclGetErrorString(status).decode()}"
        if status == _INVALID_USAGE:  # of two in one process only one gets NCCL's message
            raise ArgumentError(
                f"{text}; each worker needs a separate GPU; give it one, or move the tensors to the CPU"
            )
        raise (PeerLost if status == _REMOTE_ERROR else CollectiveError)(text)


class _Watch:
    """Liveness check of all members while a GPU works: a barrier that each member enters when its part is done.

    A member that waits for long enters the barrier in a separate thread, in which the loss of a member raises its
    error.
    """

    def __init__(self, group: Group, what: str) -> None:
        self._group, self._operation = group, what
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def enter_barrier(self) -> None:
        """Enter the barrier in a background thread, if not done yet; raise the error that it has met."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._meet, name="hopsml-nccl-watch", daemon=True)
            self._thread.start()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Enter the barrier, or wait for the thread that has; raise its error."""
        if self._thread is None:
            self._meet()
        else:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _meet(self) -> None:
        """Enter the barrier and store its error."""
        try:
            self._group.barrier(f"end of {self._operation}")
        except CollectiveError as error:
            self._error = error


def why_unavailable() -> str:
    """Return the reason why NCCL's library is not available, or ""."""
    try:
        _load()
    except CollectiveUnavailable as error:
        return str(error)
    return ""


@functools.cache
def _load() -> Any:
    """Load NCCL's library: the system's, or that of a wheel."""
    tried = []
    for path in (LIBRARY, *_of_wheel()):  # a library that a framework has loaded already is found by its plain name
        try:
            return _typed(ctypes.CDLL(path))
        except OSError as error:
            tried.append(str(error))
    raise CollectiveUnavailable(
        f"the library of NCCL was not found ({'; '.join(tried)}); install nvidia-nccl-cu12 or nvidia-nccl-cu13, "
        "matching your CUDA version"
    )


def _of_wheel() -> list[str]:
    """Return the paths of the library in NCCL's wheel."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        found = None
    folders = found.submodule_search_locations if found is not None else None
    return [str(Path(folder) / "lib" / LIBRARY) for folder in folders or ()]


def _typed(library: Any) -> Any:
    """Declare the types of NCCL's functions."""
    memory, size, number, handle = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
    signatures: dict[str, tuple[Any, ...]] = {
        "ncclGetUniqueId": (ctypes.POINTER(_Identifier),),
        "ncclCommInitRankConfig": (ctypes.POINTER(handle), number, _Identifier, number, ctypes.POINTER(_Config)),
        "ncclCommGetAsyncError": (handle, ctypes.POINTER(number)),
        "ncclCommAbort": (handle,),
        "ncclAllReduce": (memory, memory, size, number, number, handle, memory),
        "ncclAllGather": (memory, memory, size, number, handle, memory),
        "ncclBroadcast": (memory, memory, size, number, number, handle, memory),
    }
    for name, types in signatures.items():
        getattr(library, name).argtypes = types
        getattr(library, name).restype = number
    library.ncclGetLastError.argtypes, library.ncclGetLastError.restype = (handle,), ctypes.c_char_p
    library.ncclGetErrorString.argtypes, library.ncclGetErrorString.restype = (number,), ctypes.c_char_p
    return library
