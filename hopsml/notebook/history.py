"""One metric over the steps of a training: bounded, and its extremes are never lost; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]
KEPT = 512  # points; half of them stay when there are more


class MetricHistory:
    """The values of one metric. ``low`` and ``high`` are of all finite values that were added, ``last`` is the newest."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.low, self.high, self.last = math.inf, -math.inf, math.nan

    @property
    def is_curve(self) -> bool:
        """Whether there is a course to be seen: two values that differ."""
        return self.low < self.high

    def add(self, at: float, value: float) -> None:
        """The next value. One at an earlier place takes the place of what was there: those steps are made once more."""
        while self.points and self.points[-1][0] >= at:
            self.points.pop()
        self.points.append((at, value))
        self.last = value
        if math.isfinite(value):
            self.low, self.high = min(self.low, value), max(self.high, value)
        if len(self.points) > KEPT:
            self.points = thinned(self.points, KEPT // 2)


def thinned(points: Sequence[Point], count: int) -> list[Point]:
    """At most ``count`` of the points, which are more: the first, the last, and of each stretch its lowest and highest."""
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
    """NaN counts as the lowest: a gap in the curve must not be thinned away."""
    return -math.inf if math.isnan(point[1]) else point[1]
