"""One of several processes that read a worker's batches in turn: its own ones; pure, but that the rest may wait."""

from __future__ import annotations

from hopsml.training.data.shard_order import Piece
from hopsml.training.data.shard_sampler import ShardSampler


class TurnSampler:
    """Every so many batches of a sampler, from batch ``turn`` on; the others are counted as read, and not read."""

    def __init__(self, sampler: ShardSampler, turn: int, turns: int) -> None:
        """``turns``: of how many processes; batch ``turn`` from where the sampler is comes first."""
        self._sampler, self._turns = sampler, turns
        self._others = turn  # batches of other processes that come before the next own one

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no further batch of its own; waits as the sampler does."""
        while self._others and not self._sampler.is_exhausted:
            self._pass_one()
        return self._sampler.is_exhausted

    @property
    def waits(self) -> bool:
        """Whether the next batch of its own needs rows that are not known yet."""
        while self._others and not self._sampler.waits and not self._sampler.is_exhausted:
            self._pass_one()
        return self._sampler.waits

    def next_pieces(self) -> list[Piece]:
        """The rows of its next batch, counted as read; waits. Raises StopIteration after the last."""
        if self.is_exhausted:
            raise StopIteration
        self._others = self._turns - 1
        return self._sampler.next_pieces()

    def _pass_one(self) -> None:
        self._sampler.advance()
        self._others -= 1
