"""Tuning of the number of rows in one call of a model, on the first batches. Pure; times come from the caller."""

from __future__ import annotations

FIRST = 256
FACTOR = 4
LARGEST = 65_536
WORTH = 1.05  # minimum speed-up that justifies a larger batch, which takes more memory
MOST_BYTES = 64 << 20  # maximum size of the inputs of one batch
SAMPLES = 2  # calls with each size; the fastest one counts


class BatchTuner:
    """Tuner that enlarges batches while that increases the rows per second.

    Attributes:
        size: Number of rows for the next call.
        settled: True if the size is final.
    """

    def __init__(self, row_bytes: int, fixed: int | None = None) -> None:
        """Initialize the tuner with its first size.

        Args:
            row_bytes: Size of one row of inputs, in bytes.
            fixed: Size given by the user, which is not tuned.
        """
        self._most = max(1, min(LARGEST, MOST_BYTES // max(1, row_bytes)))
        self.size = fixed if fixed is not None else min(FIRST, self._most)  # rows of the next call
        self.settled = fixed is not None
        self._best, self._rate, self._seen = self.size, 0.0, list[float]()
        self._warm = False

    def record_call(self, rows: int, seconds: float) -> None:
        """Record the duration of a call; the first call, and calls with fewer rows than ``size``, are ignored."""
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
