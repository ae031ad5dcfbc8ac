"""What a number that was chosen at one batch size is at another; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopsml.training.large_batch.numbers import choice, count, number

SCALINGS = ("linear", "sqrt", "none")


@dataclass(frozen=True)
class Normalizer:
    """Carries numbers from ``reference_batch_size`` to ``batch_size``, both in samples of the whole group's batch.

        at = hopsml.large_batch.Normalizer(reference_batch_size=256, batch_size=8192)
        at.learning_rate(0.1), at.decay(0.99), at.steps(1000)

    Raises ArgumentError or ArgumentTypeError for a size that is no whole number of 1 or more.
    """

    reference_batch_size: int
    batch_size: int

    def __post_init__(self) -> None:
        count("reference_batch_size", self.reference_batch_size)
        count("batch_size", self.batch_size)

    @property
    def ratio(self) -> float:
        """How many reference batches one batch holds."""
        return self.batch_size / self.reference_batch_size

    def learning_rate(self, value: float, rule: str = "linear") -> float:
        """A learning rate: times the ratio ("linear", arXiv 1706.02677), its square root ("sqrt", 1904.00962), or as it is.

        Raises ArgumentError for another rule.
        """
        choice("scaling", rule, SCALINGS)
        return value * {"linear": self.ratio, "sqrt": math.sqrt(self.ratio), "none": 1.0}[rule]

    def decay(self, value: float) -> float:
        """A factor by which the past counts at each step (momentum, beta): as long a memory in samples."""
        return float(number("decay", value, 0, 1) ** self.ratio)

    def steps(self, value: int) -> int:
        """A number of steps (between logs, commits, of a warm-up): as many samples, 1 step at least."""
        return max(1, round(count("steps", value, 0) / self.ratio))
