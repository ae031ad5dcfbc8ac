"""Choice of the fastest of several methods by their durations in the same rounds; no side effects."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopsml.errors import ArgumentError

MARGIN = 0.03  # share of the default's time; a smaller gain is less than the difference of two measurements


@dataclass(frozen=True)
class Fastest:
    """Result of a choice: ``chosen`` took ``ratio`` of the time of ``default``.

    ``medians_ms`` are the median durations of all methods, in milliseconds.
    """

    chosen: str
    default: str
    ratio: float
    medians_ms: dict[str, float]


def choose(rounds_ms: Mapping[str, Sequence[float]], default: str, margin: float = MARGIN) -> Fastest:
    """Return the fastest method, or the default if the gain is less than ``margin``.

    Each is compared with the default round by round, since other load on the machines affects both in a round alike.

    Args:
        rounds_ms: for each method its duration in every round, in milliseconds; as many rounds of each.
        default: one of the methods.
        margin: share of the default's time.

    Raises:
        ArgumentError: there is no round, the default is missing, or the methods have different numbers of rounds.
    """
    counts = {len(values) for values in rounds_ms.values()}
    if default not in rounds_ms or len(counts) != 1 or counts == {0}:
        raise ArgumentError(f"nothing to choose from: { ({name: len(values) for name, values in rounds_ms.items()}) }")
    ratios = {
        name: statistics.median(own / other for own, other in zip(values, rounds_ms[default], strict=True))
        for name, values in rounds_ms.items()
    }
    best = min(ratios, key=lambda name: ratios[name])
    chosen = best if ratios[best] < 1 - margin else default
    medians = {name: round(statistics.median(values), 4) for name, values in rounds_ms.items()}
    return Fastest(chosen, default, round(ratios[chosen], 4), medians)
