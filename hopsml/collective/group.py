"""A group of processes that reduce arrays together."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hopsml.collective.library import CallStatus, GroupOptions, load
from hopsml.errors import (
    ArgumentError,
    CollectiveEnded,
    CollectiveError,
    CollectiveMismatch,
    CollectiveRefused,
    CollectiveTimeout,
    PeerLost,
)

Array = npt.NDArray[Any]

TYPES: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int32": 4, "int64": 5, "uint8": 6}
REDUCTIONS: Final = {"sum": 0, "mean": 1, "min": 2, "max": 3}
WIRES: Final = {"same": 0, "float16": 1, "bfloat16": 2}
_ERRORS: Final = {
    CallStatus.PEER_LOST: PeerLost,
    CallStatus.DEADLINE: CollectiveTimeout,
    CallStatus.MISMATCH: CollectiveMismatch,
    CallStatus.REFUSED: CollectiveRefused,
    CallStatus.ENDED: CollectiveEnded,
}


class Group:
    """One generation of a group, as one of its members has it; its members never change.

    Every member makes the same calls in the same order. A call that fails ends the group: all further ones fail with the
    same error, on all members, and whoever goes on forms a group of a higher generation. It is a context manager.

    Attributes: ``rank``, ``size``, ``generation``.
    """

    def __init__(self, handle: int, rank: int, size: int, generation: int) -> None:
        self.rank, self.size, self.generation = rank, size, generation
        self._library, self._handle = load(), handle
        self._release = weakref.finalize(self, self._library.hopsml_release, handle)

    @classmethod
    def form(
        cls,
        rank: int,
        addresses: Sequence[str],
        *,
        secret: bytes,
        hosts: Sequence[str] | None = None,
        listener: int = -1,
        generation: int = 0,
        form_timeout_s: float = 60,
        timeout_s: float = 0,
    ) -> Self:
        """Find the other members.

        Args:
            rank: of this member.
            addresses: ``host:port`` of every rank; all but the last one are listened on.
            secret: at least 16 bytes, the same for all members; it is proved, never sent.
            hosts: a name of every rank's machine; those on one share memory. None: sockets alone.
            listener: the descriptor of a socket that listens on this rank's address already; it is taken over.
            generation: members of another one are refused.
            form_timeout_s: seconds for all to find each other.
            timeout_s: seconds that an operation may take; 0: as long as all members live.

        Raises:
            CollectiveTimeout: members are missing. CollectiveRefused: one of them has another secret or generation.
            CollectiveUnavailable: the library is not there. ArgumentError, CollectiveError: anything else.
        """
        if hosts is not None and len(hosts) != len(addresses):
            raise ArgumentError(f"{len(hosts)} hosts for {len(addresses)} addresses: one of each rank is needed")
        options = GroupOptions(
            struct_size=ctypes.sizeof(GroupOptions),
            rank=rank,
            size=len(addresses),
            addresses=_strings(addresses),
            hosts=None if hosts is None else _strings(hosts),
            listener=listener,
            generation=generation,
            secret=secret,
            secret_size=len(secret),
            form_timeout_s=form_timeout_s,
            timeout_s=timeout_s,
        )
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        status = CallStatus(load().hopsml_form(ctypes.byref(options), ctypes.byref(handle), text, len(text)))
        if status != CallStatus.OK or handle.value is None:
            raise _error(status, text.value.decode(errors="replace"))
        return cls(handle.value, rank, len(addresses), generation)

    def all_reduce(
        self,
        value: npt.ArrayLike,
        reduction: str = "sum",
        *,
        wire: str = "same",
        name: str = "",
        out: Array | None = None,
    ) -> Array:
        """The reduction of all members' arrays of one shape, equal to the last bit on all of them.

        Args:
            value: this member's; float32, float64, float16, bfloat16, int32, int64 or uint8.
            reduction: "sum", "mean", "min" or "max".
            wire: "float16" or "bfloat16": float32 is sent so between machines; sums are made in float32 all the same.
            name: what it is, for the errors of members that disagree.
            out: where the result goes; it may be ``value``.
        """
        array = _contiguous(value)
        result = _result(out, array.shape, array.dtype)
        self._call(
            "all_reduce", array, result, array.size, _reduction(reduction), _known(WIRES, "wire", wire), name=name
        )
        return result

    def all_gather(self, value: npt.ArrayLike, *, name: str = "", out: Array | None = None) -> Array:
        """All members' arrays of one shape, in rank order, along a new first axis."""
        array = _contiguous(value)
        result = _result(out, (self.size, *array.shape), array.dtype)
        self._call("all_gather", array, result, array.size, name=name)
        return result

    def broadcast(self, value: npt.ArrayLike, root: int = 0, *, name: str = "", out: Array | None = None) -> Array:
        """The array of member ``root``; the others give one of its shape and type."""
        array = _contiguous(value)
        result = _result(out, array.shape, array.dtype)
        self._call("broadcast", array, result, array.size, root, name=name)
        return result

    def reduce_scatter(
        self, value: npt.ArrayLike, reduction: str = "sum", *, name: str = "", out: Array | None = None
    ) -> Array:
        """This rank's part of the reduction: the first axis has an entry for each rank."""
        array = _contiguous(value)
        if not array.shape or array.shape[0] != self.size:
            raise ArgumentError(
                f"an array of shape {array.shape}: its first axis is to be {self.size}, a part of each rank"
            )
        result = _result(out, array.shape[1:], array.dtype)
        self._call("reduce_scatter", array, result, result.size, _reduction(reduction), name=name)
        return result

    def barrier(self, name: str = "") -> None:
        """Return when all members have called it."""
        self._check(self._library.hopsml_barrier(self._handle, name.encode()))

    def use(self) -> None:
        """Let the operations of frameworks in this process use this group from now on."""
        self._library.hopsml_set_current(self._handle)

    def end(self, why: str = "") -> None:
        """End the group here, from any thread: calls under way raise CollectiveEnded, the other members' PeerLost."""
        if self._release.alive:
            self._library.hopsml_end(self._handle, why.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def _call(self, operation: str, array: Array, result: Array, count: int, *arguments: int, name: str) -> None:
        function = getattr(self._library, f"hopsml_{operation}")
        memory = array.ctypes.data, result.ctypes.data
        self._check(function(self._handle, *memory, count, _type(array), *arguments, name.encode()))

    def _check(self, status: int) -> None:
        if status != CallStatus.OK:
            text = self._library.hopsml_problem(self._handle).decode(errors="replace")
            raise _error(CallStatus(status), text, self._library.hopsml_lost_rank(self._handle))


def _error(status: CallStatus, text: str, rank: int = -1) -> Exception:
    if status == CallStatus.ARGUMENT:
        return ArgumentError(text or "the collective refuses these arguments")
    return _ERRORS.get(status, CollectiveError)(text or status.name.lower(), rank=None if rank < 0 else rank)


def _strings(values: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


def _contiguous(value: npt.ArrayLike) -> Array:
    array = np.asarray(value, order="C")
    _type(array)
    return array


def _type(array: Array) -> int:
    return _known(TYPES, "type", array.dtype.name)


def _reduction(name: str) -> int:
    return _known(REDUCTIONS, "reduction", name)


def _known(names: dict[str, int], what: str, name: str) -> int:
    if name not in names:
        raise ArgumentError(f"{what} {name!r} is none of {', '.join(names)}")
    return names[name]


def _result(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not out.flags.writeable:
        raise ArgumentError(f"out has to be writable, contiguous, {dtype.name} and of shape {shape}")
    return out
