"""A worker's place in data that lies in shards: every row once an epoch, whatever becomes of the group; pure.

What ``Sampler`` is for data that a worker holds as a whole.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hopsml.errors import ArgumentError
from hopsml.training.data.shard_order import Leg, Piece, Rules, chopped, share, total


class ShardSampler:
    """Gives the pieces of each of this worker's batches; see ``shard_order`` for the order."""

    def __init__(
        self,
        shards: Sequence[int],
        batch_size: int,
        seed: int,
        *,
        epochs: int,
        window: int,
        drop_last: bool,
        first_epoch: int = 0,
    ) -> None:
        """``shards``: their numbers of rows. ``batch_size``: of all workers together. ``window``: rows; 0: no shuffling.

        ``first_epoch``: the number of the first one, which its order depends on.
        """
        self.batch_size, self.seed = batch_size, seed
        self._first, self._end = first_epoch, first_epoch + epochs
        self._rules = Rules(tuple(shards), seed, window, drop_last)
        self.rank, self.world_size = 0, 1
        self.global_size = 0  # rows of the newest global batch
        self._leg, self._of_leg, self._rows_of_leg = Leg(1, batch_size), 0, 0
        self.rewind()

    # ------------------------------------------------------------------------------------------ the group

    def join(self, rank: int, world_size: int) -> None:
        """Take the share of worker ``rank`` in a group of ``world_size`` workers from now on."""
        if (rank, world_size) == (self.rank, self.world_size):
            return
        regroups = world_size != self.world_size
        self.rank, self.world_size = rank, world_size
        if self.is_exhausted:
            return
        if regroups and self._leg.done:
            self._ended.append(self._leg)
            self._begin_leg(Leg(world_size, self.batch_size))
        else:
            self._begin_leg(replace(self._leg, workers=world_size))

    @property
    def group(self) -> tuple[int, int]:
        """Rank of this worker, and number of workers."""
        return self.rank, self.world_size

    # ------------------------------------------------------------------------------------------ batches

    @property
    def is_exhausted(self) -> bool:
        """Whether all epochs have been read."""
        return self.epoch >= self._end

    @property
    def batches_left(self) -> int:
        """Global batches until the end of the last epoch, with the group as it is now."""
        if self.is_exhausted:
            return 0
        return self.left_in_epoch + (self._end - self.epoch - 1) * self._batches_of_epoch()

    @property
    def done_in_epoch(self) -> int:
        """Global batches of the present epoch that have been read."""
        return self._leg.done + sum(leg.done for leg in self._ended)

    @property
    def left_in_epoch(self) -> int:
        """Global batches of the present epoch that are still to be read, with the group as it is now."""
        return self._of_leg - self._leg.done

    def next_pieces(self) -> list[Piece]:
        """This worker's rows of the next global batch, counted as read. Raises StopIteration after the last."""
        if self.is_exhausted:
            raise StopIteration
        pieces = next(self._parts)
        self.global_size = min(self._leg.batch_size, self._rows_of_leg - self._leg.done * self._leg.batch_size)
        self._leg = replace(self._leg, done=self._leg.done + 1)
        if self._leg.done == self._of_leg:
            self.begin_epoch(self.epoch + 1)
        return pieces

    def advance(self) -> None:
        """Count the next global batch as read, without giving its rows."""
        self.next_pieces()

    def _batches_of_epoch(self) -> int:
        return self._rules.batches(sum(self._rules.shards), self.batch_size)

    def begin_epoch(self, epoch: int) -> None:
        """Go to the first batch of an epoch."""
        self.epoch, self._ended = epoch, list[Leg]()
        self._begin_leg(Leg(self.world_size, self.batch_size))

    def _begin_leg(self, leg: Leg) -> None:
        """Go to the leg's next batch. A leg without rows for another batch ends the epoch."""
        self._leg, self._of_leg = leg, 0
        if self.is_exhausted:
            self._parts: Iterator[list[Piece]] = iter(())
            return
        left = self._left()
        self._rows_of_leg = total(left)
        self._of_leg = self._rules.batches(self._rows_of_leg, leg.batch_size)
        if self._of_leg <= leg.done:
            self.begin_epoch(self.epoch + 1)
            return
        stretch = self._rules.stretches(left, leg)[self.rank]
        stream = self._rules.stream(stretch, (*self._key(len(self._ended)), self.rank))
        mine = share(leg.batch_size, self.rank, leg.workers)
        sizes = itertools.chain([mine * leg.done], itertools.repeat(mine, self._of_leg - leg.done))
        self._parts = chopped(stream, sizes)
        next(self._parts)

    def _left(self) -> list[Piece]:
        """What the present leg began with."""
        left = self._rules.epoch(self.epoch)
        for number, leg in enumerate(self._ended):
            left = self._rules.after(left, leg, self._key(number))
        return left

    def _key(self, leg: int) -> tuple[int, int]:
        return self.epoch, leg

    # ------------------------------------------------------------------------------------------ the position

    def position(self) -> dict[str, int | float]:
        """The place in the data, for ``go_to`` in another process or group; the same on all ranks."""
        found: dict[str, int | float] = {**self._identity(), "epoch": self.epoch}
        for number, leg in enumerate((*self._ended, self._leg)):
            found |= {f"workers {number}": leg.workers, f"size {number}": leg.batch_size, f"done {number}": leg.done}
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
            legs.append(Leg(*(int(position[f"{what} {len(legs)}"]) for what in ("workers", "size", "done"))))
        *self._ended, newest = legs
        if newest.workers == self.world_size or self.is_exhausted:
            self._begin_leg(newest)
        elif newest.done:
            self._ended.append(newest)
            self._begin_leg(Leg(self.world_size, self.batch_size))
        else:
            self._begin_leg(replace(newest, workers=self.world_size))

    def rewind(self) -> None:
        """Begin at the first epoch again."""
        self.begin_epoch(self._first if self._batches_of_epoch() else self._end)

    def pass_over(self) -> None:
        """Count all epochs as read."""
        self.begin_epoch(self._end)

    def _identity(self) -> dict[str, int]:
        shards = ",".join(map(str, self._rules.shards)).encode()
        return {
            "rows": sum(self._rules.shards),
            "shards": zlib.crc32(shards),
            "seed": self._rules.seed,
            "window": self._rules.window,
        }
