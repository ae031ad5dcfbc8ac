"""Whether to send a trial to a lane that is still busy, so that it goes on without asking the driver.

Sending ahead saves the time between a lane's end of one trial and its begin of the next: the way to the driver and back,
and what the searcher needs for an answer. It costs knowledge: the configuration was chosen without the result that the
lane is working on, without those that come in meanwhile, and before a paused trial that may have become promotable.
So it pays where that gap is a noticeable share of a trial, and nowhere else: with trials of a second and a gap of 3 ms it
would buy 0.3 % of the time, with trials of 50 ms 6 %. Both are measured here: the duration by what trials took, the gap by
the time between sending a trial to an idle lane and its begin. In the gap lie the searcher's own time, the journal's,
and with many lanes the time that the driver is busy with the others: so their number needs no rule of its own.

The end of a search is not lost by it: what waits behind a busy lane while another has nothing to do is withdrawn
(places.py), and nothing is sent ahead once there are fewer trials left than lanes.
"""

from __future__ import annotations

from collections import deque
from statistics import median

WORTH = 0.01  # a gap of this share of a trial is worth closing
GAP_S = 0.005  # assumed until one was measured
_KEPT = 15  # gaps whose median counts: a single pause of the driver shall not
_WEIGHT = 0.1  # of the newest duration in their mean


class Prefetch:
    """Measures how long lanes idle between trials and how long trials take, and decides whether prefetching pays."""

    def __init__(self, fixed: bool | None = None) -> None:
        self._fixed = fixed
        self._gaps: deque[float] = deque(maxlen=_KEPT)
        self.gap_s = GAP_S
        self.mean_s: float | None = None

    def gap(self, seconds: float) -> None:
        """Record the ``seconds`` between sending a trial to an idle lane that ran trials before, and its begin there."""
        self._gaps.append(seconds)
        self.gap_s = median(self._gaps)

    def took(self, seconds: float) -> None:
        """Record the ``seconds`` that an attempt of a trial ran, until its end or pause."""
        self.mean_s = seconds if self.mean_s is None else self.mean_s + _WEIGHT * (seconds - self.mean_s)

    @property
    def pays(self) -> bool:
        """Whether to send a trial to a lane that is still busy."""
        if self._fixed is not None:
            return self._fixed
        return self.mean_s is not None and self.gap_s > WORTH * self.mean_s
