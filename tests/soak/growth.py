"""The decision whether a series of measurements grows with the work that was done. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WARM_UP = 1 / 3  # of the samples: caches and pools fill meanwhile
FEWEST = 6  # samples after that, without which nothing is concluded
SPREADS = 3.0  # so many times the usual distance from the line is no growth


@dataclass(frozen=True)
class Tolerance:
    """What is no growth of a quantity: so much a unit of work, and so much altogether."""

    each: float
    altogether: float


@dataclass(frozen=True)
class Growth:
    """A series that grows: so much a unit of work, from one half of the samples to the other so much altogether."""

    each: float
    altogether: float


def growth(work: Sequence[float], values: Sequence[float], tolerance: Tolerance) -> Growth | None:
    """Decide whether values grow with the work, after the warm-up.

    The second half of what was measured is compared with the first one, by medians; the slope is the median of those
    between all pairs of samples (Theil and Sen). One step, however high, is no growth: both halves must rise, too. Nor is
    what returns: the rise must be more than the usual distance from the line.

    Args:
        work: Units of work that were done before each sample, ascending.
        values: What was measured.
        tolerance: What is no growth.

    Returns:
        The growth; None where there is none, or too few samples were made to tell.
    """
    begin = int(len(values) * WARM_UP)
    points = list(zip(work, values, strict=True))[begin:]
    if len(points) < FEWEST or points[0][0] == points[-1][0]:
        return None
    middle = len(points) // 2
    halves = points[:middle], points[middle:]
    slope = _slope(points)
    risen = median(value for _, value in halves[1]) - median(value for _, value in halves[0])
    base = median(value - slope * done for done, value in points)
    spread = median(abs(value - slope * done - base) for done, value in points)
    is_steady = all(_slope(half) > slope / 4 for half in halves)
    if slope > tolerance.each and risen > tolerance.altogether + SPREADS * spread and is_steady:
        return Growth(slope, risen)
    return None


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Median of the slopes between all pairs; 0 where no work was done."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in itertools.combinations(points, 2)
        if later[0] > earlier[0]
    ]
    return median(slopes) if slopes else 0.0
