"""Calls that end in time even when a library blocks for ever: the work is done in a thread that can be
abandoned.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hopsml.errors import StorageTimeout

T = TypeVar("T")


class Steps:
    """Runs the steps of one operation in one helper thread, each under the same deadline.

    Use as a context manager. When a step's deadline passes, StorageTimeout is raised and the thread is
    abandoned: it is a daemon and ends with its blocked call. Later steps of the same object are then refused
    with StorageTimeout.
    """

    def __init__(self, action: str, path: str, timeout_s: float) -> None:
        self._action = action
        self._path = path
        self._timeout_s = timeout_s
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        self._abandoned = False
        self._touched_s = 0.0
        self._thread = threading.Thread(target=self._serve, name=f"storage {action}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._work.put(None)
        if not self._abandoned:
            self._thread.join(self._timeout_s)

    def run(self, step: Callable[[], T]) -> T:
        """The result of ``step()``, or its error, or StorageTimeout."""
        if self._abandoned:
            raise self._timed_out()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.touch()
        self._work.put((step, answer))
        while True:
            left_s = self._touched_s + self._timeout_s - time.monotonic()
            try:
                value, error = answer.get(timeout=max(0.0, left_s))
                break
            except queue.Empty:
                if left_s <= 0:
                    self._abandoned = True
                    raise self._timed_out() from None
        if error is not None:
            raise error
        result: T = value
        return result

    def touch(self) -> None:
        """Called from within a long step when it gets on: its deadline begins anew."""
        self._touched_s = time.monotonic()

    def _timed_out(self) -> StorageTimeout:
        return timed_out(self._action, self._path, self._timeout_s)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            step, answer = item
            try:
                answer.put((step(), None))
            except BaseException as error:  # noqa: BLE001  handed to the caller's thread as it is
                answer.put((None, error))


def timed_out(action: str, path: str, timeout_s: float, why: str = "") -> StorageTimeout:
    """The error for a step that did not end in time."""
    reason = f"; {why}" if why else ""
    return StorageTimeout(
        f"cannot {action} {path}: no step ended within {timeout_s:g} s{reason}; see that the storage service "
        "answers, or raise HOPSML_STORAGE_TIMEOUT_S",
        path,
    )
