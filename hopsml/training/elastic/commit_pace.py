"""Choice between writing a commit synchronously and in the background, by the measured cost of each; pure.

A synchronous commit costs the duration of the call and nothing else. A background commit costs the call, and the time
by which the batches during the write take longer than others: an update of a variable that is not written yet has to
copy it, and all share the memory bandwidth. Which costs less depends on what happens between a commit and the next
update, so both are tried.
"""

from __future__ import annotations

import statistics
from collections import deque

_SETTLING = 2  # commits during which memory is first allocated; their cost is not representative
_TRIES = 3  # of each mode before one is chosen
_LOOK_AGAIN = 32  # number of commits after which the other mode is tried once more
_KEPT_COSTS, _KEPT_BATCHES = 5, 9


class CommitPace:
    """Cost measurement and mode choice for the commits of one training; times are in seconds."""

    def __init__(self) -> None:
        self._commits = 0
        self._usual: deque[float] = deque(maxlen=_KEPT_BATCHES)  # batches during which nothing was written
        self._costs: dict[bool, deque[float]] = {way: deque(maxlen=_KEPT_COSTS) for way in (True, False)}
        self._call_s: float | None = None  # call duration of a commit that is being written in the background
        self._longer_s = 0.0  # extra time of the batches since that commit

    @property
    def at_once(self) -> bool:
        """True if the next commit should be written synchronously."""
        if self._commits < _SETTLING:
            return False
        for way in (True, False):  # synchronous first, because it shows the duration of an undisturbed batch
            if len(self._costs[way]) < _TRIES:
                return way
        cheaper = self._is_cheaper_at_once()
        return cheaper if self._commits % _LOOK_AGAIN else not cheaper

    @property
    def cost_s(self) -> float:
        """Median cost of a commit in the cheaper mode, in seconds; 0 before the first measurement."""
        known = self._costs[self._is_cheaper_at_once()]
        return statistics.median(known) if known else 0.0

    def _is_cheaper_at_once(self) -> bool:
        """Return True if synchronous commits have the lower median cost."""
        at_once, behind = self._costs[True], self._costs[False]
        return bool(at_once) and (not behind or statistics.median(at_once) <= statistics.median(behind))

    def committed(self, at_once: bool, call_s: float) -> None:
        """Record the cost of a commit.

        Args:
            at_once: True if it was written synchronously.
            call_s: seconds that the training waited for it.
        """
        self._settle(None)  # the previous one is still being written, so its final cost is not known
        self._commits += 1
        if not at_once:
            self._call_s, self._longer_s = call_s, 0.0
        else:
            self._costs[True].append(call_s)

    def batch(self, seconds: float, writing_s: float | None) -> None:
        """Record the end of a batch.

        Args:
            seconds: duration of the batch.
            writing_s: seconds that writing the newest commit took; None while it is being written.
        """
        if self._call_s is None:
            self._usual.append(seconds)
            return
        if self._usual:
            self._longer_s += seconds - statistics.median(self._usual)
        if writing_s is not None:
            self._settle(writing_s)

    def _settle(self, writing_s: float | None) -> None:
        """Record the cost of a background commit, at most the duration of its write even if batches were slower."""
        if self._call_s is None:
            return
        longer_s = max(0.0, self._longer_s)
        if self._usual and self._commits > _SETTLING:
            self._costs[False].append(self._call_s + (longer_s if writing_s is None else min(longer_s, writing_s)))
        self._call_s = None
