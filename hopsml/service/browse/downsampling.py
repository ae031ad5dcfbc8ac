"""Downsampling of curves that preserves their appearance: each bucket retains its lowest and highest point; pure."""

from __future__ import annotations

import sys
from array import array

import numpy as np
from numpy.typing import NDArray

KEPT_POINTS = 16_384  # points of one curve in memory, 32 bytes each: more than three times those of one response
NEWEST_POINTS = 64  # newest points, which are never merged: they show a worker's present use of its machine


class Curve:
    """Points of a growing curve, in bounded memory.

    Up to ``most`` points all are stored. Beyond that, equal ranges of point numbers are merged into the lowest and the
    highest point of each range; the first, the newest and the last finite point are always retained.
    """

    def __init__(self, most: int = KEPT_POINTS) -> None:
        """Start an empty curve.

        Args:
            most: Number of points that are stored, at least 512.
        """
        self.count = 0  # of all points, stored or merged
        self.steps, self.times, self.values = array("d"), array("d"), array("d")
        self._numbers = array("q")
        self._most = most

    def add(self, step: float, time: float, value: float) -> None:
        """Append a point to the curve; ``time`` is in seconds since 1970."""
        if len(self.values) >= self._most:
            self._merge()
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)
        self._numbers.append(self.count)
        self.count += 1

    def limit(self, most: int) -> None:
        """Limit the number of stored points to ``most``, at least 512, from now on."""
        self._most = most
        if len(self.values) > most:
            self._merge()

    @property
    def is_whole(self) -> bool:
        """True if no points were merged."""
        return self.count == len(self.values)

    @property
    def held_bytes(self) -> int:
        """Memory used by the points, in bytes."""
        return sum(map(sys.getsizeof, (self.steps, self.times, self.values, self._numbers)))

    def _merge(self) -> None:
        """Merge the points into ranges, of which there are at most a quarter of the limit."""
        width = 1 << max(0, (-(-4 * self.count // self._most) - 1).bit_length())  # at most a quarter as many ranges
        values, ranges = np.array(self.values), np.array(self._numbers) // width
        newest = np.arange(max(0, len(values) - NEWEST_POINTS), len(values))
        finite = np.flatnonzero(np.isfinite(values))
        kept = np.unique(np.concatenate([[0], _extremes(values, ranges), finite[-1:], newest]).astype(int))
        for points in (self.steps, self.times, self.values, self._numbers):
            points[:] = array(points.typecode, np.array(points)[kept].tobytes())


def _extremes(values: NDArray[np.float64], ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of the lowest, the highest and the first non-finite value of each range of equal numbers."""
    begins = np.flatnonzero(np.diff(ranges, prepend=-1))
    lengths = np.diff(begins, append=len(values))
    is_finite = np.isfinite(values)
    low, high = np.where(is_finite, values, np.inf), np.where(is_finite, values, -np.inf)
    chosen = [
        low == np.repeat(np.minimum.reduceat(low, begins), lengths),
        high == np.repeat(np.maximum.reduceat(high, begins), lengths),
        ~is_finite,
    ]
    found = []
    for mask in chosen:
        indices = np.flatnonzero(mask)
        found.append(indices[np.unique(ranges[indices], return_index=True)[1]])
    return np.concatenate(found)


def kept_indices(values: NDArray[np.float64], most: int) -> list[int]:
    """Return the ascending indices of at most about ``most`` points: first, last, and the extremes of equal buckets.

    Of values that are not finite, one per bucket is retained, so that gaps and overflows are visible.
    """
    count = len(values)
    if count <= most or count <= 4:
        return list(range(count))
    buckets = max(1, (most - 2) // 2)
    size = -(-count // buckets)
    buckets = -(-count // size)  # number of buckets that are not empty
    padded = np.full(buckets * size, np.nan)
    padded[:count] = values
    pieces = padded.reshape(buckets, size)
    finite = np.isfinite(pieces)
    begins = np.arange(buckets) * size
    lowest = begins + np.where(finite, pieces, np.inf).argmin(axis=1)
    highest = begins + np.where(finite, pieces, -np.inf).argmax(axis=1)
    gaps = (begins + finite.argmin(axis=1))[~finite.all(axis=1)]
    found = np.unique(np.concatenate([[0, count - 1], lowest, highest, gaps]))
    return [int(index) for index in found if index < count]
