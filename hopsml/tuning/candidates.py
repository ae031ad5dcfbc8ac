"""Candidate settings for the reduction of gradients that tuning measures; no side effects.

Lossy settings, which change the sum, are tried only if the user allows them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from hopsml.errors import ArgumentError

Gradient = tuple[tuple[int, ...], str]  # shape and element type
WIRES: Final = {"fp16": "float16", "bf16": "bfloat16"}  # element type in which float32 is sent; sums lose precision


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


def candidates(lossy: Iterable[str] = ()) -> list[Candidate]:
    """Return all candidates, with the lossy ones that the user allows.

    Args:
        lossy: allowed compressions, of "fp16" and "bf16".

    Raises:
        ArgumentError: an unknown compression.
    """
    wires = list(dict.fromkeys(lossy))
    if unknown := [wire for wire in wires if wire not in WIRES]:
        raise ArgumentError(f"lossy={unknown[0]!r}: it must be of {', '.join(map(repr, WIRES))}, or left out")
    return [OURS, *TENSORFLOWS, *(Candidate(f"hopsml, {wire}", "hopsml", compression=wire) for wire in wires)]


def bytes_of(gradients: Iterable[Gradient]) -> int:
    """Return the size of the gradients in bytes, in their own element types."""
    total = 0
    for shape, kind in gradients:
        elements = 1
        for length in shape:
            elements *= length
        total += elements * _SIZES.get(kind, 4)
    return total


_SIZES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2}
