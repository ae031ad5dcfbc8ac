"""Bounded history of one metric over the steps of a training, which retains its extremes; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]
KEPT = 512  # most points; when there are more, they are thinned to half


class MetricHistory:
    """Values of one metric, thinned when they become many.

    ``low`` and ``high`` are the extremes of all finite values that were added, ``last`` is the newest value.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.low, self.high, self.last = math.inf, -math.inf, math.nan

    @property
    def is_curve(self) -> bool:
        """True if there is something to draw: at least two different values."""
        return self.low < self.high

    def add(self, at: float, value: float) -> None:
        """Append a value at step ``at``; it replaces the values at this and later steps, which are repeated."""
        while self.points and self.points[-1][0] >= at:
            self.points.pop()
        self.points.append((at, value))
        self.last = value
        if math.isfinite(value):
            self.low, self.high = min(self.low, value), max(self.high, value)
        if len(self.points) > KEPT:
            self.points = thinned(self.points, KEPT // 2)


def thinned(points: Sequence[Point], count: int) -> list[Point]:
    """Return at most ``count`` of more points: the first, the last, and the extremes of each section between."""
    inner = points[1:-1]
    stretches = max(1, (count - 2) // 2)
    kept = [points[0]]
    for number in range(stretches):
        stretch = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        if stretch:
            extremes = {min(stretch, key=_height), max(stretch, key=_height)}
            kept += sorted(extremes)
    return [*kept, points[-1]]


def _height(point: Point) -> float:
    """Return the value to compare; NaN is the lowest, so that thinning never removes a gap in the curve."""
    return -math.inf if math.isnan(point[1]) else point[1]
