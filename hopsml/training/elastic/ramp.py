"""How a learning rate follows a global batch that changes size: down at once, up gradually; pure.

With a global batch k times as large the learning rate is multiplied by k (the linear scaling rule), which holds only
once the weights no longer change fast. So a rise is spread over some epochs, in equal parts with every batch: gradual
warm-up, arXiv 1706.02677, section 2.2, which takes 5. A fall needs no such time, and must not wait: the old rate is too
high for the smaller batch.
"""

from __future__ import annotations

from dataclasses import dataclass

RAMP_EPOCHS = 5.0


@dataclass(frozen=True)
class Ramp:
    """Factor of the learning rate as a function of the samples seen since the beginning of the training.

    From ``start`` at ``began`` samples to ``target`` at ``began + length`` samples, and ``target`` from there on.
    """

    start: float
    target: float
    began: int = 0
    length: float = 0.0  # samples

    def factor(self, samples: int) -> float:
        """The factor after ``samples`` samples; 1.0 means the rate that was given for the reference group."""
        done = samples - self.began
        if self.target <= self.start or done >= self.length:
            return self.target
        return self.start + (self.target - self.start) * max(0.0, done / self.length)

    def towards(self, target: float, samples: int, length: float) -> Ramp:
        """A ramp from the present factor to another target; this one if the target is the same."""
        if target == self.target:
            return self
        return Ramp(self.factor(samples), target, samples, length)


def first_ramp(target: float, length: float) -> Ramp:
    """The ramp of a training that begins: from 1.0 (the reference group's rate) to ``target`` over ``length`` samples."""
    return Ramp(1.0, target, 0, length)
