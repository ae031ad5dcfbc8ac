"""Median and middle half of repeated measurements, and ratios of paired measurements; pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median with ``low`` and ``high``, the first and third quartile; of three values or fewer the extremes."""

    median: float
    low: float
    high: float
    n: int


def spread_of(values: Sequence[float]) -> Spread:
    """Return the summary of at least one value."""
    if not values:
        raise ValueError("there is nothing to summarise: no round was measured")
    ordered = sorted(values)
    if len(ordered) < 4:
        low, high = ordered[0], ordered[-1]
    else:
        low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(statistics.median(ordered), low, high, len(ordered))


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return each of hopsml's values over the peer's value of the same round.

    Other load on the machine affects both values of a round, so their ratio varies less than either value.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds of ours cannot be paired with {len(theirs)} of theirs")
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]
