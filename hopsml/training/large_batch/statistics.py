"""Statistics of batch normalisations over training data, from sums that workers add up; pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.large_batch.schedules import check_number


def moments_of_sums(count: Any, total: Any, squares: Any, correction: int = 0) -> tuple[Any, Any]:
    """Return mean and variance of values of which the number, the sum and the sum of squares are known.

    Rounding never makes a variance negative.

    Args:
        count: number of values, above 0.
        total: their sum.
        squares: sum of their squares.
        correction: subtracted from the number for the variance: 0, or 1 for an unbiased estimate.
    """
    mean = total / count
    variance = squares / count - mean * mean
    return mean, variance * (variance > 0) * (count / max(count - correction, 1))


def check_any_rows(counts: Iterable[float]) -> None:
    """Raise ArgumentError if all of these numbers of rows are 0."""
    if not any(counts):
        raise ArgumentError("recompute_statistics: no worker has a batch with rows; pass batches of the training data")


def first_batches(batches: Any, share: float) -> Iterable[Any]:
    """Return the first ``share`` of the batches, rounded up to a whole number of batches.

    Raises:
        ArgumentError: ``share`` is not above 0 and at most 1, or the number of batches is unknown and ``share`` below 1.
        ArgumentTypeError: ``batches`` cannot be iterated over, or ``share`` is not a number.
    """
    if not isinstance(batches, Iterable):
        raise ArgumentTypeError(
            f"batches={type(batches).__name__}: pass an iterable of batches, such as a list or a data set"
        )
    if check_number("share", share, 0, above=True) > 1:
        raise ArgumentError(f"share={share!r}: it must be greater than 0 and at most 1, for all batches")
    if share == 1:
        return batches
    try:
        number = len(batches)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            f"share={share!r} of batches of unknown number: pass the batches to use, such as itertools.islice(batches, 100)"
        ) from None
    return itertools.islice(batches, math.ceil(share * number))
