"""Fewer points of a curve that look like all of them: each bucket keeps its lowest and its highest. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def kept_indices(values: NDArray[np.float64], most: int) -> list[int]:
    """Indices, ascending, of at most about ``most`` points: first, last, and the extremes of equal buckets.

    What is no finite number is kept once a bucket, so that a gap or an overflow is seen.
    """
    count = len(values)
    if count <= most or count <= 4:
        return list(range(count))
    buckets = max(1, (most - 2) // 2)
    size = -(-count // buckets)
    buckets = -(-count // size)  # as many as hold something
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
