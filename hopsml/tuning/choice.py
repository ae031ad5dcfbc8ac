"""Which of several ways is taken, by what they took in the same rounds; pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopsml.errors import ArgumentError

MARGIN = 0.03  # of the default's time: what is gained below that is less than two measurements differ by


@dataclass(frozen=True)
class Fastest:
    """``chosen`` took ``ratio`` of the time of ``default``; ``medians_ms`` are those of all."""

    chosen: str
    default: str
    ratio: float
    medians_ms: dict[str, float]


def choose(rounds_ms: Mapping[str, Sequence[float]], default: str, margin: float = MARGIN) -> Fastest:
    """The fastest, or the default where that gains less than ``margin``.

    Each is compared with the default round by round: other load on the machines meets both of a round alike.

    Args:
        rounds_ms: of each way, what it took in every round; as many rounds of each.
        default: one of them.
        margin: share of the default's time.

    Raises ArgumentError without a round, and where the ways have not as many rounds each.
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
