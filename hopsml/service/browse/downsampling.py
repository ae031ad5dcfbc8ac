"""Fewer points of a curve that look like all of them: each bucket keeps its lowest and its highest. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


def kept_indices(values: Sequence[float], most: int) -> list[int]:
    """Indices, ascending, of at most about ``most`` points: first, last, and the extremes of equal buckets.

    What is no number (NaN, infinite) is kept once a bucket, so that a gap or an overflow is seen.
    """
    count = len(values)
    if count <= most or count <= 4:
        return list(range(count))
    buckets = max(1, (most - 2) // 2)
    kept = {0, count - 1}
    for bucket in range(buckets):
        begin, end = bucket * count // buckets, (bucket + 1) * count // buckets
        finite = [index for index in range(begin, end) if math.isfinite(values[index])]
        if finite:
            kept.add(min(finite, key=values.__getitem__))
            kept.add(max(finite, key=values.__getitem__))
        if len(finite) < end - begin:
            kept.add(next(index for index in range(begin, end) if not math.isfinite(values[index])))
    return sorted(kept)
