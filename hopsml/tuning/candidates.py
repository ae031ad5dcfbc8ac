"""The ways to reduce gradients that tuning tries; pure.

What changes the sum is tried where it was asked for, and never otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from hopsml.errors import ArgumentError

Gradient = tuple[tuple[int, ...], str]  # shape and element type
WIRES: Final = {"fp16": "float16", "bf16": "bfloat16"}  # what float32 is sent as, and sums lose by it


@dataclass(frozen=True)
class Candidate:
    """Settings of a run (``spec.Communication``) that are tried together; ``compression``: "none" or one of ``WIRES``."""

    name: str
    implementation: Literal["tensorflow", "hopsml"]
    merge_scope: int | str = 32
    scoped_allocator: bool = True
    compression: str = "none"

    def settings(self) -> dict[str, Any]:
        """The fields of ``spec.Communication`` that it stands for."""
        told: dict[str, Any] = {"implementation": self.implementation}
        if self.implementation == "tensorflow":
            told |= {"merge_scope": self.merge_scope, "scoped_allocator": self.scoped_allocator}
        if self.compression != "none":
            told["compression"] = self.compression
        return told


TENSORFLOWS: Final = (
    Candidate("tensorflow, 32 by allocator", "tensorflow"),
    Candidate("tensorflow, all by allocator", "tensorflow", "all"),
    Candidate("tensorflow, 32 by packs", "tensorflow", 32, False),
    Candidate("tensorflow, all by packs", "tensorflow", "all", False),
    Candidate("tensorflow, none merged", "tensorflow", 1, False),
)
OURS: Final = Candidate("hopsml", "hopsml")


def candidates(lossy: Iterable[str] = ()) -> list[Candidate]:
    """All that may be chosen; ``lossy``: which compressions the user allows, of "fp16" and "bf16".

    Raises ArgumentError for another one.
    """
    wires = list(dict.fromkeys(lossy))
    if unknown := [wire for wire in wires if wire not in WIRES]:
        raise ArgumentError(f"lossy={unknown[0]!r}: it must be of {', '.join(map(repr, WIRES))}, or left out")
    return [OURS, *TENSORFLOWS, *(Candidate(f"hopsml, {wire}", "hopsml", compression=wire) for wire in wires)]


def bytes_of(gradients: Iterable[Gradient]) -> int:
    """What gradients take as they are computed."""
    total = 0
    for shape, kind in gradients:
        elements = 1
        for length in shape:
            elements *= length
        total += elements * _SIZES.get(kind, 4)
    return total


_SIZES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2}
