"""Sampler of data in shards: each row once per epoch, even if the group changes during the epoch.

Its counterpart for data that a worker holds as a whole is ``Sampler``. It is pure, except that ``Shards`` may wait for
shards that are not known yet. ``StridedSampler`` serves one of several processes that divide a worker's batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hopsml.errors import ArgumentError
from hopsml.training.data.shard_order import EpochLeg, Piece, RowOrder, Shards, Wave, share_size, split_rows, total_rows


class ShardSampler:
    """Iterator over the pieces of this worker's batches, with a resumable position.

    ``shard_order`` defines the order.
    """

    def __init__(
        self,
        shards: Shards,
        batch_size: int,
        seed: int,
        *,
        epochs: int,
        window: int,
        drop_last: bool,
        first_epoch: int = 0,
    ) -> None:
        """Create a sampler at the first batch, for a group of one worker.

        Args:
            shards: shards of the data set.
            batch_size: rows of a batch, over all workers.
            seed: seed of the row order.
            epochs: number of epochs.
            window: rows that are shuffled together; 0: no shuffling.
            drop_last: whether to leave out the last batch of an epoch if it is smaller.
            first_epoch: number of the first epoch, on which its order depends.
        """
        self.batch_size, self.seed = batch_size, seed
        self._shards, self._first, self._end = shards, first_epoch, first_epoch + epochs
        self._rules = RowOrder(seed, window, drop_last)
        self.rank, self.world_size = 0, 1
        self.global_size = 0  # rows of the latest global batch
        self._whole: Wave | None = None  # all shards, once they have been waited for
        self._leg, self._of_leg, self._rows_of_leg = EpochLeg(1, batch_size), 0, 0
        self.rewind()

    # ------------------------------------------------------------------------------------------ the group

    def join(self, rank: int, world_size: int) -> None:
        """Read the share of worker ``rank`` in a group of ``world_size`` workers from now on."""
        if (rank, world_size) == (self.rank, self.world_size):
            return
        regroups = world_size != self.world_size
        self.rank, self.world_size = rank, world_size
        if self.epoch >= self._end:
            return
        self._regroup(self._leg) if regroups else self._begin_leg(self._leg)

    def _regroup(self, leg: EpochLeg) -> None:
        """Continue with the unread rows of a leg with another number of workers."""
        if leg.done:
            self._ended.append(leg)
        self._begin_leg(replace(leg, workers=self.world_size, done=0))

    @property
    def rank_and_size(self) -> tuple[int, int]:
        """Rank of this worker, and number of workers."""
        return self.rank, self.world_size

    # ------------------------------------------------------------------------------------------ batches

    @property
    def is_exhausted(self) -> bool:
        """True if all epochs have been read; waits for the next wave if that decides it."""
        while self.needs_next_wave:
            if self._leg.done:
                self._ended.append(self._leg)
            self._begin_leg(EpochLeg(self.world_size, self.batch_size, waves=self._leg.waves + 1))
        return self.epoch >= self._end

    @property
    def needs_next_wave(self) -> bool:
        """True if the next batch needs rows of a further wave."""
        return self.epoch < self._end and self._leg.done >= self._of_leg

    @property
    def batches_left(self) -> int | None:
        """Global batches until the end of the last epoch, for the present group; None while the number is unknown."""
        if not self._shards.is_complete:
            return None
        if self.is_exhausted:
            return 0
        return self.batches_left_in_epoch + (self._end - self.epoch - 1) * self.batches_of_epoch

    @property
    def batches_done_in_epoch(self) -> int:
        """Number of global batches of the present epoch that have been read."""
        return self._leg.done + sum(leg.done for leg in self._ended)

    @property
    def batches_left_in_epoch(self) -> int:
        """Number of global batches of the present epoch that remain, for the present group; waits for all waves."""
        if self._leg.is_last:
            return self._of_leg - self._leg.done
        rows = self._rows_of_leg - self._leg.done * self._leg.batch_size
        for number in itertools.count(self._leg.waves):
            wave = self._wave(number)
            rows += sum(wave.shards.values())
            if wave.is_last:
                break
        return self._rules.count_batches(rows, EpochLeg(self.world_size, self.batch_size))

    @property
    def batches_of_epoch(self) -> int:
        """Number of global batches of a whole epoch; waits for all waves."""
        return self._rules.count_batches(sum(self._all().shards.values()), EpochLeg(1, self.batch_size))

    def next_pieces(self) -> list[Piece]:
        """Return this worker's rows of the next global batch, and count the batch as read; may wait.

        Raises:
            StopIteration: the last batch has been read.
        """
        if self.is_exhausted:
            raise StopIteration
        pieces = next(self._parts)
        self.global_size = min(self._leg.batch_size, self._rows_of_leg - self._leg.done * self._leg.batch_size)
        self._leg = replace(self._leg, done=self._leg.done + 1)
        if self._leg.done == self._of_leg and self._leg.is_last:
            self.begin_epoch(self.epoch + 1)
        return pieces

    def advance(self) -> None:
        """Count the next global batch as read, without returning its rows."""
        self.next_pieces()

    def begin_epoch(self, epoch: int) -> None:
        """Move to the first batch of the epoch with this number."""
        self.epoch, self._ended = epoch, list[EpochLeg]()
        self._begin_leg(EpochLeg(self.world_size, self.batch_size))

    def _begin_leg(self, leg: EpochLeg) -> None:
        """Move to the leg's next batch; a last leg without rows for another batch ends the epoch."""
        self._leg, self._of_leg = leg, 0
        self._parts: Iterator[list[Piece]] = iter(())
        if self.epoch >= self._end:
            return
        left = self._left()
        self._leg = leg = replace(leg, is_last=self._wave(leg.waves - 1).is_last)
        self._rows_of_leg = total_rows(left)
        self._of_leg = self._rules.count_batches(self._rows_of_leg, leg)
        if self._of_leg <= leg.done:
            if leg.is_last:  # if an epoch has no batch at all, none has: the training ends
                self.begin_epoch(self.epoch + 1 if self._ended or leg.done else self._end)
            return
        stretch = self._rules.divide_rows(left, leg)[self.rank]
        stream = self._rules.reading_order(stretch, (*self._key(len(self._ended)), self.rank))
        mine = share_size(leg.batch_size, self.rank, leg.workers)
        sizes = itertools.chain([mine * leg.done], itertools.repeat(mine, self._of_leg - leg.done))
        self._parts = split_rows(stream, sizes)
        next(self._parts)

    def _left(self) -> list[Piece]:
        """Return the unread rows at the beginning of the present leg."""
        left, known = list[Piece](), 0
        for number, leg in enumerate((*self._ended, self._leg)):
            for wave in range(known, leg.waves):
                left += self._rules.ordered_rows(self._wave(wave).shards, (self.epoch, wave) if wave else (self.epoch,))
            known = leg.waves
            if number < len(self._ended):
                left = self._rules.unread_rows(left, leg, self._key(number))
        return left

    def _wave(self, number: int) -> Wave:
        """Return a wave of the present epoch; only in the first epoch do shards arrive in several waves."""
        return self._all() if self.epoch else self._shards.wave(number)

    def _all(self) -> Wave:
        """Return all shards as one wave; waits for them."""
        self._whole = self._whole or Wave(self._shards.all_shards(), True)
        return self._whole

    def _key(self, leg: int) -> tuple[int, int]:
        """Return the key that seeds the shuffling of a leg."""
        return self.epoch, leg

    # ------------------------------------------------------------------------------------------ the position

    def position(self) -> dict[str, int | float]:
        """Return the position in the data, for ``go_to`` in another process or group; the same on all ranks."""
        found: dict[str, int | float] = {**self._identity(), "epoch": self.epoch}
        for number, leg in enumerate((*self._ended, self._leg)):
            of_leg = {"workers": leg.workers, "size": leg.batch_size, "done": leg.done, "waves": leg.waves}
            found |= {f"{what} {number}": value for what, value in (of_leg | {"last": int(leg.is_last)}).items()}
        return found

    def go_to(self, position: Mapping[str, int | float]) -> None:
        """Continue from a ``position()``.

        Raises:
            ArgumentError: the position belongs to other data or to another row order.
        """
        for name, value in self._identity().items():
            if position.get(name) != value:
                raise ArgumentError(
                    f"the stored state has {name}={position.get(name)}, but this data set has {name}={value}; use "
                    "the same value, so that training continues with the remaining rows"
                )
        self.epoch, legs = int(position["epoch"]), list[EpochLeg]()
        while f"workers {len(legs)}" in position:
            workers, size, done, waves, last = (
                int(position[f"{what} {len(legs)}"]) for what in ("workers", "size", "done", "waves", "last")
            )
            legs.append(EpochLeg(workers, size, done, waves, bool(last)))
        *self._ended, newest = legs
        if newest.workers == self.world_size or self.epoch >= self._end:
            self._begin_leg(newest)
        else:
            self._regroup(newest)

    def rewind(self) -> None:
        """Move to the beginning of the first epoch; if no epoch has a batch, the sampler is exhausted."""
        self.begin_epoch(self._first)

    def pass_over(self) -> None:
        """Count all epochs as read."""
        self.begin_epoch(self._end)

    def _identity(self) -> dict[str, int]:
        """Return the numbers that a position must agree with to belong to this data and order."""
        return {**self._shards.identity, "seed": self._rules.seed, "window": self._rules.window}


class StridedSampler:
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
    def needs_next_wave(self) -> bool:
        """True if the next batch of this process needs rows that are not known yet."""
        while self._others and not self._sampler.needs_next_wave and not self._sampler.is_exhausted:
            self._pass_one()
        return self._sampler.needs_next_wave

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
