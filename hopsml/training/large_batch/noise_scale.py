"""How large a batch pays: the gradient noise scale of arXiv 1812.06162, appendix A.1; pure but for one exchange."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.training.large_batch.numbers import count, number


class GradientNoiseScale:
    """Estimates tr(S) / |G|^2, the batch size above which larger batches save few steps.

        noise = hopsml.large_batch.GradientNoiseScale(small_batch=32, big_batch=32 * workers)
        noise.add(small, big)          # squared norms: of the workers' own gradients (their mean), of the reduced one
        noise.advise()                 # a batch size, a power of two

    Estimates of both parts are averaged apart over about ``1 / (1 - decay)`` steps: the mean of their quotients is none.

    Raises ArgumentError for batches that do not differ.
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
        """Take in one step. Raises ArgumentError for what is no squared norm; a step of overflow must not be given."""
        small = number("small_squared_norm", float(small_squared_norm), 0)
        big = number("big_squared_norm", float(big_squared_norm), 0)
        less, more = self.small_batch, self.big_batch
        signal = (more * big - less * small) / (more - less)
        noise = (small - big) / (1 / less - 1 / more)
        self._signal = self.decay * self._signal + (1 - self.decay) * signal
        self._noise = self.decay * self._noise + (1 - self.decay) * noise
        self._has_steps = True

    def add_gradients(self, own: Iterable[Any], reduced: Iterable[Any]) -> None:
        """Take in a step by its gradients, lists of arrays: this worker's, and the mean of all workers'.

        All workers call it: the squared norms of their own are averaged. Outside a run it is this process's alone.
        """
        from hopsml.training.collective import all_reduce

        small = float(all_reduce(squared_norm(own), name="squared norm of a worker's gradient"))
        self.add(small, squared_norm(reduced))

    @property
    def noise_scale(self) -> float:
        """The estimate, in samples; infinite where no gradient stands out of the noise, nan before the first step."""
        if not self._has_steps:
            return math.nan
        return max(0.0, self._noise) / self._signal if self._signal > 0 else math.inf

    def advise(self, least: int = 1, most: int = 1 << 20) -> int:
        """The batch size to go on with: the power of two nearest to the noise scale, within the limits.

        Raises ArgumentError before the first step, and where no power of two lies within the limits.
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
    """The sum of all squares, in float64; of what numpy makes arrays of."""
    import numpy as np

    return float(sum(np.sum(np.square(np.asarray(one, np.float64))) for one in arrays))
