"""Batch sizes that grow during training through the number of workers: arXiv 1711.00489; pure but for the request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hopsml.errors import ArgumentError
from hopsml.training.large_batch.numbers import count, number

if TYPE_CHECKING:
    from hopsml.training.elastic.sampler import Sampler


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
        self.changes = tuple((number("epoch", epoch, 0), count("workers", workers)) for epoch, workers in changes)
        epochs = [epoch for epoch, _ in self.changes]
        if not epochs or epochs[0] != 0 or epochs != sorted(set(epochs)):
            raise ArgumentError(f"BatchSizeSchedule of epochs {epochs}: they must begin with 0 and ascend")
        self._asked: int | None = None

    @classmethod
    def doubling(cls, workers: int, every: float, most: int) -> BatchSizeSchedule:
        """Return a schedule that doubles the number of workers every ``every`` epochs, up to ``most``."""
        count("most", most, count("workers", workers))
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
                f"follow() with Sampler(scaling={sampler.scaling!r}): its batch stays the same whatever the group; make it "
                "with scaling='linear'"
            )
        wanted = self.workers(sampler.epoch + sampler.offset / sampler.n_samples)
        if wanted in (self._asked, sampler.world_size):
            return
        from hopsml.training.messages import resize

        resize(wanted)
        self._asked = wanted
