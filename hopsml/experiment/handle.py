"""What the handles of a run and of a search have in common: a future, and the thread that ends it."""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from hopsml import tracebacks
from hopsml.errors import RunCancelled
from hopsml.experiment import applications
from hopsml.storage.run_dir import RunDir

# Where the system hands a signal to another thread than the main one, nothing ends the main thread's wait; Python answers
# the signal when that wakes.
_WAKE_S = 0.5

R = TypeVar("R")


class Handle(ABC, Generic[R]):
    """Something that was started, as a ``concurrent.futures.Future``. Every method may be called from any thread."""

    kind = "run"  # as messages call it

    def __init__(self, run_id: str, directory: RunDir) -> None:
        self.run_id, self.directory, self.run_dir = run_id, directory, directory.url
        self._future: concurrent.futures.Future[R] = concurrent.futures.Future()
        self._future.set_running_or_notify_cancel()  # else asyncio and others could cancel it, and nothing of what it is for
        self._thread = threading.Thread(target=self._drive, name=f"hopsml-{self.kind}-{run_id}", daemon=True)

    @abstractmethod
    def _end(self) -> tuple[R | None, BaseException | None]:
        """Wait for the end and write the last files; what came of it, or the error. Called once, on the handle's thread."""

    @abstractmethod
    def _cancel(self, reason: str) -> None:
        """Begin to end it; returns at once."""

    def _drive(self) -> None:
        result, error = None, None
        try:
            result, error = self._end()
        except BaseException as problem:  # noqa: BLE001 whoever waits for the result must get it: nobody else ends that wait
            error = problem
        if error is not None:
            self._future.set_exception(error)
        elif result is not None:
            self._future.set_result(result)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end, at most ``timeout`` seconds, and return what came of it.

        Raises what ended it, or TimeoutError. Ctrl-C, or the interrupt of a notebook's cell, cancels it before it goes on as
        KeyboardInterrupt.
        """
        try:
            error = self.exception(timeout)
        except KeyboardInterrupt:
            self.cancel("interrupted by the user")
            self.join(30)
            applications.after_interrupt()
            # a new one: where in the wait it came is nothing to a person
            text = f"{self.kind} {self.run_id} was cancelled: {self.run_dir}"
            raise tracebacks.shortened(KeyboardInterrupt(text)) from None
        except concurrent.futures.CancelledError:
            raise RunCancelled(f"{self.kind} {self.run_id} was cancelled", self.run_dir) from None
        if error is not None:
            raise error.with_traceback(None)  # which would begin with the frames of an earlier raise
        return self._future.result()

    @property
    def future(self) -> concurrent.futures.Future[R]:
        """For ``concurrent.futures.wait`` and ``as_completed``, which take no other class; ``cancel`` is the handle's."""
        return self._future

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as ``result`` does; returns the error that ended it, None after success."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            try:
                return self._future.exception(max(0.0, min(_WAKE_S, deadline - time.monotonic())))
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise

    def done(self) -> bool:
        """Whether it is over and its files are complete."""
        return self._future.done()

    def running(self) -> bool:
        """Whether it is not over yet: the opposite of ``done``."""
        return not self._future.done()

    def cancel(self, reason: str = "cancelled by the user") -> bool:
        """End it: its workers are gone within seconds, and ``result`` raises RunCancelled. False when it was over already.

        Of a search, ``best`` stands, and ``experiment.continue_search`` can go on with it.
        """
        if self._future.done():
            return False
        self._cancel(reason)
        return True

    def add_done_callback(self, function: Callable[[concurrent.futures.Future[R]], None]) -> None:
        """Call ``function`` with the future at the end, or at once when it is over."""
        self._future.add_done_callback(function)

    def join(self, timeout_s: float) -> None:
        """Wait until the files are complete, at most ``timeout_s`` seconds; raises nothing."""
        self._thread.join(timeout_s)
