"""Group of processes that reduce arrays together by hopsml's own library."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hopsml.collective.library import CallStatus, GroupOptions, load
from hopsml.core import traffic
from hopsml.core.newer_python import Self
from hopsml.errors import (
    ArgumentError,
    CollectiveChanged,
    CollectiveEnded,
    CollectiveError,
    CollectiveMismatch,
    CollectiveRefused,
    CollectiveTimeout,
    CollectiveUnavailable,
    PeerLost,
)

Array = npt.NDArray[Any]

TYPES: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int32": 4, "int64": 5, "uint8": 6}
REDUCTIONS: Final = {"sum": 0, "mean": 1, "min": 2, "max": 3}
ALGORITHMS: Final = {"auto": 0, "direct": 1, "pairwise": 2, "ring": 3}
WIRES: Final = {"same": 0, "float16": 1, "bfloat16": 2}
_ERRORS: Final = {
    CallStatus.PEER_LOST: PeerLost,
    CallStatus.DEADLINE: CollectiveTimeout,
    CallStatus.MISMATCH: CollectiveMismatch,
    CallStatus.REFUSED: CollectiveRefused,
    CallStatus.ENDED: CollectiveEnded,
    CallStatus.CHANGED: CollectiveChanged,
    CallStatus.UNAVAILABLE: CollectiveUnavailable,
}


class Group:
    """Group of processes, represented in one of its members; a context manager.

    Every member makes the same calls in the same order. A call that fails ends the group: all further ones fail with
    the same error, on all members, and those that continue form a group of a higher generation. In a resumable group
    the loss of a member is no failure: calls wait until ``reform`` lets them continue with other members, or until
    ``end``.
    """

    def __init__(self, handle: int, lasting_options: Mapping[str, Any]) -> None:
        """Wrap a group that the library has formed.

        Args:
            handle: the library's handle.
            lasting_options: options that also apply to later generations.
        """
        self._library, self._handle, self._lasting_options = load(), handle, lasting_options
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
        resumable: bool = False,
        network_timeout_s: float = 15,
        algorithm: str = "auto",
        guest: bool = False,
        encryption: bool = False,
    ) -> Self:
        """Connect to the other members and return the group.

        Args:
            rank: rank of this member.
            addresses: ``host:port`` of every rank; all but the last rank listen.
            secret: at least 16 bytes, the same for all members; it is proved, never sent.
            hosts: name of every rank's machine; members on one machine share memory. None: sockets only.
            listener: descriptor of a socket that already listens on this rank's address, which becomes the group's; -1:
                none.
            generation: number of the generation; members of another one are refused.
            form_timeout_s: seconds for all members to connect.
            timeout_s: seconds that an operation may take; 0: no limit while all members live.
            resumable: True if calls outlast the loss of a member by waiting for ``reform``; the same on all members.
            network_timeout_s: seconds without an answer of a member's machine after which the member is lost, at least
                1. A member whose process is only stopped is not lost: its machine answers.
            algorithm: algorithm of all-reduces over sockets: "direct", "pairwise" or "ring"; "auto" chooses by size and
                number of members. The same on all members.
            guest: True for a resumable group that contains only a newcomer, whose calls have no effect on others: its
                first ``reform`` joins it with others that have paused, and objects that use the group continue to work.
            encryption: True to encrypt and authenticate data on sockets; the same on all members, and in later
                generations. Operations raise CollectiveRefused, with the rank, if data was modified. Members of one
                machine still share memory, which is not encrypted.

        Raises:
            CollectiveTimeout: members are missing.
            CollectiveRefused: a member has another secret or generation, or another encryption setting.
            CollectiveUnavailable: the library is missing, or OpenSSL's libcrypto, which ``encryption`` needs.
            ArgumentError: an argument is invalid.
            CollectiveError: any other error.
        """
        lasting_options = {
            "timeout_s": timeout_s,
            "network_timeout_s": network_timeout_s,
            "algorithm": lookup_number(ALGORITHMS, "algorithm", algorithm),
            "encryption": bool(encryption),
        }
        if encryption:
            _load_libcrypto()
        options = _options(
            rank, addresses, secret, hosts, listener, generation, form_timeout_s, resumable, lasting_options
        )
        options.guest = guest
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        load().hopsml_count_into(traffic.collective_counters() or None)
        status = CallStatus(load().hopsml_form(ctypes.byref(options), ctypes.byref(handle), text, len(text)))
        if status != CallStatus.OK or handle.value is None:
            raise _error(status, text.value.decode(errors="replace"))
        return cls(handle.value, lasting_options)

    def reform(
        self,
        rank: int,
        addresses: Sequence[str],
        *,
        secret: bytes,
        generation: int,
        hosts: Sequence[str] | None = None,
        listener: int = -1,
        form_timeout_s: float = 60,
    ) -> None:
        """Let a resumable group continue with these members; called from another thread than the collective calls.

        All members call it; newcomers form a group. A call in progress is interrupted. If all its members have its
        whole result, it returns that; else all repeat it with the new members, as if it had not started. A newcomer's
        first call is the group's next one, or the repeated one if there is one. After any error except ArgumentError,
        the group waits for another ``reform`` or its end.

        Args:
            rank: rank of this member.
            addresses: ``host:port`` of every rank, as of ``form``.
            secret: at least 16 bytes, the same for all members.
            generation: number of the new generation, higher than the last one.
            hosts: name of every rank's machine; None: sockets only.
            listener: descriptor of a socket that already listens on this rank's address; -1: none.
            form_timeout_s: seconds for all members to connect.

        Raises:
            CollectiveTimeout: new members are missing.
            CollectiveRefused: a new member was refused.
            PeerLost: a new member was lost.
            CollectiveMismatch: a member was left out before, and the others have made calls without it.
            CollectiveEnded: the group was ended.
            ArgumentError: the group is not resumable, or the generation is not higher; nothing has changed.
        """
        options = _options(
            rank, addresses, secret, hosts, listener, generation, form_timeout_s, True, self._lasting_options
        )
        text = ctypes.create_string_buffer(1024)
        status = CallStatus(self._library.hopsml_reform(self._handle, ctypes.byref(options), text, len(text)))
        if status != CallStatus.OK:
            raise _error(status, text.value.decode(errors="replace"))

    @property
    def rank(self) -> int:
        """Rank of this member, from 0, in the newest generation."""
        return int(self._library.hopsml_rank(self._handle))

    @property
    def size(self) -> int:
        """Number of members of the newest generation."""
        return int(self._library.hopsml_size(self._handle))

    @property
    def generation(self) -> int:
        """Number of the newest generation that has formed."""
        return int(self._library.hopsml_generation(self._handle))

    @property
    def last_call_generation(self) -> int:
        """Generation in which the last complete call was made; equal on all members between two calls."""
        return int(self._library.hopsml_made_in(self._handle))

    @property
    def awaits_reform(self) -> bool:
        """True if operations wait for ``reform``, because a member was lost or a reform has failed."""
        return bool(self._library.hopsml_waiting(self._handle))

    @property
    def lost_rank(self) -> int | None:
        """Rank of the member whose loss operations have detected; None for none."""
        rank = self._library.hopsml_lost_rank(self._handle)
        return None if rank < 0 else int(rank)

    def request_pause(self) -> None:
        """Request that all members of a resumable group pause after the same call.

        ``pause_agreed`` is then True on all of them.
        """
        self._library.hopsml_ask_pause(self._handle)

    @property
    def pause_agreed(self) -> bool:
        """True once any member has requested a pause; set on all members by the same call.

        ``reform`` clears it.
        """
        return bool(self._library.hopsml_pause_agreed(self._handle))

    def all_reduce(
        self,
        value: npt.ArrayLike,
        reduction: str = "sum",
        *,
        wire: str = "same",
        name: str = "",
        out: Array | None = None,
    ) -> Array:
        """Return the reduction of all members' arrays of one shape, bitwise equal on all of them.

        Args:
            value: this member's array; float32, float64, float16, bfloat16, int32, int64 or uint8.
            reduction: "sum", "mean", "min" or "max".
            wire: "float16" or "bfloat16" to send float32 in that type between machines; sums are still computed in
                float32.
            name: name of the array, for the errors of members that disagree.
            out: array for the result; it may be ``value``.
        """
        array = _contiguous(value)
        result = _result(out, array.shape, array.dtype)
        if reduction == "mean" and array.dtype.kind in "iu" and array.dtype.itemsize < 8:
            result[...] = self.all_reduce(
                array.astype("int64"), reduction, name=name
            )  # their sum may exceed the type's range
            return result
        self._call(
            "all_reduce",
            array,
            result,
            array.size,
            _reduction(reduction),
            lookup_number(WIRES, "wire", wire),
            name=name,
        )
        return result

    def all_gather(self, value: npt.ArrayLike, *, name: str = "", out: Array | None = None) -> Array:
        """Return all members' arrays of one shape, in rank order, along a new first axis.

        Raises:
            CollectiveChanged: if ``out`` is given, and the number of members has changed since.
        """
        array = _contiguous(value)

        def gather(generation: int) -> Array:
            result = _result(out, (self.size, *array.shape), array.dtype)
            self._call("all_gather", array, result, array.size, generation, name=name)
            return result

        return self._with_members_of_now(gather, again=out is None)

    def broadcast(self, value: npt.ArrayLike, root: int = 0, *, name: str = "", out: Array | None = None) -> Array:
        """Return the array of member ``root``; the others pass one of the same shape and type.

        If members change during the call it is repeated: ``root`` is then the member that has this rank now.
        """
        array = _contiguous(value)
        result = _result(out, array.shape, array.dtype)

        def send(generation: int) -> Array:
            self._call("broadcast", array, result, array.size, root, generation, name=name)
            return result

        return self._with_members_of_now(send, again=True)

    def reduce_scatter(
        self, value: npt.ArrayLike, reduction: str = "sum", *, name: str = "", out: Array | None = None
    ) -> Array:
        """Return this rank's part of the reduction; the first axis has an entry for each rank.

        Raises:
            CollectiveChanged: if members have changed during the call, as its parts are for the previous ones.
        """
        array, generation = _contiguous(value), self.generation
        if not array.shape or array.shape[0] != self.size:
            raise ArgumentError(
                f"the array has the shape {array.shape}; its first axis must be {self.size}, one part for each rank"
            )
        result = _result(out, array.shape[1:], array.dtype)
        self._call("reduce_scatter", array, result, result.size, _reduction(reduction), generation, name=name)
        return result

    def barrier(self, name: str = "") -> None:
        """Wait until all members have called it."""
        self._check(self._library.hopsml_barrier(self._handle, name.encode()), f"barrier '{name}'" if name else "")

    def make_default(self) -> None:
        """Make this group the one that frameworks' operations in this process use."""
        self._library.hopsml_set_current(self._handle)

    def end(self, why: str = "") -> None:
        """End the group, from any thread: calls in progress raise CollectiveEnded, the other members' PeerLost."""
        if self._release.alive:
            self._library.hopsml_end(self._handle, why.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def _with_members_of_now(self, call: Callable[[int], Array], *, again: bool) -> Array:
        """Make a call that depends on the members with the present generation; repeat it if that changes."""
        while True:
            try:
                return call(self.generation)
            except CollectiveChanged:
                if not again:
                    raise

    def _call(self, operation: str, array: Array, result: Array, count: int, *arguments: int, name: str) -> None:
        """Call a function of the library with arrays."""
        function = getattr(self._library, f"hopsml_{operation}")
        memory = array.ctypes.data, result.ctypes.data
        what = _description(array, name).encode()
        status = function(self._handle, *memory, count, _type(array), *arguments, what)
        self._check(status, f"{operation} '{name}'" if name else "")

    def _check(self, status: int, called: str = "") -> None:
        """Raise the error of a status other than OK."""
        if status != CallStatus.OK:
            text = self._library.hopsml_problem(self._handle).decode(errors="replace")
            if called and status in (CallStatus.PEER_LOST, CallStatus.DEADLINE):
                text += f", while this one was in {called}"
            raise _error(CallStatus(status), text, self._library.hopsml_lost_rank(self._handle))


def _load_libcrypto() -> None:
    """Load the libcrypto of this Python, so that the library finds it by its name.

    Conda has its own, for example.
    """
    with contextlib.suppress(ImportError):
        import ssl  # noqa: F401


def _error(status: CallStatus, text: str, rank: int = -1) -> Exception:
    """Return the exception for a status."""
    if status == CallStatus.ARGUMENT:
        return ArgumentError(text or "the collective refuses these arguments")
    if status == CallStatus.CHANGED:
        text = text or "the members of the group have changed; repeat the call with arrays for the new members"
    return _ERRORS.get(status, CollectiveError)(text or status.name.lower(), rank=None if rank < 0 else rank)


def _options(
    rank: int,
    addresses: Sequence[str],
    secret: bytes,
    hosts: Sequence[str] | None,
    listener: int,
    generation: int,
    form_timeout_s: float,
    resumable: bool,
    lasting_options: Mapping[str, Any],
) -> GroupOptions:
    """Return the options of a group as the library's structure."""
    if hosts is not None and len(hosts) != len(addresses):
        raise ArgumentError(f"{len(hosts)} hosts for {len(addresses)} addresses; each rank needs one of both")
    return GroupOptions(
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
        resumable=resumable,
        **lasting_options,
    )


def _strings(values: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


def _contiguous(value: npt.ArrayLike) -> Array:
    """Return the array in C order and native byte order, as the library requires."""
    array = np.asarray(value)
    _type(array)
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _description(array: Array, name: str) -> str:
    """Return the name that members compare, with the array's shape unless that has one dimension."""
    return name if array.ndim == 1 else f"{name} of shape {array.shape}".lstrip()


def _type(array: Array) -> int:
    return lookup_number(TYPES, "type", array.dtype.name)


def _reduction(name: str) -> int:
    return lookup_number(REDUCTIONS, "reduction", name)


def lookup_number(names: dict[str, int], what: str, name: str) -> int:
    """Return the number of ``name``.

    Raises:
        ArgumentError: for an unknown one.
    """
    if name not in names:
        raise ArgumentError(f"{what} {name!r} is not one of {', '.join(names)}")
    return names[name]


def _result(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the array for a result: a new one, or ``out`` if it fits."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not out.flags.writeable:
        raise ArgumentError(f"out must be writable, contiguous, {dtype.name} and of shape {shape}")
    return out
