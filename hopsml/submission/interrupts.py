"""SIGINT and SIGTERM as something that can be waited for."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType
from typing import Any, Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context manager; within it both signals are kept until ``wait`` hands them out, and do nothing by themselves.

    For the main thread of a program. A pipe carries them: a handler may run while a lock is held, and must take none.
    """

    def __init__(self) -> None:
        self.last = 0  # the signal that was handed out last
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
        """The next signal's number, at once when there is one; None when none came within ``timeout_s``, or when the
        descriptor ``other`` can be read.
        """
        watched = [self._read] if other is None else [self._read, other]
        if self._read not in select.select(watched, [], [], max(0.0, timeout_s))[0]:
            return None
        self.last = os.read(self._read, 1)[0]
        return self.last

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._write, bytes([number]))
        except BlockingIOError:  # thousands of signals that nobody has looked at
            pass


class Waiter(Protocol):
    """What waits for signals: ``Interrupts``, or ``NoInterrupts``."""

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """A signal's number; None after ``timeout_s``, or when the descriptor ``other`` can be read."""


class NoInterrupts:
    """A Waiter for a caller that handles signals itself."""

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Wait ``timeout_s`` seconds, or until ``other`` can be read; there is never a signal."""
        select.select([] if other is None else [other], [], [], max(0.0, timeout_s))
        return None
