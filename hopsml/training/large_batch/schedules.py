"""Schedules of the learning rate by epoch, with the gradual warm-up before, and choice of the batch size.

The batch size follows the gradient noise scale, or grows with the number of workers (arXiv 1812.06162, appendix A.1, and
1711.00489). All is pure but one exchange and the request for workers.

A schedule's ``factor`` uses operators and the few functions of a ``space`` only, so that the same code works on Python
numbers and on the tensors of a compiled TensorFlow step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.checks import whole_number
from hopsml.core import suggestions
from hopsml.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from hopsml.training.elastic.sampler import Sampler


WARMUP_EPOCHS = 5.0  # arXiv 1706.02677, section 2.2
# arXiv 1711.04325, sections 2.1 and 2.2: epochs of the training, and of the change from RMSprop to SGD in it
PUBLISHED_EPOCHS, TRANSITION_CENTER, TRANSITION_PERIOD = 90.0, 10.0, 5.0


def check_number(
    name: str, value: Any, least: float, most: float = math.inf, *, above: bool = False, below: bool = False
) -> float:
    """Return ``value`` as a float if it is a finite number within the bounds; raise an error otherwise.

    Args:
        name: name of the argument, for the error.
        value: the value to check.
        least: lower bound.
        most: upper bound.
        above: exclude the lower bound itself.
        below: exclude the upper bound itself.

    Raises:
        ArgumentTypeError: it is not a number.
        ArgumentError: it is not finite, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a number")
    outside = not least <= value <= most or (above and value == least) or (below and value == most)
    if outside or not math.isfinite(value):
        rule = f"{'more than' if above else 'at least'} {least:g}"
        rule += "" if most == math.inf else f" and {'less than' if below else 'at most'} {most:g}"
        raise ArgumentError(f"{name}={value}: it must be {rule}")
    return float(value)


def check_choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``known``; raise ArgumentError with the nearest name otherwise."""
    names = list(known)
    if value not in names:
        raise ArgumentError(f"{name}={value!r} is unknown; {suggestions.suggestion_text(str(value), names, '')}")
    return str(value)


class PlainNumbers:
    """Functions for computing schedules with Python numbers; a counterpart for TensorFlow uses tensors."""

    cos = staticmethod(math.cos)
    exp = staticmethod(math.exp)
    minimum = staticmethod(min)
    maximum = staticmethod(max)

    @staticmethod
    def where(condition: Any, first: Any, second: Any) -> Any:
        """Return ``first`` if the condition holds, else ``second``."""
        return first if condition else second


@dataclass(frozen=True)
class Constant:
    """Schedule that retains the highest rate until the end."""

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return 1 for every epoch, in the type of ``epoch``."""
        return epoch * 0.0 + 1.0


@dataclass(frozen=True)
class Steps:
    """Schedule that multiplies the rate by ``decay`` at each of ``boundaries``: arXiv 1706.02677, section 5.1.

    Args:
        boundaries: ascending epochs.
        decay: factor above 0 and at most 1.

    Raises:
        ArgumentError: boundaries do not ascend, or ``decay`` is out of range.
    """

    boundaries: tuple[float, ...] = (30.0, 60.0, 80.0)
    decay: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "boundaries", tuple(check_number("boundaries", each, 0, above=True) for each in self.boundaries)
        )
        check_number("decay", self.decay, 0, 1, above=True)
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ArgumentError(
                f"Steps(boundaries={self.boundaries}): they must be different epochs in ascending order"
            )

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return the factor at ``epoch``, which may be a fraction."""
        return _pieces(
            epoch, self.boundaries, [self.decay**passed for passed in range(len(self.boundaries) + 1)], space
        )


@dataclass(frozen=True)
class Cosine:
    """Schedule that falls along half a cosine, from the end of the warm-up to ``end`` of the rate (1608.03983).

    It ends with the last epoch. ``end`` is a fraction of the highest rate, from 0 to 1.
    """

    end: float = 0.0

    def __post_init__(self) -> None:
        check_number("end", self.end, 0, 1)

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return the factor at ``epoch``, which may be a fraction."""
        passed = _passed(epoch, warmup_epochs, epochs, space)
        return self.end + (1 - self.end) * 0.5 * (1 + space.cos(math.pi * passed))


@dataclass(frozen=True)
class Polynomial:
    """Schedule that falls as (1 - passed)^power from the end of the warm-up to the last epoch.

    arXiv 1708.03888, section 5.
    """

    power: float = 2.0

    def __post_init__(self) -> None:
        check_number("power", self.power, 0, above=True)

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return the factor at ``epoch``, which may be a fraction."""
        return (1 - _passed(epoch, warmup_epochs, epochs, space)) ** self.power


@dataclass(frozen=True)
class SlowStart:
    """Schedule with a low rate at first instead of a warm-up, then three falls: arXiv 1711.04325, section 2.2.

    The factor is 0.5 until epoch 40 of 90, 0.075 until 70, 0.01 until 85, then 0.001; for other lengths the epochs
    are in proportion.
    """

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return the factor at ``epoch``, which may be a fraction."""
        return _pieces(
            epoch, [epochs * until / PUBLISHED_EPOCHS for until in (40, 70, 85)], [0.5, 0.075, 0.01, 0.001], space
        )


Schedule = Constant | Steps | Cosine | Polynomial | SlowStart


def warm_up(epoch: Any, start: float, target: float, warmup_epochs: float, space: Any = PlainNumbers) -> Any:
    """Return the rate at ``epoch`` of a linear warm-up from ``start`` to ``target``, and ``target`` afterwards.

    Gradual warm-up, arXiv 1706.02677, section 2.2. A ``target`` below ``start`` applies at once, because the higher
    rate would be too high for it.
    """
    if warmup_epochs <= 0 or target <= start:
        return epoch * 0.0 + target
    return start + (target - start) * space.minimum(epoch / warmup_epochs, epoch * 0.0 + 1.0)


def sgd_share(
    epoch: Any, center: float = TRANSITION_CENTER, period: float = TRANSITION_PERIOD, space: Any = PlainNumbers
) -> Any:
    """Return SGD's share of an update, of which RMSprop has the rest: arXiv 1711.04325, section 2.1.

    It grows exponentially to 1/2 at ``center`` epochs, then linearly to 1 at ``center + period / 2``, without a jump.
    """
    distance = (epoch - center) / period
    zero = distance * 0.0
    rising = space.exp(2 * space.minimum(distance, zero)) / 2
    return space.where(distance < 0, rising, space.minimum(0.5 + distance, zero + 1.0))


def _passed(epoch: Any, warmup_epochs: float, epochs: float, space: Any) -> Any:
    """Return the fraction of the time between warm-up and end that has passed."""
    passed = (epoch - warmup_epochs) / max(epochs - warmup_epochs, 1e-12)
    return space.minimum(space.maximum(passed, epoch * 0.0), epoch * 0.0 + 1.0)


def _pieces(epoch: Any, boundaries: Any, factors: list[float], space: Any) -> Any:
    """Return a piecewise constant function of the epoch."""
    found = epoch * 0.0 + factors[0]
    for boundary, factor in zip(boundaries, factors[1:], strict=True):
        found = space.where(epoch >= boundary, epoch * 0.0 + factor, found)
    return found


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
        self.decay = check_number("decay", decay, 0, 1, below=True)
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
        small = check_number("small_squared_norm", float(small_squared_norm), 0)
        big = check_number("big_squared_norm", float(big_squared_norm), 0)
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

        sizes = hopsml.large_batch.BatchSizeSchedule.doubling(workers=1, every=10, most=8)

        def train():
            ...
            data = hopsml.elastic.Sampler(len(x), 256, epochs=40, scaling="linear", reference_workers=1)
            for batch in state.resume(data):
                sizes.follow(data)
                optimizer.learning_rate = 0.1 * data.learning_rate_scale
                ...

        experiment.torch(train, min_workers=1, max_workers=8, first_workers=sizes.workers(0))

    Without ``first_workers`` a group begins with as many workers as it may have, and changes at its first commit. For
    Keras's ``fit`` pass the schedule to ``hopsml.tensorflow.callbacks(scaling="linear", batch_size_schedule=sizes)``.

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
            (check_number("epoch", epoch, 0), whole_number("workers", workers)) for epoch, workers in changes
        )
        epochs = [epoch for epoch, _ in self.changes]
        if not epochs or epochs[0] != 0 or epochs != sorted(set(epochs)):
            raise ArgumentError(f"BatchSizeSchedule of epochs {epochs}: they must start with 0 and increase")
        self._asked: int | None = None

    @classmethod
    def doubling(cls, workers: int, every: float, most: int) -> BatchSizeSchedule:
        """Return a schedule that doubles the number of workers every ``every`` epochs, up to ``most``."""
        whole_number("most", most, whole_number("workers", workers))
        check_number("every", every, 0, above=True)
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
