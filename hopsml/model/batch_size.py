"""How many rows a model is called with at once: found out on the first batches. Pure; times come from outside."""

from __future__ import annotations

FIRST = 256
FACTOR = 4
LARGEST = 65_536
WORTH = 1.05  # so much faster a larger batch must be, since it takes more memory
MOST_BYTES = 64 << 20  # of the inputs of one batch
SAMPLES = 2  # calls with each size; the faster one counts


class BatchTuner:
    """Makes batches larger as long as that makes rows faster.

    ``row_bytes``: of one row of inputs. ``fixed``: a size that was given; then nothing is tried.
    """

    def __init__(self, row_bytes: int, fixed: int | None = None) -> None:
        self._most = max(1, min(LARGEST, MOST_BYTES // max(1, row_bytes)))
        self.size = fixed if fixed is not None else min(FIRST, self._most)  # rows of the next call
        self.settled = fixed is not None
        self._best, self._rate, self._seen = self.size, 0.0, list[float]()
        self._warm = False

    def took(self, rows: int, seconds: float) -> None:
        """A call with so many rows took so long; fewer rows than ``size`` say nothing, nor does the first call of all."""
        if self.settled or rows != self.size:
            return
        if not self._warm:
            self._warm = True
            return
        self._seen.append(rows / max(seconds, 1e-9))
        if len(self._seen) < SAMPLES:
            return
        rate, self._seen = max(self._seen), []
        if rate < self._rate * WORTH:
            self.size, self.settled = self._best, True
            return
        self._best, self._rate = self.size, rate
        larger = min(self.size * FACTOR, self._most)
        self.settled = larger == self.size
        self.size = larger
