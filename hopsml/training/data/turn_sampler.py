"""Sampler for one of several processes that divide a worker's batches; pure, except that shards may wait."""

from __future__ import annotations

from hopsml.training.data.shard_order import Piece
from hopsml.training.data.shard_sampler import ShardSampler


class TurnSampler:
    """Sampler of every ``turns``-th batch of another sampler; the batches between are counted as read and not read."""

    def __init__(self, sampler: ShardSampler, turn: int, turns: int) -> None:
        """Create a sampler whose first batch is number ``turn`` from the present position of ``sampler``.

        Args:
            sampler: the worker's sampler; it is advanced.
            turn: index of the first batch, below ``turns``.
            turns: number of processes that share the batches.
        """
        self._sampler, self._turns = sampler, turns
        self._others = turn  # batches of other processes before the next batch of this one

    @property
    def is_exhausted(self) -> bool:
        """True if this process has no further batch; waits as the sampler does."""
        while self._others and not self._sampler.is_exhausted:
            self._pass_one()
        return self._sampler.is_exhausted

    @property
    def waits(self) -> bool:
        """True if the next batch of this process needs rows that are not known yet."""
        while self._others and not self._sampler.waits and not self._sampler.is_exhausted:
            self._pass_one()
        return self._sampler.waits

    def next_pieces(self) -> list[Piece]:
        """Return the rows of this process's next batch, and count the batch as read; may wait.

        Raises:
            StopIteration: the last batch has been read.
        """
        if self.is_exhausted:
            raise StopIteration
        self._others = self._turns - 1
        return self._sampler.next_pieces()

    def _pass_one(self) -> None:
        """Count a batch of another process as read."""
        self._sampler.advance()
        self._others -= 1
