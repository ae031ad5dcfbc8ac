"""Exponential back-off of retries, and the state of an outage; no side effects: the caller passes the time."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST_DOUBLINGS = 30


def pause_s(failures: int, first_s: float, longest_s: float = math.inf) -> float:
    """Return the pause before the next attempt, in seconds: ``first_s``, then twice as long each time.

    Args:
        failures: number of failed attempts in a row; the pause counts from the last one.
        first_s: pause after the first failure.
        longest_s: upper limit.
    """
    return min(longest_s, first_s * 2.0 ** min(max(0, failures - 1), _MOST_DOUBLINGS))


@dataclass
class Outage:
    """State of an operation that is repeated regularly and may fail for a while. Times are monotonic seconds.

    An operation that was due during an outage counts as missed; ``every_s`` is the interval at which it is due.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    failures: int = 0  # number of failures in a row
    missed: int = 0
    retry_at: float | None = None  # None: there is no outage
    _counted_at: float = 0.0

    def may_try(self, now: float, every_s: float = 0.0) -> bool:
        """Return True if an attempt may be made at ``now``: during an outage only from ``retry_at`` on.

        Call it whenever an attempt is due. During an outage it counts missed ones, at most one per ``every_s`` seconds.
        """
        if self.retry_at is None or now >= self.retry_at:
            return True
        if now - self._counted_at >= every_s:
            self._count(now)
        return False

    def record_failure(self, now: float, every_s: float = 0.0) -> bool:
        """Record a failed attempt.

        Returns:
            True if an outage begins with it, which should be reported.
        """
        begins = self.retry_at is None
        if begins or now - self._counted_at >= every_s:
            self._count(now)
        self.failures += 1
        self.retry_at = now + pause_s(self.failures, self.first_s, self.longest_s)
        return begins

    def record_success(self) -> int:
        """Record a successful attempt, which ends an outage.

        Returns:
            The number of operations that were missed in the outage; 0 if there was none.
        """
        missed, self.missed, self.failures, self.retry_at = self.missed, 0, 0, None
        return missed

    def _count(self, now: float) -> None:
        self.missed += 1
        self._counted_at = now


@dataclass
class Reminder:
    """Schedule of the notes about a loss that lasts: at its beginning, after ``first_s``, then at doubled intervals.

    Times are monotonic seconds.
    """

    first_s: float = 60.0
    longest_s: float = 3600.0
    began_at: float | None = None  # None: there is no loss
    _notes: int = 0
    _next_at: float = 0.0

    def reschedule_if_due(self, now: float) -> bool:
        """Return True if the loss, which lasts at ``now``, is to be noted; the next note is scheduled then."""
        if self.began_at is None:
            self.began_at = self._next_at = now
        if now < self._next_at:
            return False
        self._notes += 1
        self._next_at = now + pause_s(self._notes, self.first_s, self.longest_s)
        return True

    def lasted_s(self, now: float) -> float:
        """Return for how many seconds the loss has lasted; 0 if there is none."""
        return 0.0 if self.began_at is None else now - self.began_at

    def end(self) -> None:
        """Record the end of the loss."""
        self.began_at, self._notes, self._next_at = None, 0, 0.0


def duration_text(seconds: float) -> str:
    """Return a duration for a note: "45 s", "12 min" or "3.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
