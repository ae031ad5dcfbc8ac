"""Submissions in progress: a few at a time, each on a thread, and each can be aborted."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hopsml.submission.interrupts import Waiter

log = logging.getLogger("hopsml.service")

AT_ONCE = 4  # each runs a JVM for a few seconds


class Withdrawal:
    """Implementation of ``Waiter`` whose only signal is that the submission was withdrawn."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def withdraw(self) -> None:
        """Signal the withdrawal of the submission; may be called by any thread."""
        os.eventfd_write(self._event, 1)

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Wait for the withdrawal.

        Args:
            timeout_s: Timeout in seconds.
            other: Descriptor whose readability also ends the wait.

        Returns:
            The number of SIGTERM once withdrawn; None after the timeout, or when ``other`` is readable.
        """
        watched = [self._event] if other is None else [self._event, other]
        ready = select.select(watched, [], [], max(0.0, timeout_s))[0]
        return int(signal.SIGTERM) if self._event in ready else None

    def close(self) -> None:
        """Close the event descriptor; no thread may wait for it any more."""
        os.close(self._event)


class Submissions:
    """Thread pool for submissions, with the tags in progress and the errors of failed ones.

    ``state`` may be called by any thread.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hopsml-submit")
        self._lock = threading.Lock()
        self._under_way: dict[str, Withdrawal] = {}
        self._refused: dict[str, str] = {}

    def begin(self, tag: str, submit: Callable[[Waiter], object]) -> None:
        """Call ``submit`` on a thread; the text of its exception becomes the reason of the tag's refusal."""
        with self._lock:
            self._under_way[tag] = Withdrawal()
        self._threads.submit(self._carry_out, tag, submit)

    def _carry_out(self, tag: str, submit: Callable[[Waiter], object]) -> None:
        """Run one submission and record its error, if any."""
        withdrawal = self._under_way[tag]
        try:
            if withdrawal.wait(0.0) is None:
                submit(withdrawal)
        except Exception as error:  # noqa: BLE001 any error is reported as the job's cause
            log.info("submission of %s failed: %s", tag, error)
            with self._lock:
                self._refused[tag] = str(error) or type(error).__name__
        finally:
            with self._lock:
                del self._under_way[tag]
                withdrawal.close()

    def withdraw(self, tag: str) -> None:
        """Abort the submission of a tag; nothing happens if it has ended."""
        with self._lock:
            if tag in self._under_way:
                self._under_way[tag].withdraw()

    def state(self) -> tuple[frozenset[str], dict[str, str]]:
        """Return the tags whose submissions are in progress, and tag -> error of failed submissions."""
        with self._lock:
            return frozenset(self._under_way), dict(self._refused)

    def forget(self, tag: str) -> None:
        """Drop the error of a failed submission that has been stored."""
        with self._lock:
            self._refused.pop(tag, None)

    def close(self) -> None:
        """Abort all submissions, and wait for their threads."""
        with self._lock:
            for withdrawal in self._under_way.values():
                withdrawal.withdraw()
        self._threads.shutdown(wait=True, cancel_futures=False)
