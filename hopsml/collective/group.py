"""A group of processes that reduce arrays together."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hopsml.collective.library import CallStatus, GroupOptions, load
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
    """A group, as one of its members has it.

    Every member makes the same calls in the same order. A call that fails ends the group: all further ones fail with the
    same error, on all members, and whoever goes on forms a group of a higher generation. In a resumable group the loss of a
    member is no failure: calls wait until ``reform`` lets them go on with others, or until ``end``. It is a context manager.
    """

    def __init__(self, handle: int, kept: Mapping[str, Any]) -> None:
        """``kept``: the options that hold for later generations, too."""
        self._library, self._handle, self._kept = load(), handle, kept
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
            resumable: calls outlast the loss of a member, waiting for ``reform``; the same on all members.
            network_timeout_s: seconds without an answer of a member's machine after which it is lost, at least 1. A member
                whose process is only stopped is not: its machine answers.
            algorithm: how all-reduces go over sockets: "direct", "pairwise" or "ring"; "auto" chooses by size and members.
                The same for all members.
            guest: a resumable group of a newcomer alone, whose calls count for nobody: its first ``reform`` lets it in with
                others that have paused, and what was built on it goes on there.
            encryption: what goes over sockets is encrypted, and cannot be changed under way; the same on all members, and
                in later generations. Operations raise CollectiveRefused, with the rank, where somebody has tried. Members
                of one machine share memory all the same, which is not encrypted.

        Raises:
            CollectiveTimeout: members are missing. CollectiveRefused: one of them has another secret or generation, or
            does not encrypt as this one does. CollectiveUnavailable: the library is not there, or OpenSSL's libcrypto, which
            ``encryption`` needs. ArgumentError, CollectiveError: anything else.
        """
        kept = {
            "timeout_s": timeout_s,
            "network_timeout_s": network_timeout_s,
            "algorithm": known(ALGORITHMS, "algorithm", algorithm),
            "encryption": bool(encryption),
        }
        if encryption:
            _load_libcrypto()
        options = _options(rank, addresses, secret, hosts, listener, generation, form_timeout_s, resumable, kept)
        options.guest = guest
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        status = CallStatus(load().hopsml_form(ctypes.byref(options), ctypes.byref(handle), text, len(text)))
        if status != CallStatus.OK or handle.value is None:
            raise _error(status, text.value.decode(errors="replace"))
        return cls(handle.value, kept)

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
        """Let a resumable group go on with these members, from another thread than those that make calls.

        All of them call it; newcomers form a group. A call under way is interrupted. Where all who were in it have its
        whole result it returns that; else all make it again, among the new members, as if nothing had been. A newcomer's
        first call is the group's next one: it meets the one that is made again, where there is one.

        Args: as of ``form``; ``generation`` is a higher one.

        Raises:
            CollectiveTimeout, CollectiveRefused, PeerLost: the new members did not find each other, or lost one.
            CollectiveMismatch: one of them was left out before, and the others have made calls without it.
            CollectiveEnded: the group was ended. In all these cases it waits for another reform, or its end.
            ArgumentError: the group is not resumable, or the generation not higher; nothing has changed.
        """
        options = _options(rank, addresses, secret, hosts, listener, generation, form_timeout_s, True, self._kept)
        text = ctypes.create_string_buffer(1024)
        status = CallStatus(self._library.hopsml_reform(self._handle, ctypes.byref(options), text, len(text)))
        if status != CallStatus.OK:
            raise _error(status, text.value.decode(errors="replace"))

    @property
    def rank(self) -> int:
        """Of this member, from 0, in the newest generation."""
        return int(self._library.hopsml_rank(self._handle))

    @property
    def size(self) -> int:
        """The number of members of the newest generation."""
        return int(self._library.hopsml_size(self._handle))

    @property
    def generation(self) -> int:
        """The newest one that has formed."""
        return int(self._library.hopsml_generation(self._handle))

    @property
    def made_in(self) -> int:
        """The generation that has made the last complete call; between two calls the same on all members."""
        return int(self._library.hopsml_made_in(self._handle))

    @property
    def waiting(self) -> bool:
        """Whether operations wait for ``reform``: one of them has met the loss of a member, or a reform has failed."""
        return bool(self._library.hopsml_waiting(self._handle))

    @property
    def lost_rank(self) -> int | None:
        """The member whose loss operations have met; None for none."""
        rank = self._library.hopsml_lost_rank(self._handle)
        return None if rank < 0 else int(rank)

    def ask_pause(self) -> None:
        """Ask all members of a resumable group to stop at the same place: ``pause_agreed`` becomes true on all of them."""
        self._library.hopsml_ask_pause(self._handle)

    @property
    def pause_agreed(self) -> bool:
        """True on all members from the return of one and the same call on, once any has asked; ``reform`` clears it."""
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
        if reduction == "mean" and array.dtype.kind in "iu" and array.dtype.itemsize < 8:
            result[...] = self.all_reduce(
                array.astype("int64"), reduction, name=name
            )  # their sum may be too large for them
            return result
        self._call(
            "all_reduce", array, result, array.size, _reduction(reduction), known(WIRES, "wire", wire), name=name
        )
        return result

    def all_gather(self, value: npt.ArrayLike, *, name: str = "", out: Array | None = None) -> Array:
        """All members' arrays of one shape, in rank order, along a new first axis.

        Raises CollectiveChanged where ``out`` is given, and the number of members has changed since.
        """
        array = _contiguous(value)

        def gather(generation: int) -> Array:
            result = _result(out, (self.size, *array.shape), array.dtype)
            self._call("all_gather", array, result, array.size, generation, name=name)
            return result

        return self._with_members_of_now(gather, again=out is None)

    def broadcast(self, value: npt.ArrayLike, root: int = 0, *, name: str = "", out: Array | None = None) -> Array:
        """The array of member ``root``; the others give one of its shape and type.

        Where members change amid the call it is made again: ``root`` is then whoever has this rank now.
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
        """This rank's part of the reduction: the first axis has an entry for each rank.

        Raises CollectiveChanged where members have changed amid the call: its parts are for those that were.
        """
        array, generation = _contiguous(value), self.generation
        if not array.shape or array.shape[0] != self.size:
            raise ArgumentError(
                f"an array of shape {array.shape}: its first axis is to be {self.size}, a part of each rank"
            )
        result = _result(out, array.shape[1:], array.dtype)
        self._call("reduce_scatter", array, result, result.size, _reduction(reduction), generation, name=name)
        return result

    def barrier(self, name: str = "") -> None:
        """Return when all members have called it."""
        self._check(self._library.hopsml_barrier(self._handle, name.encode()), f"barrier '{name}'" if name else "")

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

    def _with_members_of_now(self, call: Callable[[int], Array], *, again: bool) -> Array:
        """Of a call that depends on who is a member: with the generation that it is made for; anew when that changes."""
        while True:
            try:
                return call(self.generation)
            except CollectiveChanged:
                if not again:
                    raise

    def _call(self, operation: str, array: Array, result: Array, count: int, *arguments: int, name: str) -> None:
        function = getattr(self._library, f"hopsml_{operation}")
        memory = array.ctypes.data, result.ctypes.data
        what = _what(array, name).encode()
        status = function(self._handle, *memory, count, _type(array), *arguments, what)
        self._check(status, f"{operation} '{name}'" if name else "")

    def _check(self, status: int, called: str = "") -> None:
        if status != CallStatus.OK:
            text = self._library.hopsml_problem(self._handle).decode(errors="replace")
            if called and status in (CallStatus.PEER_LOST, CallStatus.DEADLINE):
                text += f", while this one was in {called}"
            raise _error(CallStatus(status), text, self._library.hopsml_lost_rank(self._handle))


def _load_libcrypto() -> None:
    """Load that of this Python, wherever it lies (Conda has its own): the library then finds it by its name."""
    with contextlib.suppress(ImportError):
        import ssl  # noqa: F401


def _error(status: CallStatus, text: str, rank: int = -1) -> Exception:
    if status == CallStatus.ARGUMENT:
        return ArgumentError(text or "the collective refuses these arguments")
    if status == CallStatus.CHANGED:
        text = text or "the group has other members now: make the call anew, with arrays for these"
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
    kept: Mapping[str, Any],
) -> GroupOptions:
    if hosts is not None and len(hosts) != len(addresses):
        raise ArgumentError(f"{len(hosts)} hosts for {len(addresses)} addresses: one of each rank is needed")
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
        **kept,
    )


def _strings(values: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


def _contiguous(value: npt.ArrayLike) -> Array:
    """As the library takes it: in C's order, and in this machine's order of bytes."""
    array = np.asarray(value)
    _type(array)
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _what(array: Array, name: str) -> str:
    """What members compare beside the number of elements: the name, and the shape where that is not their number alone."""
    return name if array.ndim == 1 else f"{name} of shape {array.shape}".lstrip()


def _type(array: Array) -> int:
    return known(TYPES, "type", array.dtype.name)


def _reduction(name: str) -> int:
    return known(REDUCTIONS, "reduction", name)


def known(names: dict[str, int], what: str, name: str) -> int:
    """The number of ``name``. Raises ArgumentError for one that is none of them."""
    if name not in names:
        raise ArgumentError(f"{what} {name!r} is none of {', '.join(names)}")
    return names[name]


def _result(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not out.flags.writeable:
        raise ArgumentError(f"out has to be writable, contiguous, {dtype.name} and of shape {shape}")
    return out
