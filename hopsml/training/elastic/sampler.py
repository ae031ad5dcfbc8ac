"""Assignment of samples to workers: every sample once in each epoch, however the group changes; pure.

Global batches are consecutive pieces of the epoch's permutation, which depends on the seed and the epoch alone. Each
worker takes its share of each. The position is therefore one number for all workers, and a group of another size
continues after the very sample at which the previous one stopped.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hopsml.cluster.shared.checks import whole_number
from hopsml.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Scaling = Literal["constant", "linear"]
RAMP_EPOCHS = 5.0


class Sampler:
    """Sequence of sample indices in batches, divided among the workers of a group that may change.

        data = hopsml.elastic.Sampler(len(x), global_batch_size=128, seed=1, epochs=10)
        for batch in state.resume(data):        # this worker's indices, shape (n,), n may differ by one among workers
            images = x[batch]
            loss = sum_of_losses / data.batch_size  # of the whole global batch: exact also where shares are uneven

    With ``scaling="constant"`` a global batch has ``global_batch_size`` samples whatever the number of workers. With
    "linear" each worker has ``global_batch_size`` divided by ``reference_workers``, and the global batch grows with
    the group; the learning rate, which is meant for ``reference_workers``, has to follow (arXiv 1706.02677, section
    2.1):

        for batch in state.resume(data):
            optimizer.learning_rate = 0.1 * data.learning_rate_scale

    It falls with the group at once, and rises over ``ramp_epochs`` (section 2.2); see ``Ramp``.
    """

    def __init__(
        self,
        n_samples: int,
        global_batch_size: int,
        seed: int = 0,
        *,
        epochs: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        scaling: Scaling = "constant",
        reference_workers: int = 1,
        ramp_epochs: float = RAMP_EPOCHS,
    ) -> None:
        """Create a sampler for a data set of known size.

        Args:
            n_samples: samples in the data set.
            global_batch_size: samples in a batch of the whole group; with ``scaling="linear"`` of a group of
                ``reference_workers``.
            seed: seed of the permutations.
            epochs: number of passes over the data.
            shuffle: permute the samples in each epoch.
            drop_last: leave out the last batch of an epoch if it is smaller than the others.
            scaling: "constant" or "linear".
            reference_workers: number of workers for which ``global_batch_size`` and the learning rate are meant.
            ramp_epochs: epochs over which the learning rate rises to that of a larger group; 0 for no ramp.

        Raises:
            ArgumentTypeError: an argument is not a number of the right type.
            ArgumentError: a number is out of range.
        """
        self.n_samples = whole_number("n_samples", n_samples)
        self.global_batch_size = whole_number("global_batch_size", global_batch_size)
        self.epochs = whole_number("epochs", epochs)
        self.reference_workers = whole_number("reference_workers", reference_workers)
        if scaling not in ("constant", "linear"):
            raise ArgumentError(f"scaling={scaling!r}: it must be 'constant' or 'linear'")
        if drop_last and n_samples < global_batch_size:
            raise ArgumentError(
                f"drop_last=True with n_samples={n_samples} and global_batch_size={global_batch_size} leaves no "
                "batch; use drop_last=False, or a smaller batch"
            )
        try:
            seed = operator.index(seed)  # also a NumPy integer, which a commit could not hold
        except TypeError:
            raise ArgumentTypeError(f"seed={seed!r} is a {type(seed).__name__}; it must be a whole number") from None
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        if isinstance(ramp_epochs, bool) or not isinstance(ramp_epochs, (int, float)) or not 0 <= ramp_epochs < 1e6:
            raise ArgumentError(f"ramp_epochs={ramp_epochs!r}: it must be a number of epochs, or 0 for none")
        self.scaling, self.ramp_epochs = scaling, ramp_epochs
        self.epoch, self.offset = 0, 0  # position of the next batch
        self.rank, self.world_size = 0, 1
        self.batch_size = 0  # samples in the present global batch
        self._permutation: tuple[int, NDArray[np.int64]] | None = None
        self._ramp: Ramp | None = None

    # ------------------------------------------------------------------------------------------ the group

    def join(self, rank: int, world_size: int) -> None:
        """Use the share of worker ``rank`` in a group of ``world_size`` workers from now on.

        With ``drop_last``, the rest of an epoch may be too small for a batch of a larger group; then the next epoch
        begins.
        """
        self.rank, self.world_size = rank, world_size
        if self._samples == 0:  # also if the rate was read before there was a group
            self._ramp = None
        if self.offset and self._leaves_out(self.n_samples - self.offset):
            self.epoch, self.offset = self.epoch + 1, 0

    def rewind(self) -> None:
        """Return to the beginning of the first epoch."""
        self.epoch, self.offset, self._ramp = 0, 0, None

    def pass_over(self) -> None:
        """Count all epochs as consumed."""
        self.epoch, self.offset = self.epochs, 0

    def _leaves_out(self, samples: int) -> bool:
        """Return True if this number of samples at the end of an epoch is dropped."""
        return self.drop_last and samples < self.size

    @property
    def size(self) -> int:
        """Number of samples in a full global batch of the present group."""
        if self.scaling == "constant":
            return self.global_batch_size
        return max(1, round(self.global_batch_size * self.world_size / self.reference_workers))

    @property
    def learning_rate_scale(self) -> float:
        """Factor for the learning rate of the present batch: 1.0 with a constant global batch."""
        return self._present_ramp().factor(self._samples) if self.scaling == "linear" else 1.0

    @property
    def _samples(self) -> int:
        """Samples consumed since the beginning of the training."""
        return self.epoch * self.n_samples + self.offset

    def _present_ramp(self) -> Ramp:
        """Return the ramp of the learning rate towards the factor for the present group."""
        target, length = self.size / self.global_batch_size, self.ramp_epochs * self.n_samples
        before = first_ramp(target, length) if self._ramp is None else self._ramp
        self._ramp = before.towards(target, self._samples, length)
        return self._ramp

    # ------------------------------------------------------------------------------------------ the position

    def position(self) -> dict[str, int | float]:
        """Return the position in the data, for ``go_to`` in a later process or group; the same on all ranks."""
        position: dict[str, int | float] = {"n_samples": self.n_samples, "seed": self.seed}
        position |= {"epoch": self.epoch, "offset": self.offset}
        if self.scaling == "linear":
            ramp = self._present_ramp()
            position |= {"ramp_start": ramp.start, "ramp_target": ramp.target, "ramp_began": ramp.began}
        return position

    def go_to(self, position: Mapping[str, int | float]) -> None:
        """Continue from a position in the data.

        Args:
            position: result of ``position()``.

        Raises:
            ArgumentError: it belongs to a data set of another size or to another seed.
        """
        for name in ("n_samples", "seed"):
            if position[name] != getattr(self, name):
                raise ArgumentError(
                    f"the stored state has {name}={position[name]}, but this sampler has "
                    f"{name}={getattr(self, name)}; use the same value, so that training continues with the "
                    "remaining samples"
                )
        self.epoch, self.offset = int(position["epoch"]), int(position["offset"])
        if "ramp_start" in position:
            length = self.ramp_epochs * self.n_samples
            self._ramp = Ramp(
                float(position["ramp_start"]), float(position["ramp_target"]), int(position["ramp_began"]), length
            )

    @property
    def is_exhausted(self) -> bool:
        """True if all epochs have been consumed."""
        return self.epoch >= self.epochs

    @property
    def batches_left(self) -> int:
        """Number of global batches until the end of the last epoch, for the present group."""
        if self.is_exhausted:
            return 0
        return self._batches_in(self.n_samples - self.offset) + (self.epochs - self.epoch - 1) * self._batches_in(
            self.n_samples
        )

    def _batches_in(self, samples: int) -> int:
        """Return the number of global batches in a part of an epoch."""
        return samples // self.size if self.drop_last else -(-samples // self.size)

    def next_batch(self) -> NDArray[np.int64]:
        """Return this worker's indices of the next global batch and count it as consumed.

        Raises:
            StopIteration: all epochs are consumed.
        """
        mine: NDArray[np.int64] = worker_share(self.next_global_batch(), self.rank, self.world_size)
        return mine

    def next_global_batch(self) -> NDArray[np.int64]:
        """Return all workers' indices of the next global batch and count it as consumed.

        Raises:
            StopIteration: all epochs are consumed.
        """
        if self.is_exhausted:
            raise StopIteration
        batch = self._order(self.epoch)[self.offset : self.offset + self.size]
        self.advance()
        return batch

    def advance(self) -> None:
        """Count the next global batch as consumed, without returning its indices."""
        self.batch_size = min(self.size, self.n_samples - self.offset)
        self.offset += self.batch_size
        left = self.n_samples - self.offset
        if left == 0 or self._leaves_out(left):
            self.epoch, self.offset = self.epoch + 1, 0

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Return the permutation of an epoch."""
        import numpy as np

        if self._permutation is None or self._permutation[0] != epoch:
            if self.shuffle:
                order = np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(self.n_samples)
            else:
                order = np.arange(self.n_samples)
            self._permutation = (epoch, order)
        return self._permutation[1]


def worker_share(batch: Any, rank: int, world_size: int) -> Any:
    """Return a worker's part of a global batch: consecutive samples; lengths differ by at most one among workers."""
    base, more = divmod(len(batch), world_size)
    start = rank * base + min(rank, more)
    return batch[start : start + base + (rank < more)]


@dataclass(frozen=True)
class Ramp:
    """Factor of the learning rate as a function of the samples seen since the beginning of the training.

    With a global batch k times as large the learning rate is multiplied by k (the linear scaling rule), which holds
    only once the weights no longer change fast. A rise is therefore spread over some epochs, in equal parts with
    every batch: gradual warm-up, arXiv 1706.02677, section 2.2, which takes 5. A fall applies at once, because the
    old rate is too high for the smaller batch.

    The factor goes from ``start`` at ``began`` samples to ``target`` at ``began + length`` samples, and is ``target``
    from there on.
    """

    start: float
    target: float
    began: int = 0
    length: float = 0.0  # samples

    def factor(self, samples: int) -> float:
        """Return the factor after ``samples`` samples; 1.0 means the rate given for the reference group."""
        done = samples - self.began
        if self.target <= self.start or done >= self.length:
            return self.target
        return self.start + (self.target - self.start) * max(0.0, done / self.length)

    def towards(self, target: float, samples: int, length: float) -> Ramp:
        """Return a ramp from the present factor to another target; this one if the target is the same."""
        if target == self.target:
            return self
        return Ramp(self.factor(samples), target, samples, length)


def first_ramp(target: float, length: float) -> Ramp:
    """Return the ramp at the start of a training: from 1.0 to ``target`` over ``length`` samples.

    1.0 is the rate of the reference group.
    """
    return Ramp(1.0, target, 0, length)
