"""Estimate of the useful batch size by the gradient noise scale: arXiv 1812.06162, appendix A.1.

Pure but for one exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.training.large_batch.numbers import count, number


class GradientNoiseScale:
    """Estimator of tr(S) / |G|^2, the batch size above which larger batches save few steps.

        noise = hopsml.large_batch.GradientNoiseScale(small_batch=32, big_batch=32 * workers)
        noise.add(small, big)          # squared norms: of the workers' own gradients (their mean), of the reduced one
        noise.advise()                 # a batch size, a power of two

    Numerator and denominator are averaged separately over about ``1 / (1 - decay)`` steps, because the mean of their
    quotients would be biased.

    Args:
        small_batch: samples of the smaller batch, such as that of one worker.
        big_batch: samples of the larger batch, such as that of the group.
        decay: weight of the past in the moving averages, from 0 to below 1.

    Raises:
        ArgumentError: ``big_batch`` is not larger than ``small_batch``, or a number is out of range.
    """

    def __init__(self, small_batch: int, big_batch: int, decay: float = 0.99) -> None:
        self.small_batch, self.big_batch = count("small_batch", small_batch), count("big_batch", big_batch)
        self.decay = number("decay", decay, 0, 1, below=True)
        if big_batch <= small_batch:
            raise ArgumentError(
                f"big_batch={big_batch} with small_batch={small_batch}: the noise is seen in the difference of gradients of "
                "two batch sizes, so two workers or more are needed, or two parts of a worker's batch"
            )
        self._noise, self._signal, self._has_steps = 0.0, 0.0, False

    def add(self, small_squared_norm: float, big_squared_norm: float) -> None:
        """Add one step by its squared gradient norms; a step with an overflow must be left out.

        Args:
            small_squared_norm: squared norm of the small batch's gradient, averaged over the workers.
            big_squared_norm: squared norm of the big batch's gradient.

        Raises:
            ArgumentError: a value is negative or not finite.
        """
        small = number("small_squared_norm", float(small_squared_norm), 0)
        big = number("big_squared_norm", float(big_squared_norm), 0)
        less, more = self.small_batch, self.big_batch
        signal = (more * big - less * small) / (more - less)
        noise = (small - big) / (1 / less - 1 / more)
        self._signal = self.decay * self._signal + (1 - self.decay) * signal
        self._noise = self.decay * self._noise + (1 - self.decay) * noise
        self._has_steps = True

    def add_gradients(self, own: Iterable[Any], reduced: Iterable[Any]) -> None:
        """Add one step by its gradients, lists of arrays; all workers must call it.

        The squared norms of the workers' own gradients are averaged over the workers; outside a run this process's
        norm is used alone.

        Args:
            own: this worker's gradients.
            reduced: the mean of all workers' gradients.
        """
        from hopsml.training.collective import all_reduce

        small = float(all_reduce(squared_norm(own), name="squared norm of a worker's gradient"))
        self.add(small, squared_norm(reduced))

    @property
    def noise_scale(self) -> float:
        """Estimated noise scale in samples; infinite if no gradient exceeds the noise, nan before the first step."""
        if not self._has_steps:
            return math.nan
        return max(0.0, self._noise) / self._signal if self._signal > 0 else math.inf

    def advise(self, least: int = 1, most: int = 1 << 20) -> int:
        """Return the recommended batch size: the power of two nearest to the noise scale, within the limits.

        Args:
            least: smallest batch size.
            most: largest batch size.

        Raises:
            ArgumentError: no step has been added, or no power of two lies within the limits.
        """
        low, high = math.ceil(math.log2(count("least", least))), math.floor(math.log2(count("most", most)))
        if low > high:
            raise ArgumentError(f"advise(least={least}, most={most}): there is no power of two between them")
        scale = self.noise_scale
        if math.isnan(scale):
            raise ArgumentError("advise() before the first add(): there is nothing to advise from")
        wanted = high if scale == math.inf else round(math.log2(max(scale, 1.0)))
        return int(2 ** min(max(wanted, low), high))


def squared_norm(arrays: Iterable[Any]) -> float:
    """Return the sum of the squares of all elements, in float64, of anything that numpy converts to arrays."""
    import numpy as np

    return float(sum(np.sum(np.square(np.asarray(one, np.float64))) for one in arrays))
