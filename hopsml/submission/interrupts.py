"""Waitable SIGINT and SIGTERM, for programs that handle these signals in a loop."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType
from typing import Any, Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Context manager that stores SIGINT and SIGTERM until ``wait`` returns them; otherwise they have no effect.

    For the main thread of a program. A pipe stores them: a signal handler may run while a lock is held, so it must take
    none.
    """

    def __init__(self) -> None:
        self.last = 0  # the signal that was returned last
        self._read = self._write = -1
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Wait for the next signal and return its number; None if none arrives.

        Args:
            timeout_s: longest wait in seconds.
            other: descriptor that also ends the wait when it is readable.
        """
        watched = [self._read] if other is None else [self._read, other]
        if self._read not in select.select(watched, [], [], max(0.0, timeout_s))[0]:
            return None
        self.last = os.read(self._read, 1)[0]
        return self.last

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._write, bytes([number]))
        except BlockingIOError:  # thousands of signals that have not been read
            pass


class Waiter(Protocol):
    """Interface for waiting for signals: ``Interrupts`` or ``NoInterrupts``."""

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Return a signal's number; None after ``timeout_s`` seconds, or when the descriptor ``other`` is readable."""


class NoInterrupts:
    """Waiter for a caller that handles signals itself."""

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Wait ``timeout_s`` seconds, or until ``other`` is readable; return None."""
        select.select([] if other is None else [other], [], [], max(0.0, timeout_s))
        return None
