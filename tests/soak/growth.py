"""Decision if a series of measurements grows with the work done. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WARM_UP = 1 / 3  # of the samples, during which caches and pools fill
FEWEST = 6  # samples after the warm-up that a decision needs
SPREADS = 3.0  # tolerated rise, in multiples of the usual distance from the line


@dataclass(frozen=True)
class Tolerance:
    """Tolerated growth of a quantity, per unit of work and in total."""

    each: float
    altogether: float


@dataclass(frozen=True)
class Growth:
    """Growth of a series, per unit of work, and in total from one half of the samples to the other."""

    each: float
    altogether: float


def growth(work: Sequence[float], values: Sequence[float], tolerance: Tolerance) -> Growth | None:
    """Decide if values grow with the work, after the warm-up.

    The medians of the first and second half of the samples are compared; the slope is the median of those between all pairs
    of samples (Theil and Sen). A single step is no growth, however high: both halves must rise, too. Nor is a temporary
    rise: the rise must exceed the usual distance from the line.

    Args:
        work: Units of work done before each sample, ascending.
        values: The measured values.
        tolerance: The tolerated growth.

    Returns:
        The growth; None if there is none, or too few samples.
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
