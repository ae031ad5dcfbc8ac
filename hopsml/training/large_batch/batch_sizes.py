"""Choice of the batch size: gradient noise scale, and growth through the number of workers.

arXiv 1812.06162, appendix A.1, and 1711.00489. Pure but for one exchange and the request for workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.checks import whole_number
from hopsml.errors import ArgumentError
from hopsml.training.large_batch.schedules import number

if TYPE_CHECKING:
    from hopsml.training.elastic.sampler import Sampler


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
        self.small_batch, self.big_batch = (
            whole_number("small_batch", small_batch),
            whole_number("big_batch", big_batch),
        )
        self.decay = number("decay", decay, 0, 1, below=True)
        if big_batch <= small_batch:
            raise ArgumentError(
                f"big_batch={big_batch} with small_batch={small_batch}: the gradient noise is estimated from two "
                "different batch sizes; use at least two workers, or two parts of a worker's batch"
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
        low, high = (
            math.ceil(math.log2(whole_number("least", least))),
            math.floor(math.log2(whole_number("most", most))),
        )
        if low > high:
            raise ArgumentError(
                f"advise(least={least}, most={most}): there is no power of two between these bounds; widen them"
            )
        scale = self.noise_scale
        if math.isnan(scale):
            raise ArgumentError("advise() was called before the first add(); add gradients first")
        wanted = high if scale == math.inf else round(math.log2(max(scale, 1.0)))
        return int(2 ** min(max(wanted, low), high))


def squared_norm(arrays: Iterable[Any]) -> float:
    """Return the sum of the squares of all elements, in float64, of anything that numpy converts to arrays."""
    import numpy as np

    return float(sum(np.sum(np.square(np.asarray(one, np.float64))) for one in arrays))


class BatchSizeSchedule:
    """Schedule of the number of workers by epoch; the batch of each stays the same, so the global batch grows.

        sizes = hopsml.large_batch.BatchSizeSchedule.doubling(workers=2, every=10, most=8)
        data = hopsml.elastic.Sampler(len(x), 256, epochs=40, scaling="linear", reference_workers=2)
        for batch in state.resume(data):
            sizes.follow(data)
            optimizer.learning_rate = 0.1 * data.learning_rate_scale

    The learning rate follows the Sampler: when the group grows, it rises from its present value over the Sampler's
    ``ramp_epochs``, also during a warm-up, so nothing is multiplied twice.

    Args:
        changes: pairs of an epoch and the number of workers from that epoch on; the first epoch is 0.

    Raises:
        ArgumentError: epochs do not ascend from 0, or a number is below 1.
        ArgumentTypeError: a value is not a number of the right type.
    """

    def __init__(self, changes: Iterable[tuple[float, int]]) -> None:
        self.changes = tuple(
            (number("epoch", epoch, 0), whole_number("workers", workers)) for epoch, workers in changes
        )
        epochs = [epoch for epoch, _ in self.changes]
        if not epochs or epochs[0] != 0 or epochs != sorted(set(epochs)):
            raise ArgumentError(f"BatchSizeSchedule of epochs {epochs}: they must start with 0 and increase")
        self._asked: int | None = None

    @classmethod
    def doubling(cls, workers: int, every: float, most: int) -> BatchSizeSchedule:
        """Return a schedule that doubles the number of workers every ``every`` epochs, up to ``most``."""
        whole_number("most", most, whole_number("workers", workers))
        number("every", every, 0, above=True)
        changes = [(0.0, workers)]
        while changes[-1][1] < most:
            changes.append((changes[-1][0] + every, min(most, changes[-1][1] * 2)))
        return cls(changes)

    def workers(self, epoch: float) -> int:
        """Return the scheduled number of workers after ``epoch`` epochs."""
        return [workers for begins, workers in self.changes if begins <= epoch][-1]

    def follow(self, sampler: Sampler) -> None:
        """Request the number of workers scheduled for the sampler's epoch, once for each change.

        It calls ``hopsml.elastic.resize``. The group changes at its next commit, if the driver has the slots; outside
        a run nothing happens.

        Args:
            sampler: sampler of the training.

        Raises:
            ArgumentError: the sampler's batch does not grow with the group.
        """
        if sampler.scaling != "linear":
            raise ArgumentError(
                f"follow() with Sampler(scaling={sampler.scaling!r}): the global batch of this sampler does not "
                "depend on the group; create it with scaling='linear'"
            )
        wanted = self.workers(sampler.epoch + sampler.offset / sampler.n_samples)
        if wanted in (self._asked, sampler.world_size):
            return
        from hopsml.training.messages import resize

        resize(wanted)
        self._asked = wanted
