"""Median and middle half of repeated measurements, and ratios of those that were taken side by side; pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """``low`` and ``high`` are the first and third quartile; of three values or fewer the extremes."""

    median: float
    low: float
    high: float
    n: int


def spread_of(values: Sequence[float]) -> Spread:
    """Summary of at least one value."""
    if not values:
        raise ValueError("there is nothing to summarise: no round was measured")
    ordered = sorted(values)
    if len(ordered) < 4:
        low, high = ordered[0], ordered[-1]
    else:
        low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(statistics.median(ordered), low, high, len(ordered))


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Each of ours over the one of theirs that was measured in the same round.

    Other load on the machine meets both of a round, and so leaves their ratio more alone than either value.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds of ours cannot be paired with {len(theirs)} of theirs")
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]
