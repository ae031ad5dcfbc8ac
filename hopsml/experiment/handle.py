"""Base class of the handles of runs and searches: a future, and the thread that writes the last files."""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from hopsml.core import tracebacks
from hopsml.errors import RunCancelled
from hopsml.experiment import applications
from hopsml.storage.run_dir import RunDir

# If the system delivers a signal to another thread than the main one, the main thread's wait continues; Python runs the
# signal handler only when that wait ends.
_WAKE_S = 0.5

R = TypeVar("R")


class Handle(ABC, Generic[R]):
    """Handle of something that was started, like a ``concurrent.futures.Future``, usable from any thread."""

    kind = "run"  # noun in messages

    def __init__(self, run_id: str, directory: RunDir) -> None:
        self.run_id, self.directory, self.run_dir = run_id, directory, directory.url
        self._future: concurrent.futures.Future[R] = concurrent.futures.Future()
        self._future.set_running_or_notify_cancel()  # else asyncio and others could cancel the future, but not the run
        self._thread = threading.Thread(target=self._drive, name=f"hopsml-{self.kind}-{run_id}", daemon=True)

    @abstractmethod
    def _end(self) -> tuple[R | None, BaseException | None]:
        """Wait for the end, write the last files, return result or error. Called once, on the handle's thread."""

    @abstractmethod
    def _cancel(self, reason: str) -> None:
        """Start ending it; returns at once."""

    def _drive(self) -> None:
        result, error = None, None
        try:
            result, error = self._end()
        except BaseException as problem:  # noqa: BLE001 callers wait on the future, which is resolved only here
            error = problem
        if error is not None:
            self._future.set_exception(error)
        elif result is not None:
            self._future.set_result(result)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end, at most ``timeout`` seconds, and return the result.

        Ctrl-C, or the interrupt of a notebook's cell, cancels the run or search before KeyboardInterrupt is raised.

        Raises:
            RunCancelled: It was cancelled.
            TimeoutError: It has not ended within ``timeout`` seconds.
            BaseException: Any other error that ended it.
        """
        try:
            error = self.exception(timeout)
        except KeyboardInterrupt:
            self.cancel("interrupted by the user")
            self.join(30)
            applications.after_interrupt()
            # a new exception, as the traceback of the wait has no useful information
            text = f"{self.kind} {self.run_id} was cancelled: {self.run_dir}"
            raise tracebacks.shortened(KeyboardInterrupt(text)) from None
        except concurrent.futures.CancelledError:
            raise RunCancelled(f"{self.kind} {self.run_id} was cancelled", self.run_dir) from None
        if error is not None:
            raise error.with_traceback(None)  # without the frames of an earlier raise
        return self._future.result()

    @property
    def future(self) -> concurrent.futures.Future[R]:
        """Future for ``concurrent.futures.wait`` and ``as_completed``; to cancel, call the handle's ``cancel``."""
        return self._future

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end like ``result``, and return the error that ended it; None after success."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            try:
                return self._future.exception(max(0.0, min(_WAKE_S, deadline - time.monotonic())))
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise

    def done(self) -> bool:
        """Return True if it has ended and its files are complete."""
        return self._future.done()

    def running(self) -> bool:
        """Return True if it has not ended yet, the opposite of ``done``."""
        return not self._future.done()

    def cancel(self, reason: str = "cancelled by the user") -> bool:
        """End it: its workers exit within seconds, and ``result`` raises RunCancelled.

        After a search, ``best`` remains available, and ``experiment.continue_search`` can continue it.

        Returns:
            False if it had ended already.
        """
        if self._future.done():
            return False
        self._cancel(reason)
        return True

    def add_done_callback(self, function: Callable[[concurrent.futures.Future[R]], None]) -> None:
        """Call ``function`` with the future at the end, or at once if it has ended."""
        self._future.add_done_callback(function)

    def join(self, timeout_s: float) -> None:
        """Wait until the files are complete, at most ``timeout_s`` seconds; raises nothing."""
        self._thread.join(timeout_s)
