"""Combination of moving statistics of several workers' batches into those of all batches; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def reduced(mean: Any, variance: Any, average: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return mean and variance over all workers, by the law of total variance.

    E[variance] + E[mean^2] - E[mean]^2; rounding never makes a variance negative.

    Args:
        mean: this worker's mean.
        variance: this worker's variance.
        average: averages an array over the workers, which have all seen the same number of samples.
    """
    whole = average(mean)
    variance = average(variance + mean * mean) - whole * whole
    return whole, variance * (variance > 0)
