"""``hopsml.cached``: values that are loaded once in a process, for all trials that it runs."""

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
    """The value of ``function(*args, **kwargs)``, computed by the first call in this process.

        images, labels = hopsml.cached(load_digits, return_X_y=True)

    In a search the trials of one lane share a process, and so the value: once a slot instead of once a trial. It is the
    same object each time: a trial that changes it changes it for those behind it. A trial with a process of its own
    (``isolation="process"``, or the one behind a trial that failed) loads it anew, for no code of the user's runs in the
    process that it is forked from. Threads that ask for the same value wait for the first. An error is not kept.

    Calls are the same when code, captured values and arguments are. Raises ArgumentError where those cannot be compared,
    because they cannot be pickled.
    """
    key = _key(function, args, kwargs)
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _values:
            _values[key] = function(*args, **kwargs)
        return _values[key]  # type: ignore[no-any-return]


def _key(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    import cloudpickle

    identity: Any = function
    if isinstance(function, FunctionType):
        # A function inside the training function is another object in each trial, with the same code.
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
            f"hopsml.cached({name}, ...): its arguments or captured values cannot be compared ({type(error).__name__}: "
            f"{error}); give it numbers, text and paths"
        ) from error


def _described(code: CodeType) -> list[Any]:
    """What a function does, with those that are written in it, but not where it stands."""
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, *map(_constant, code.co_consts)]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _described(value)
    if isinstance(value, frozenset):  # in an order that each process has of its own
        return ["frozenset", *sorted(map(repr, value))]
    return type(value).__name__, repr(value)  # 1, 1.0 and True differ; Ellipsis and complex numbers are told apart, too
