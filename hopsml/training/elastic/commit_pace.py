"""Whether a commit is written at once, while the training waits, or behind, beside it: by what each has cost; pure.

Written at once it costs the call and nothing else. Written behind it costs the call, and what the batches beside it take
longer than others: an update that comes before a variable is written has to copy it, and all of them share one memory.
Which is less depends on what lies between a commit and the update behind it, so both are tried.
"""

from __future__ import annotations

import statistics
from collections import deque

_SETTLING = 2  # commits that have their memory made first: what they cost is no measure for others
_TRIES = 3  # of each way before one is taken
_LOOK_AGAIN = 32  # every so many commits the way that is not taken is tried
_KEPT_COSTS, _KEPT_BATCHES = 5, 9


class CommitPace:
    """Of one training; times in seconds."""

    def __init__(self) -> None:
        self._commits = 0
        self._usual: deque[float] = deque(maxlen=_KEPT_BATCHES)  # batches beside which nothing was written
        self._costs: dict[bool, deque[float]] = {way: deque(maxlen=_KEPT_COSTS) for way in (True, False)}
        self._call_s: float | None = None  # of a commit that is being written beside the training
        self._longer_s = 0.0  # so much the batches beside it took longer, so far

    @property
    def at_once(self) -> bool:
        """How to write the next commit."""
        if self._commits < _SETTLING:
            return False
        for way in (True, False):  # at once comes first: it shows what a batch takes by itself
            if len(self._costs[way]) < _TRIES:
                return way
        cheaper = self._is_cheaper_at_once()
        return cheaper if self._commits % _LOOK_AGAIN else not cheaper

    @property
    def cost_s(self) -> float:
        """What a commit costs the training, in the way that is taken; 0 where nobody knows yet."""
        known = self._costs[self._is_cheaper_at_once()]
        return statistics.median(known) if known else 0.0

    def _is_cheaper_at_once(self) -> bool:
        at_once, behind = self._costs[True], self._costs[False]
        return bool(at_once) and (not behind or statistics.median(at_once) <= statistics.median(behind))

    def committed(self, at_once: bool, call_s: float) -> None:
        """A commit was made; ``call_s``: how long the training waited for it."""
        self._settle(None)  # the one before is still being written, and costs more than is known
        self._commits += 1
        if not at_once:
            self._call_s, self._longer_s = call_s, 0.0
        else:
            self._costs[True].append(call_s)

    def batch(self, seconds: float, writing_s: float | None) -> None:
        """A batch is over; ``writing_s``: what the newest commit took to write, None where it is being written still."""
        if self._call_s is None:
            self._usual.append(seconds)
            return
        if self._usual:
            self._longer_s += seconds - statistics.median(self._usual)
        if writing_s is not None:
            self._settle(writing_s)

    def _settle(self, writing_s: float | None) -> None:
        """What a commit that was written behind has cost: no more than its writing took, whatever befell the batches."""
        if self._call_s is None:
            return
        longer_s = max(0.0, self._longer_s)
        if self._usual and self._commits > _SETTLING:
            self._costs[False].append(self._call_s + (longer_s if writing_s is None else min(longer_s, writing_s)))
        self._call_s = None
