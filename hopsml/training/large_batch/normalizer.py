"""Conversion of hyper-parameters tuned at one batch size to another; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopsml.training.large_batch.numbers import choice, count, number

SCALINGS = ("linear", "sqrt", "none")


@dataclass(frozen=True)
class Normalizer:
    """Conversion of numbers from ``reference_batch_size`` to ``batch_size``, both in samples of the group's batch.

        at = hopsml.large_batch.Normalizer(reference_batch_size=256, batch_size=8192)
        at.learning_rate(0.1), at.decay(0.99), at.steps(1000)

    Args:
        reference_batch_size: batch size at which the numbers were tuned.
        batch_size: batch size to convert to.

    Raises:
        ArgumentError: a size is below 1.
        ArgumentTypeError: a size is not an integer.
    """

    reference_batch_size: int
    batch_size: int

    def __post_init__(self) -> None:
        count("reference_batch_size", self.reference_batch_size)
        count("batch_size", self.batch_size)

    @property
    def ratio(self) -> float:
        """Number of reference batches in one batch."""
        return self.batch_size / self.reference_batch_size

    def learning_rate(self, value: float, rule: str = "linear") -> float:
        """Return a learning rate scaled to the batch size.

        Args:
            value: the learning rate at the reference batch.
            rule: multiply by the ratio ("linear", arXiv 1706.02677), by its square root ("sqrt", 1904.00962), or not
                at all ("none").

        Raises:
            ArgumentError: another rule.
        """
        choice("scaling", rule, SCALINGS)
        return value * {"linear": self.ratio, "sqrt": math.sqrt(self.ratio), "none": 1.0}[rule]

    def decay(self, value: float) -> float:
        """Return a decay factor for each step (momentum, beta) that gives the same memory in samples."""
        return float(number("decay", value, 0, 1) ** self.ratio)

    def steps(self, value: int) -> int:
        """Return a number of steps (between logs, commits, of a warm-up) that covers as many samples; at least 1."""
        return max(1, round(count("steps", value, 0) / self.ratio))
