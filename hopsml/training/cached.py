"""Process-wide cache of loaded values, shared by all trials that run in the process (``hopsml.cached``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

from hopsml.errors import ArgumentError

T = TypeVar("T")

_values: dict[bytes, Any] = {}
_locks: dict[bytes, threading.Lock] = {}
_lock = threading.Lock()


def cached(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Return ``function(*args, **kwargs)``, computed once for each process.

        images, labels = hopsml.cached(load_digits, return_X_y=True)

    The trials of one trial slot (lane) of a search share a process, so the value is computed once for each slot
    instead of once for each trial. Every call returns the same object: a trial that modifies it modifies it for the
    later trials. A trial with its own process (``isolation="process"``, or the trial after one that failed)
    computes the value again, because the process that it is forked from runs no user code. Threads that request the
    same value wait for the first computation. If ``function`` raises, nothing is cached.

    Two calls are the same when the function's code, captured values and arguments are equal.

    Args:
        function: computes the value.
        *args: its positional arguments.
        **kwargs: its keyword arguments.

    Raises:
        ArgumentError: arguments or captured values cannot be pickled, so calls cannot be compared.
    """
    key = _key(function, args, kwargs)
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _values:
            _values[key] = function(*args, **kwargs)
        return _values[key]  # type: ignore[no-any-return]


def _key(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return the cache key of a call: its code, captured values and arguments, pickled."""
    import cloudpickle

    identity: Any = function
    if isinstance(function, FunctionType):
        # A function defined inside the training function is a different object in each trial, with the same code.
        captured = [cell.cell_contents for cell in function.__closure__ or ()]
        identity = (
            function.__module__,
            function.__qualname__,
            _described(function.__code__),
            captured,
            function.__defaults__,
            function.__kwdefaults__,
        )
    try:
        return bytes(cloudpickle.dumps((identity, args, sorted(kwargs.items()))))
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise ArgumentError(
            f"hopsml.cached({name}, ...): its arguments or captured values cannot be compared "
            f"({type(error).__name__}: {error}); use numbers, text and paths"
        ) from error


def _described(code: CodeType) -> list[Any]:
    """Return a code object's behaviour as plain values, nested functions included, without file and line numbers."""
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, *map(_constant, code.co_consts)]


def _constant(value: Any) -> Any:
    """Return a constant of a code object in a form that can be compared between processes."""
    if isinstance(value, CodeType):
        return _described(value)
    if isinstance(value, frozenset):  # the iteration order differs between processes
        return ["frozenset", *sorted(map(repr, value))]
    return type(value).__name__, repr(value)  # 1, 1.0 and True differ, and so do Ellipsis and complex numbers
