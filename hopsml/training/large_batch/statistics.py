"""Moving statistics of several workers' batches as those of all of them; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def reduced(mean: Any, variance: Any, average: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Mean and variance over all workers, by the law of total variance: E[variance] + E[mean^2] - E[mean]^2.

    ``average``: of an array over the workers, who have seen as many samples each. Rounding makes no variance negative.
    """
    whole = average(mean)
    variance = average(variance + mean * mean) - whole * whole
    return whole, variance * (variance > 0)
