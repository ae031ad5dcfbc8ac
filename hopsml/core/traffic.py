"""Bytes that this process moves over the network by hopsml itself, by purpose, as its worker's samples have them.

The storage is counted here by its adapter, the feed of rows by its client. The collective is native code and counts by
itself (``hopsml_count_into``). A worker installs ``set_traffic_reporter``; a process that it forks counts separately, by
the same reporter. Elsewhere nothing is counted. Traffic of frameworks (NCCL, gloo, gRPC, pyarrow) is not included.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

COLLECTIVE, FEED, STORAGE = "collective", "feed", "storage"
COUNTED = (FEED, STORAGE)  # in this module

# Bytes received and sent so far, for each purpose of ``COUNTED``.
Totals = tuple[int, ...]
Report = Callable[[Totals], None]


class _Traffic:
    """Totals of this process, in all of its threads."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.collective = 0
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin at zero, with a lock that no thread of the parent holds."""
        self._lock, self._totals = threading.Lock(), [0] * (2 * len(COUNTED))

    def add(self, purpose: str, received: int, sent: int) -> None:
        """Add bytes, and report the totals."""
        place = 2 * COUNTED.index(purpose)
        with self._lock:
            self._totals[place] += received
            self._totals[place + 1] += sent
            if self.report is not None:
                self.report(tuple(self._totals))


_traffic = _Traffic()


def set_traffic_reporter(report: Report | None, collective: int = 0) -> None:
    """Set where the bytes are counted, for this process and those that it forks from now on.

    Args:
        report: Called with the totals after each transfer; None: nothing is counted.
        collective: Address of two counters of 64 bits for the collective, as of ``hopsml_count_into``; 0 for none.
    """
    _traffic.report, _traffic.collective = report, collective


def collective_counters() -> int:
    """Return the address of the counters for the collective; 0 for none."""
    return _traffic.collective


def count(purpose: str, *, received: int = 0, sent: int = 0) -> None:
    """Count bytes of a transfer for ``FEED`` or ``STORAGE``."""
    if _traffic.report is not None:
        _traffic.add(purpose, received, sent)
