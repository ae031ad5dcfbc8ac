"""Submissions under way: a few at a time, each on a thread, each of which can be broken off."""

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

AT_ONCE = 4  # each is a JVM of a few seconds


class Withdrawal:
    """A Waiter whose only signal is that the submission is not wanted any more."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def withdraw(self) -> None:
        """From any thread."""
        os.eventfd_write(self._event, 1)

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """SIGTERM's number from the withdrawal on; None after ``timeout_s``, or when ``other`` can be read."""
        watched = [self._event] if other is None else [self._event, other]
        ready = select.select(watched, [], [], max(0.0, timeout_s))[0]
        return int(signal.SIGTERM) if self._event in ready else None

    def close(self) -> None:
        """Give the descriptor back, once nobody waits."""
        os.close(self._event)


class Submissions:
    """``submitting`` and ``refused`` are what a Sight wants to know; both may be read from any thread."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hopsml-submit")
        self._lock = threading.Lock()
        self._under_way: dict[str, Withdrawal] = {}
        self._refused: dict[str, str] = {}

    def begin(self, tag: str, submit: Callable[[Waiter], object]) -> None:
        """``submit`` is called on a thread; what it raises is why the tag was refused."""
        with self._lock:
            self._under_way[tag] = Withdrawal()
        self._threads.submit(self._carry_out, tag, submit)

    def _carry_out(self, tag: str, submit: Callable[[Waiter], object]) -> None:
        withdrawal = self._under_way[tag]
        try:
            if withdrawal.wait(0.0) is None:
                submit(withdrawal)
        except Exception as error:  # noqa: BLE001 whatever it was: the job tells it
            log.info("submission of %s failed: %s", tag, error)
            with self._lock:
                self._refused[tag] = str(error) or type(error).__name__
        finally:
            with self._lock:
                del self._under_way[tag]
                withdrawal.close()

    def withdraw(self, tag: str) -> None:
        """Break one off; nothing happens where it has ended."""
        with self._lock:
            if tag in self._under_way:
                self._under_way[tag].withdraw()

    def state(self) -> tuple[frozenset[str], dict[str, str]]:
        """Tags whose submission is under way; tag -> why its submission has failed."""
        with self._lock:
            return frozenset(self._under_way), dict(self._refused)

    def forget(self, tag: str) -> None:
        """Why this one failed has been told."""
        with self._lock:
            self._refused.pop(tag, None)

    def close(self) -> None:
        """Break all off, and wait for their threads."""
        with self._lock:
            for withdrawal in self._under_way.values():
                withdrawal.withdraw()
        self._threads.shutdown(wait=True, cancel_futures=False)
