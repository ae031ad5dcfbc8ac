"""A worker's place in data that lies in shards: every row once an epoch, whatever becomes of the group.

What ``Sampler`` is for data that a worker holds as a whole. Pure, but that ``Shards`` may wait for what is not there yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hopsml.errors import ArgumentError
from hopsml.training.data.shard_order import Leg, Piece, Rules, Shards, Wave, chopped, share, total


class ShardSampler:
    """Gives the pieces of each of this worker's batches; see ``shard_order`` for the order."""

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
        """``batch_size``: of all workers together. ``window``: rows; 0: no shuffling.

        ``first_epoch``: the number of the first one, which its order depends on.
        """
        self.batch_size, self.seed = batch_size, seed
        self._shards, self._first, self._end = shards, first_epoch, first_epoch + epochs
        self._rules = Rules(seed, window, drop_last)
        self.rank, self.world_size = 0, 1
        self.global_size = 0  # rows of the newest global batch
        self._whole: Wave | None = None  # all shards, once somebody has waited for them
        self._leg, self._of_leg, self._rows_of_leg = Leg(1, batch_size), 0, 0
        self.rewind()

    # ------------------------------------------------------------------------------------------ the group

    def join(self, rank: int, world_size: int) -> None:
        """Take the share of worker ``rank`` in a group of ``world_size`` workers from now on."""
        if (rank, world_size) == (self.rank, self.world_size):
            return
        regroups = world_size != self.world_size
        self.rank, self.world_size = rank, world_size
        if self.epoch >= self._end:
            return
        self._regroup(self._leg) if regroups else self._begin_leg(self._leg)

    def _regroup(self, leg: Leg) -> None:
        """Go on with what a leg of another number of workers has left."""
        if leg.done:
            self._ended.append(leg)
        self._begin_leg(replace(leg, workers=self.world_size, done=0))

    @property
    def group(self) -> tuple[int, int]:
        """Rank of this worker, and number of workers."""
        return self.rank, self.world_size

    # ------------------------------------------------------------------------------------------ batches

    @property
    def is_exhausted(self) -> bool:
        """Whether all epochs have been read; waits where the next wave tells."""
        while self.waits:
            if self._leg.done:
                self._ended.append(self._leg)
            self._begin_leg(Leg(self.world_size, self.batch_size, waves=self._leg.waves + 1))
        return self.epoch >= self._end

    @property
    def waits(self) -> bool:
        """Whether the next batch needs rows of a further wave."""
        return self.epoch < self._end and self._leg.done >= self._of_leg

    @property
    def batches_left(self) -> int | None:
        """Global batches until the end of the last epoch, with the group as it is now; None while that is not known."""
        if not self._shards.is_whole:
            return None
        if self.is_exhausted:
            return 0
        return self.left_in_epoch + (self._end - self.epoch - 1) * self.batches_of_epoch

    @property
    def done_in_epoch(self) -> int:
        """Global batches of the present epoch that have been read."""
        return self._leg.done + sum(leg.done for leg in self._ended)

    @property
    def left_in_epoch(self) -> int:
        """Global batches of the present epoch that are still to be read, with the group as it is; waits for all waves."""
        if self._leg.is_last:
            return self._of_leg - self._leg.done
        rows = self._rows_of_leg - self._leg.done * self._leg.batch_size
        for number in itertools.count(self._leg.waves):
            wave = self._wave(number)
            rows += sum(wave.shards.values())
            if wave.is_last:
                break
        return self._rules.batches(rows, Leg(self.world_size, self.batch_size))

    @property
    def batches_of_epoch(self) -> int:
        """Global batches of a whole epoch; waits for all waves."""
        return self._rules.batches(sum(self._all().shards.values()), Leg(1, self.batch_size))

    def next_pieces(self) -> list[Piece]:
        """This worker's rows of the next global batch, counted as read; waits. Raises StopIteration after the last."""
        if self.is_exhausted:
            raise StopIteration
        pieces = next(self._parts)
        self.global_size = min(self._leg.batch_size, self._rows_of_leg - self._leg.done * self._leg.batch_size)
        self._leg = replace(self._leg, done=self._leg.done + 1)
        if self._leg.done == self._of_leg and self._leg.is_last:
            self.begin_epoch(self.epoch + 1)
        return pieces

    def advance(self) -> None:
        """Count the next global batch as read, without giving its rows."""
        self.next_pieces()

    def begin_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch."""
        self.epoch, self._ended = epoch, list[Leg]()
        self._begin_leg(Leg(self.world_size, self.batch_size))

    def _begin_leg(self, leg: Leg) -> None:
        """Go to the leg's next batch. A last one without rows for another batch ends the epoch."""
        self._leg, self._of_leg = leg, 0
        self._parts: Iterator[list[Piece]] = iter(())
        if self.epoch >= self._end:
            return
        left = self._left()
        self._leg = leg = replace(leg, is_last=self._wave(leg.waves - 1).is_last)
        self._rows_of_leg = total(left)
        self._of_leg = self._rules.batches(self._rows_of_leg, leg)
        if self._of_leg <= leg.done:
            if leg.is_last:  # an epoch without any batch is like all the others
                self.begin_epoch(self.epoch + 1 if self._ended or leg.done else self._end)
            return
        stretch = self._rules.stretches(left, leg)[self.rank]
        stream = self._rules.stream(stretch, (*self._key(len(self._ended)), self.rank))
        mine = share(leg.batch_size, self.rank, leg.workers)
        sizes = itertools.chain([mine * leg.done], itertools.repeat(mine, self._of_leg - leg.done))
        self._parts = chopped(stream, sizes)
        next(self._parts)

    def _left(self) -> list[Piece]:
        """What the present leg began with."""
        left, known = list[Piece](), 0
        for number, leg in enumerate((*self._ended, self._leg)):
            for wave in range(known, leg.waves):
                left += self._rules.order(self._wave(wave).shards, (self.epoch, wave) if wave else (self.epoch,))
            known = leg.waves
            if number < len(self._ended):
                left = self._rules.after(left, leg, self._key(number))
        return left

    def _wave(self, number: int) -> Wave:
        """Of the present epoch: the first one takes shards as they come."""
        return self._all() if self.epoch else self._shards.wave(number)

    def _all(self) -> Wave:
        self._whole = self._whole or Wave(self._shards.whole(), True)
        return self._whole

    def _key(self, leg: int) -> tuple[int, int]:
        return self.epoch, leg

    # ------------------------------------------------------------------------------------------ the position

    def position(self) -> dict[str, int | float]:
        """The place in the data, for ``go_to`` in another process or group; the same on all ranks."""
        found: dict[str, int | float] = {**self._identity(), "epoch": self.epoch}
        for number, leg in enumerate((*self._ended, self._leg)):
            of_leg = {"workers": leg.workers, "size": leg.batch_size, "done": leg.done, "waves": leg.waves}
            found |= {f"{what} {number}": value for what, value in (of_leg | {"last": int(leg.is_last)}).items()}
        return found

    def go_to(self, position: Mapping[str, int | float]) -> None:
        """Continue from a ``position()``. Raises ArgumentError if it belongs to other data or another order."""
        for name, value in self._identity().items():
            if position.get(name) != value:
                raise ArgumentError(
                    f"the state to go on from was made with {name}={position.get(name)}, this data set has {name}={value}: "
                    "it must be the same, or the same rows cannot be told apart"
                )
        self.epoch, legs = int(position["epoch"]), list[Leg]()
        while f"workers {len(legs)}" in position:
            workers, size, done, waves, last = (
                int(position[f"{what} {len(legs)}"]) for what in ("workers", "size", "done", "waves", "last")
            )
            legs.append(Leg(workers, size, done, waves, bool(last)))
        *self._ended, newest = legs
        if newest.workers == self.world_size or self.epoch >= self._end:
            self._begin_leg(newest)
        else:
            self._regroup(newest)

    def rewind(self) -> None:
        """Begin at the first epoch again; without a batch in any there is none."""
        self.begin_epoch(self._first)

    def pass_over(self) -> None:
        """Count all epochs as read."""
        self.begin_epoch(self._end)

    def _identity(self) -> dict[str, int]:
        return {**self._shards.identity, "seed": self._rules.seed, "window": self._rules.window}
