"""Every row once an epoch, of one worker, whatever becomes of the group; no shard is read by more workers than it must."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.errors import ArgumentError
from hopsml.training.data.shard_order import (
    KnownShards,
    Shards,
    Span,
    Wave,
    Window,
    first_filled,
    joined,
    located,
    total,
)
from hopsml.training.data.shard_sampler import ShardSampler

pytestmark = pytest.mark.fast

Row = tuple[int, int]  # a shard, and a row of it


class Arriving:
    """Shards that become known by and by, in any order; nobody may wait for a wave longer than it needs it."""

    @property
    def identity(self) -> dict[str, int]:
        return {}

    def __init__(self, waves: list[list[int]], rows: list[int]) -> None:
        self.waves, self.rows, self.known = waves, rows, 0

    @property
    def is_whole(self) -> bool:
        return self.known == len(self.waves)

    def wave(self, number: int) -> Wave:
        self.known = max(self.known, number + 1)
        return Wave({shard: self.rows[shard] for shard in self.waves[number]}, number == len(self.waves) - 1)

    def whole(self) -> dict[int, int]:
        self.known = len(self.waves)
        return dict(enumerate(self.rows))


def sampler(shards: Any, batch: int = 4, seed: int = 1, **named: Any) -> ShardSampler:
    known: Shards = KnownShards(shards) if isinstance(shards, list) else shards()
    return ShardSampler(known, batch, seed, **{"epochs": 1, "window": 8, "drop_last": False} | named)


def rows_of(pieces: Any) -> list[Row]:
    found = []
    for there, places, rows in map(located, pieces):
        shards = list(there)
        found += [(shards[place], row) for place, row in zip(places.tolist(), rows.tolist(), strict=True)]
        assert all(row < there[shard] for shard, row in found[-len(rows) :])
    return found


def group(size: int, position: Any = None, **named: Any) -> list[ShardSampler]:
    """A new process for each worker, at a position."""
    made = [sampler(**named) for _ in range(size)]
    for rank, one in enumerate(made):
        one.join(rank, size)
        if position is not None:
            one.go_to(position)
    return made


def everything(shards: Any) -> Counter[Row]:
    return Counter((shard, row) for shard, rows in enumerate(shards) for row in range(rows))


SHARDS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


WAVES = st.lists(st.integers(0, 3), min_size=6, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    shards=SHARDS,
    waves=st.none() | WAVES,
    batch=st.integers(1, 9),
    window=st.sampled_from([0, 1, 3, 8, 100]),
    epochs=st.integers(1, 2),
    groups=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5), st.booleans()), max_size=5),
)
def test_every_row_is_read_once_an_epoch_by_groups_of_any_size(
    shards: list[int],
    waves: list[int] | None,
    batch: int,
    window: int,
    epochs: int,
    groups: list[tuple[int, int, bool]],
) -> None:
    """``groups``: a size, how many batches it makes, and whether new processes follow it or the same ones.

    ``waves``: for each shard the one in which it becomes known; None where all are known.
    """
    named: dict[str, Any] = {"shards": shards, "batch": batch, "window": window, "epochs": epochs}
    if waves is not None:
        those = [[shard for shard in range(len(shards)) if waves[shard] == wave] for wave in range(4)]
        named["shards"] = lambda: Arriving(those, shards)
    read: list[Counter[Row]] = [Counter() for _ in range(epochs)]
    workers = group(1, **named)
    for size, batches, anew in [*groups, (2, 10_000, False)]:
        position = workers[0].position()
        if anew or size > len(workers):
            workers = group(size, position, **named)
        workers = workers[:size]
        for rank, one in enumerate(workers):
            one.join(rank, size)
        for _ in range(batches):
            if workers[0].is_exhausted:
                break
            epoch, left = workers[0].epoch, workers[0].left_in_epoch
            parts = [rows_of(one.next_pieces()) for one in workers]
            for part in parts:
                read[epoch].update(part)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert {one.global_size for one in workers} == {sum(map(len, parts))}
            assert {one.left_in_epoch for one in workers if one.epoch == epoch} <= {left - 1}
            assert left > 1 or all(one.is_exhausted or one.epoch > epoch for one in workers)
        assert len({(one.is_exhausted, str(one.position())) for one in workers}) == 1
    assert all(one.is_exhausted for one in workers)
    assert read == [everything(shards)] * epochs


@settings(max_examples=60, deadline=None)
@given(shards=st.lists(st.integers(1, 9), min_size=1, max_size=6), batch=st.integers(1, 9), size=st.integers(1, 4))
def test_what_is_dropped_is_less_than_a_batch_of_an_epoch(shards: list[int], batch: int, size: int) -> None:
    workers = group(size, shards=shards, batch=batch, drop_last=True)
    read: Counter[Row] = Counter()
    while not workers[0].is_exhausted:
        for one in workers:
            read.update(rows_of(one.next_pieces()))
        assert workers[0].global_size == batch
    assert sum(read.values()) == sum(shards) // batch * batch and set(read.values()) <= {1}


def test_no_more_than_the_shards_at_the_ends_of_stretches_are_read_by_two() -> None:
    shards = [100] * 10
    workers, read = group(4, shards=shards, batch=40, window=64), [set[int]() for _ in range(4)]
    while not workers[0].is_exhausted:
        for one, seen in zip(workers, read, strict=True):
            seen.update(shard for shard, _ in rows_of(one.next_pieces()))
    assert sum(map(len, read)) <= len(shards) + 3


def test_the_order_is_of_the_seed_and_the_epoch_and_mixes_rows_of_several_shards() -> None:
    def order(seed: int, **named: Any) -> list[Row]:
        one = sampler([5] * 8, batch=8, seed=seed, **{"epochs": 2} | named)
        return [row for _ in range(10) for row in rows_of(one.next_pieces())]

    assert order(1) == order(1) != order(2)
    first, second = order(1)[:40], order(1)[40:]
    assert first != second and sorted(first) == sorted(second)
    assert any(one[0] != other[0] for one, other in itertools.pairwise(first[:4]))
    plain = order(1, window=0)
    assert plain == [(shard, row) for shard in range(8) for row in range(5)] * 2


def test_nobody_waits_for_more_than_the_next_batch_needs() -> None:
    arriving = Arriving([[2], [0, 1], [3]], [6, 6, 9, 5])
    one = sampler(lambda: arriving, batch=4)
    assert arriving.known == 1
    one.next_pieces(), one.next_pieces()
    assert arriving.known == 1 and one.waits and one.batches_left is None
    position = one.position()
    one.next_pieces()  # a row of the first wave, and three of the next
    assert arriving.known == 2 and not one.waits and one.left_in_epoch == 7 - 3 and arriving.known == 3
    again = sampler(lambda: arriving, batch=4)
    again.go_to(position)
    assert again.done_in_epoch == 2 and len(rows_of(again.next_pieces())) == 4


def test_a_shard_with_rows_is_found_in_the_first_wave_that_has_any() -> None:
    assert first_filled(Arriving([[0], [1, 2]], [0, 0, 3])) == 2
    assert first_filled(Arriving([[0], []], [0])) is None
    assert first_filled(KnownShards([0, 4])) == 1


def test_epochs_without_a_batch_are_over_at_once() -> None:
    one = sampler([2, 1], batch=4, drop_last=True, epochs=100_000)
    assert one.is_exhausted and one.batches_left == 0


def test_a_position_of_other_data_is_refused() -> None:
    position = sampler([5, 5]).position()
    sampler([5, 5]).go_to(position)
    for other in (sampler([5, 6]), sampler([4, 6]), sampler([5, 5], seed=2), sampler([5, 5], window=9)):
        with pytest.raises(ArgumentError, match="it must be the same, or the same rows cannot be told apart"):
            other.go_to(position)


def test_one_may_begin_again_or_pass_over_all() -> None:
    one = sampler([5, 5])
    first = rows_of(one.next_pieces())
    one.rewind()
    assert rows_of(one.next_pieces()) == first
    one.pass_over()
    assert one.is_exhausted and one.batches_left == 0
    with pytest.raises(StopIteration):
        one.next_pieces()


def test_rows_of_a_span_are_in_order() -> None:
    shards, places, rows = located(Span(3, 5, 8))
    assert (shards, list(places), list(rows), total([Span(3, 5, 8)])) == ({3: 8}, [0, 0, 0], [5, 6, 7], 3)
    assert (places.dtype, rows.dtype) == (np.uint32, np.int64)


def test_a_window_of_spans_needs_of_each_shard_the_rows_up_to_its_last_span() -> None:
    window = Window((Span(3, 5, 8), Span(1, 0, 2), Span(3, 0, 4)), (7,), 0, 9)
    shards, places, rows = located(window)
    assert list(shards.items()) == [(3, 8), (1, 2)]  # in the order of their first rows, whatever was shuffled
    names = list(shards)
    read = [(names[place], row) for place, row in zip(places.tolist(), rows.tolist(), strict=True)]
    assert sorted(read) == [(1, 0), (1, 1), *((3, row) for row in (0, 1, 2, 3, 5, 6, 7))]


def test_a_window_within_a_window_finds_the_rows_of_the_inner_one() -> None:
    inner = Window((Span(0, 0, 3), Span(2, 4, 6)), (1,), 1, 4)
    rows = rows_of([inner])
    outer = rows_of([Window((inner, Span(5, 0, 2)), (2,), 0, 5)])
    assert sorted(outer) == sorted([*rows, (5, 0), (5, 1)])


def test_adjacent_pieces_of_one_whole_are_joined_and_others_are_not() -> None:
    spans = [Span(1, 0, 2), Span(1, 2, 5), Span(1, 5, 6), Span(1, 7, 8), Span(2, 8, 9)]
    assert joined(spans) == [Span(1, 0, 6), Span(1, 7, 8), Span(2, 8, 9)]
    parts = (Span(1, 0, 4), Span(2, 0, 4))
    windows = [Window(parts, (1,), 1, 3), Window(parts, (1,), 3, 6), Window(parts, (2,), 6, 8)]
    assert joined(windows) == [Window(parts, (1,), 1, 6), Window(parts, (2,), 6, 8)]
    other_parts = Window((Span(1, 0, 8),), (1,), 6, 8)
    assert joined([windows[0], windows[1], other_parts]) == [Window(parts, (1,), 1, 6), other_parts]
    mixed = [Span(1, 0, 2), Window(parts, (1,), 2, 3), Span(1, 3, 4)]
    assert joined(mixed) == mixed and joined([]) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 4)), max_size=8))
def test_joined_pieces_have_the_same_rows_in_the_same_order(cuts: list[tuple[int, int, int]]) -> None:
    pieces = [Span(shard, begin, begin + size) for shard, begin, size in cuts]
    assert rows_of(joined(pieces)) == rows_of(pieces) and len(joined(pieces)) <= len(pieces)
