"""Time that this process waits for storage, which the detection of standstills leaves out.

A worker in a call of its store makes no step and uses no processor time, for as long as a NameNode fails over. All calls
of the file systems count, and waits for checkpoints that another process stores. A worker installs ``set_wait_reporter``; a
process that it forks counts separately, by the same reporter. Elsewhere nothing is counted.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type[Any])

# Seconds waited in calls that have ended, and the monotonic time since which a call is in progress; 0.0: none is.
Report = Callable[[float, float], None]


class _Waits:
    """Calls in progress of this process, in all of its threads; overlapping ones count once."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin without calls: those of other threads do not exist in a forked child."""
        self._lock, self._calls = threading.Lock(), 0
        self._waited_s, self._since = 0.0, 0.0

    def begin(self) -> None:
        """Count a call."""
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._since = time.monotonic()
                self._tell()

    def end(self) -> None:
        """Count the end of a call."""
        with self._lock:
            if not self._calls:  # it began in the process from which this one was forked
                return
            self._calls -= 1
            if not self._calls:
                self._waited_s += time.monotonic() - self._since
                self._since = 0.0
                self._tell()

    def _tell(self) -> None:
        """Report the state; the caller holds the lock."""
        if self.report is not None:
            self.report(self._waited_s, self._since)


_waits = _Waits()


def set_wait_reporter(report: Report | None) -> None:
    """Set the function that is called at each begin and end of a wait for storage; None: waits are not counted.

    It applies to this process and to those that it forks from now on.
    """
    _waits.report = report


class StorageWait:
    """Context in which this process waits for storage."""

    def __enter__(self) -> None:
        """Count the wait from now on, if anybody is interested in it."""
        self._counts = _waits.report is not None
        if self._counts:
            _waits.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the wait."""
        if self._counts:
            _waits.end()


def counted_as_wait(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with its calls counted as waits for storage."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        if _waits.report is None:
            return function(*arguments, **named)
        with StorageWait():
            return function(*arguments, **named)

    return call


def count_calls_as_waits(file_system: C) -> C:
    """Return the class of a file system with each call of its public methods counted as a wait for storage."""
    for name, method in list(vars(file_system).items()):
        if not name.startswith("_") and callable(method):
            setattr(file_system, name, counted_as_wait(method))
    return file_system
