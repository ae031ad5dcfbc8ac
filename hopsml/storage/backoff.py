"""When what has failed is tried again, and what is said of it meanwhile; pure, the caller has the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST_DOUBLINGS = 30


def pause_s(failures: int, first_s: float, longest_s: float = math.inf) -> float:
    """Seconds from the last of ``failures`` in a row to the next attempt: ``first_s``, then twice as long each time."""
    return min(longest_s, first_s * 2.0 ** min(max(0, failures - 1), _MOST_DOUBLINGS))


@dataclass
class Outage:
    """Something that is due again and again, and fails for a while. Times are monotonic seconds.

    ``every_s``: how often it is due; what was due during an outage and not done counts as missed.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    failures: int = 0  # in a row
    missed: int = 0
    retry_at: float | None = None  # None: there is no outage
    _counted_at: float = 0.0

    def may_try(self, now: float, every_s: float = 0.0) -> bool:
        """Whether to try at ``now``: during an outage only from ``retry_at`` on. To be asked whenever an attempt is due."""
        if self.retry_at is None or now >= self.retry_at:
            return True
        if now - self._counted_at >= every_s:
            self._count(now)
        return False

    def failed(self, now: float, every_s: float = 0.0) -> bool:
        """An attempt has failed; whether an outage begins with it, which is when people are told."""
        begins = self.retry_at is None
        if begins or now - self._counted_at >= every_s:
            self._count(now)
        self.failures += 1
        self.retry_at = now + pause_s(self.failures, self.first_s, self.longest_s)
        return begins

    def succeeded(self) -> int:
        """An attempt has succeeded; how many were missed in the outage that ends with it, 0 where there was none."""
        missed, self.missed, self.failures, self.retry_at = self.missed, 0, 0, None
        return missed

    def _count(self, now: float) -> None:
        self.missed += 1
        self._counted_at = now
