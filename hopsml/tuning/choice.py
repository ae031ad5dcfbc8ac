"""Candidate settings for the reduction of gradients, and choice of the fastest by measured rounds; no side effects.

Lossy settings, which change the sum, are candidates only if the user allows them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from hopsml.errors import ArgumentError

Gradient = tuple[tuple[int, ...], str]  # shape and element type
WIRES: Final = {"fp16": "float16", "bf16": "bfloat16"}  # element type in which float32 is sent; sums lose precision
_SIZES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2}
MARGIN = 0.03  # share of the default's time; a smaller gain is less than the difference of two measurements


@dataclass(frozen=True)
class Candidate:
    """Settings of a run (``spec.Communication``) that are measured together.

    ``compression`` is "none" or one of ``WIRES``.
    """

    name: str
    implementation: Literal["tensorflow", "hopsml"]
    merge_scope: int | str = "all"
    scoped_allocator: bool = True
    compression: str = "none"

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``spec.Communication`` that this candidate sets."""
        told: dict[str, Any] = {"implementation": self.implementation}
        if self.implementation == "tensorflow":
            told |= {"merge_scope": self.merge_scope, "scoped_allocator": self.scoped_allocator}
        if self.compression != "none":
            told["compression"] = self.compression
        return told


TENSORFLOWS: Final = (
    Candidate("tensorflow, 32 by allocator", "tensorflow", 32),
    Candidate("tensorflow, all by allocator", "tensorflow", "all"),
    Candidate("tensorflow, 32 by packs", "tensorflow", 32, False),
    Candidate("tensorflow, all by packs", "tensorflow", "all", False),
    Candidate("tensorflow, none merged", "tensorflow", 1, False),
)
OURS: Final = Candidate("hopsml", "hopsml")


def list_candidates(lossy: Iterable[str] = ()) -> list[Candidate]:
    """Return all candidates, with the lossy ones that the user allows.

    Args:
        lossy: allowed compressions, of "fp16" and "bf16".

    Raises:
        ArgumentError: an unknown compression.
    """
    wires = list(dict.fromkeys(lossy))
    if unknown := [wire for wire in wires if wire not in WIRES]:
        raise ArgumentError(
            f"lossy={unknown[0]!r}: the compression must be one of {', '.join(map(repr, WIRES))}, or omitted"
        )
    return [OURS, *TENSORFLOWS, *(Candidate(f"hopsml, {wire}", "hopsml", compression=wire) for wire in wires)]


def total_gradient_bytes(gradients: Iterable[Gradient]) -> int:
    """Return the size of the gradients in bytes, in their own element types."""
    total = 0
    for shape, kind in gradients:
        elements = 1
        for length in shape:
            elements *= length
        total += elements * _SIZES.get(kind, 4)
    return total


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
        raise ArgumentError(
            f"no candidate was measured in every round: { ({name: len(values) for name, values in rounds_ms.items()}) }"
        )
    ratios = {
        name: statistics.median(own / other for own, other in zip(values, rounds_ms[default], strict=True))
        for name, values in rounds_ms.items()
    }
    best = min(ratios, key=lambda name: ratios[name])
    chosen = best if ratios[best] < 1 - margin else default
    medians = {name: round(statistics.median(values), 4) for name, values in rounds_ms.items()}
    return Fastest(chosen, default, round(ratios[chosen], 4), medians)
