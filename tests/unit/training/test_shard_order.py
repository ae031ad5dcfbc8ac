"""Tests of shards: every row once an epoch at one worker, with as few readers of a shard as possible."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.errors import ArgumentError
from hopsml.training.data.shard_order import (
    EpochLeg,
    KnownShards,
    Piece,
    RowOrder,
    Shards,
    Span,
    Wave,
    Window,
    first_nonempty_shard,
    locate_rows,
    merge_adjacent,
    row_count,
    share_size,
    split_rows,
    total_rows,
)
from hopsml.training.data.shard_sampler import ShardSampler

pytestmark = pytest.mark.fast

Row = tuple[int, int]  # a shard, and a row of it


class Arriving:
    """Shards that become known gradually, in any order; no wave may be waited for longer than necessary."""

    @property
    def identity(self) -> dict[str, int]:
        return {}

    def __init__(self, waves: list[list[int]], rows: list[int]) -> None:
        self.waves, self.rows, self.known = waves, rows, 0

    @property
    def is_complete(self) -> bool:
        return self.known == len(self.waves)

    def wave(self, number: int) -> Wave:
        self.known = max(self.known, number + 1)
        return Wave({shard: self.rows[shard] for shard in self.waves[number]}, number == len(self.waves) - 1)

    def all_shards(self) -> dict[int, int]:
        self.known = len(self.waves)
        return dict(enumerate(self.rows))


def sampler(shards: Any, batch: int = 4, seed: int = 1, **named: Any) -> ShardSampler:
    known: Shards = KnownShards(shards) if isinstance(shards, list) else shards()
    return ShardSampler(known, batch, seed, **{"epochs": 1, "window": 8, "drop_last": False} | named)


def rows_of(pieces: Any) -> list[Row]:
    found = []
    for there, places, rows in map(locate_rows, pieces):
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
def test_every_row_is_read_once_per_epoch_by_groups_of_any_size(
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
    for size, batches, restarted in [*groups, (2, 10_000, False)]:
        position = workers[0].position()
        if restarted or size > len(workers):
            workers = group(size, position, **named)
        workers = workers[:size]
        for rank, one in enumerate(workers):
            one.join(rank, size)
        for _ in range(batches):
            if workers[0].is_exhausted:
                break
            epoch, left = workers[0].epoch, workers[0].batches_left_in_epoch
            parts = [rows_of(one.next_pieces()) for one in workers]
            for part in parts:
                read[epoch].update(part)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert {one.global_size for one in workers} == {sum(map(len, parts))}
            assert {one.batches_left_in_epoch for one in workers if one.epoch == epoch} <= {left - 1}
            assert left > 1 or all(one.is_exhausted or one.epoch > epoch for one in workers)
        assert len({(one.is_exhausted, str(one.position())) for one in workers}) == 1
    assert all(one.is_exhausted for one in workers)
    assert read == [everything(shards)] * epochs


@settings(max_examples=60, deadline=None)
@given(shards=st.lists(st.integers(1, 9), min_size=1, max_size=6), batch=st.integers(1, 9), size=st.integers(1, 4))
def test_drop_last_drops_less_than_one_batch_per_epoch(shards: list[int], batch: int, size: int) -> None:
    workers = group(size, shards=shards, batch=batch, drop_last=True)
    read: Counter[Row] = Counter()
    while not workers[0].is_exhausted:
        for one in workers:
            read.update(rows_of(one.next_pieces()))
        assert workers[0].global_size == batch
    assert sum(read.values()) == sum(shards) // batch * batch and set(read.values()) <= {1}


def test_only_shards_at_stretch_ends_are_read_by_two_workers() -> None:
    shards = [100] * 10
    workers, read = group(4, shards=shards, batch=40, window=64), [set[int]() for _ in range(4)]
    while not workers[0].is_exhausted:
        for one, seen in zip(workers, read, strict=True):
            seen.update(shard for shard, _ in rows_of(one.next_pieces()))
    assert sum(map(len, read)) <= len(shards) + 3


def test_row_order_depends_on_seed_and_epoch_and_mixes_shards() -> None:
    def order(seed: int, **named: Any) -> list[Row]:
        one = sampler([5] * 8, batch=8, seed=seed, **{"epochs": 2} | named)
        return [row for _ in range(10) for row in rows_of(one.next_pieces())]

    assert order(1) == order(1) != order(2)
    first, second = order(1)[:40], order(1)[40:]
    assert first != second and sorted(first) == sorted(second)
    assert any(one[0] != other[0] for one, other in itertools.pairwise(first[:4]))
    unshuffled = order(1, window=0)
    assert unshuffled == [(shard, row) for shard in range(8) for row in range(5)] * 2


def test_sampler_waits_only_for_the_waves_that_the_next_batch_needs() -> None:
    arriving = Arriving([[2], [0, 1], [3]], [6, 6, 9, 5])
    one = sampler(lambda: arriving, batch=4)
    assert arriving.known == 1
    one.next_pieces(), one.next_pieces()
    assert arriving.known == 1 and one.needs_next_wave and one.batches_left is None
    position = one.position()
    one.next_pieces()  # a row of the first wave, and three of the next
    assert (
        arriving.known == 2 and not one.needs_next_wave and one.batches_left_in_epoch == 7 - 3 and arriving.known == 3
    )
    again = sampler(lambda: arriving, batch=4)
    again.go_to(position)
    assert again.batches_done_in_epoch == 2 and len(rows_of(again.next_pieces())) == 4


def test_first_filled_finds_the_earliest_shard_with_rows() -> None:
    assert first_nonempty_shard(Arriving([[0], [1, 2]], [0, 0, 3])) == 2
    assert first_nonempty_shard(Arriving([[0], []], [0])) is None
    assert first_nonempty_shard(KnownShards([0, 4])) == 1


def test_epochs_without_a_batch_are_exhausted_at_once() -> None:
    one = sampler([2, 1], batch=4, drop_last=True, epochs=100_000)
    assert one.is_exhausted and one.batches_left == 0


def test_shard_sampler_refuses_a_position_of_other_data() -> None:
    position = sampler([5, 5]).position()
    sampler([5, 5]).go_to(position)
    for other in (sampler([5, 6]), sampler([4, 6]), sampler([5, 5], seed=2), sampler([5, 5], window=9)):
        with pytest.raises(ArgumentError, match="use the same value, so that training continues"):
            other.go_to(position)


def test_sampler_can_rewind_or_skip_all_rows() -> None:
    one = sampler([5, 5])
    first = rows_of(one.next_pieces())
    one.rewind()
    assert rows_of(one.next_pieces()) == first
    one.pass_over()
    assert one.is_exhausted and one.batches_left == 0
    with pytest.raises(StopIteration):
        one.next_pieces()


def test_rows_of_a_span_are_in_order() -> None:
    shards, places, rows = locate_rows(Span(3, 5, 8))
    assert (shards, list(places), list(rows), total_rows([Span(3, 5, 8)])) == ({3: 8}, [0, 0, 0], [5, 6, 7], 3)
    assert (places.dtype, rows.dtype) == (np.uint32, np.int64)


def test_window_of_spans_reads_each_shard_up_to_its_last_span() -> None:
    window = Window((Span(3, 5, 8), Span(1, 0, 2), Span(3, 0, 4)), (7,), 0, 9)
    shards, places, rows = locate_rows(window)
    assert list(shards.items()) == [(3, 8), (1, 2)]  # in the order of their first rows, for any shuffling
    names = list(shards)
    read = [(names[place], row) for place, row in zip(places.tolist(), rows.tolist(), strict=True)]
    assert sorted(read) == [(1, 0), (1, 1), *((3, row) for row in (0, 1, 2, 3, 5, 6, 7))]


def test_nested_window_yields_the_rows_of_the_inner_one() -> None:
    inner = Window((Span(0, 0, 3), Span(2, 4, 6)), (1,), 1, 4)
    rows = rows_of([inner])
    outer = rows_of([Window((inner, Span(5, 0, 2)), (2,), 0, 5)])
    assert sorted(outer) == sorted([*rows, (5, 0), (5, 1)])


def test_adjacent_pieces_are_joined_and_others_are_not() -> None:
    spans = [Span(1, 0, 2), Span(1, 2, 5), Span(1, 5, 6), Span(1, 7, 8), Span(2, 8, 9)]
    assert merge_adjacent(spans) == [Span(1, 0, 6), Span(1, 7, 8), Span(2, 8, 9)]
    parts = (Span(1, 0, 4), Span(2, 0, 4))
    windows = [Window(parts, (1,), 1, 3), Window(parts, (1,), 3, 6), Window(parts, (2,), 6, 8)]
    assert merge_adjacent(windows) == [Window(parts, (1,), 1, 6), Window(parts, (2,), 6, 8)]
    other_parts = Window((Span(1, 0, 8),), (1,), 6, 8)
    assert merge_adjacent([windows[0], windows[1], other_parts]) == [Window(parts, (1,), 1, 6), other_parts]
    mixed = [Span(1, 0, 2), Window(parts, (1,), 2, 3), Span(1, 3, 4)]
    assert merge_adjacent(mixed) == mixed and merge_adjacent([]) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 4)), max_size=8))
def test_joined_pieces_have_the_same_rows_in_the_same_order(cuts: list[tuple[int, int, int]]) -> None:
    pieces = [Span(shard, begin, begin + size) for shard, begin, size in cuts]
    assert rows_of(merge_adjacent(pieces)) == rows_of(pieces) and len(merge_adjacent(pieces)) <= len(pieces)


# ------------------------------------------------------------------------------------------ its parts, with exact values


def unshuffled(drop_last: bool = False) -> RowOrder:
    """Return rules without shuffling."""
    return RowOrder(1, 0, drop_last)


def spans(*cuts: tuple[int, int, int]) -> list[Piece]:
    return [Span(*cut) for cut in cuts]


def test_known_shards_are_numbered_in_the_given_order() -> None:
    known = KnownShards(iter([4, 0, 5]))  # type: ignore[arg-type]  # is read once
    assert known.is_complete and known.identity == {"rows": 9, "shards": zlib.crc32(b"4,0,5")}
    assert known.all_shards() == {0: 4, 1: 0, 2: 5}
    assert known.wave(0) == Wave({0: 4, 1: 0, 2: 5}, True)


def test_first_filled_does_not_wait_for_waves_after_the_first_filled_one() -> None:
    arriving = Arriving([[1], [0, 3, 2], [4]], [0, 0, 7, 3, 9])
    assert first_nonempty_shard(arriving) == 3 and arriving.known == 2
    assert first_nonempty_shard(Arriving([[0, 1], [2]], [5, 6, 7])) == 0
    assert first_nonempty_shard(KnownShards([])) is None


def test_shard_order_is_unchanged_since_earlier_releases() -> None:
    """A state of an earlier release must continue with the same rows in the same order."""
    shards = dict.fromkeys(range(8), 3)

    def order(key: tuple[int, ...], **more: Any) -> list[int]:
        found = RowOrder(**{"seed": 1, "window": 4, "drop_last": False} | more).ordered_rows(shards, key)
        assert all(piece == Span(piece.shard, 0, 3) for piece in found if isinstance(piece, Span))
        return [piece.shard for piece in found if isinstance(piece, Span)]

    assert order((0,)) == [1, 7, 0, 4, 6, 3, 5, 2]
    assert order((1,)) == [5, 0, 3, 1, 7, 4, 2, 6]  # the second epoch
    assert order((0, 1)) == [2, 5, 7, 1, 6, 4, 0, 3]  # a second wave
    assert order((0,), seed=2) == [2, 3, 1, 0, 4, 6, 5, 7]
    assert order((0,), window=1, drop_last=True) == order((0,))
    assert order((0,), window=0) == order((5,), window=0) == list(range(8))


def test_shard_order_uses_positions_and_omits_empty_shards() -> None:
    shards = {number * 10: number % 2 for number in range(8)}
    assert RowOrder(1, 4, False).ordered_rows(shards, (0,)) == spans(*((number, 0, 1) for number in (10, 70, 30, 50)))
    assert unshuffled().ordered_rows({5: 2, 3: 0, 4: 1}, (0,)) == spans((5, 0, 2), (4, 0, 1))
    assert unshuffled().ordered_rows({}, (0,)) == RowOrder(1, 4, False).ordered_rows({}, (0,)) == []


@pytest.mark.parametrize(
    ("left", "drop_last", "is_last", "batches"),
    [
        (0, False, True, 0),
        (1, False, True, 1),
        (4, False, True, 1),
        (5, False, True, 2),
        (8, False, True, 2),
        (9, True, True, 2),  # the last batch is dropped
        (3, True, True, 0),
        (9, False, False, 2),  # remaining rows wait for the next wave
        (8, True, False, 2),
    ],
)
def test_leg_has_a_partial_batch_only_if_last_and_not_dropped(
    left: int, drop_last: bool, is_last: bool, batches: int
) -> None:
    assert unshuffled(drop_last).count_batches(left, EpochLeg(2, 4, is_last=is_last)) == batches


@pytest.mark.parametrize(
    ("batch", "workers", "shares"),
    [(4, 2, [2, 2]), (5, 2, [3, 2]), (7, 4, [2, 2, 2, 1]), (2, 4, [1, 1, 0, 0]), (0, 3, [0, 0, 0]), (9, 1, [9])],
)
def test_first_workers_have_the_rows_that_do_not_divide_evenly(batch: int, workers: int, shares: list[int]) -> None:
    assert [share_size(batch, rank, workers) for rank in range(workers)] == shares


@pytest.mark.parametrize(
    ("rules", "leg", "stretches"),
    [
        # 11 rows: two batches of 5, and one.
        (unshuffled(), EpochLeg(2, 5), [[(0, 0, 6), (1, 0, 1)], [(1, 1, 5)], []]),
        (unshuffled(True), EpochLeg(2, 5), [[(0, 0, 6)], [(1, 0, 4)], [(1, 4, 5)]]),
        (unshuffled(), EpochLeg(2, 5, is_last=False), [[(0, 0, 6)], [(1, 0, 4)], [(1, 4, 5)]]),
        (unshuffled(), EpochLeg(1, 5), [[(0, 0, 6), (1, 0, 5)], []]),
        # Two batches of 4, and three rows for the first three of four workers.
        (unshuffled(), EpochLeg(4, 4), [[(0, 0, 3)], [(0, 3, 6)], [(1, 0, 3)], [(1, 3, 5)], []]),
        # Less than a batch.
        (unshuffled(), EpochLeg(2, 12), [[(0, 0, 6)], [(1, 0, 5)], []]),
        (unshuffled(True), EpochLeg(2, 12), [[], [], [(0, 0, 6), (1, 0, 5)]]),
    ],
)
def test_each_worker_has_one_stretch_followed_by_unread_rows(
    rules: RowOrder, leg: EpochLeg, stretches: list[list[tuple[int, int, int]]]
) -> None:
    assert rules.divide_rows(spans((0, 0, 6), (1, 0, 5)), leg) == [spans(*each) for each in stretches]


def test_stretch_is_shuffled_in_windows_with_separate_keys() -> None:
    stretch = spans((3, 2, 7), (1, 0, 6))
    assert list(RowOrder(9, 4, False).reading_order(stretch, (2, 1, 0))) == [
        Window((Span(3, 2, 6),), (9, 2, 1, 0, 0), 0, 4),
        Window((Span(3, 6, 7), Span(1, 0, 3)), (9, 2, 1, 0, 1), 0, 4),
        Window((Span(1, 3, 6),), (9, 2, 1, 0, 2), 0, 3),
    ]
    assert list(RowOrder(9, 11, False).reading_order(stretch, (0,))) == [Window(tuple(stretch), (9, 0, 0), 0, 11)]
    assert list(RowOrder(9, 4, False).reading_order([], (0,))) == []
    assert list(unshuffled().reading_order(stretch, (0,))) == stretch


def test_remaining_rows_of_all_workers_are_divided_again_in_order() -> None:
    """Batches of 5 by two workers: 3 rows and 2; one batch is done of 14 rows, of which 4 are left over."""
    left = spans((0, 0, 9), (1, 0, 5))
    assert unshuffled().divide_rows(left, EpochLeg(2, 5)) == [spans((0, 0, 8)), spans((0, 8, 9), (1, 0, 5)), []]
    assert unshuffled().unread_rows(left, EpochLeg(2, 5, done=1), (0, 0)) == spans((0, 3, 8), (1, 1, 5))
    assert unshuffled(True).unread_rows(left, EpochLeg(2, 5, done=1), (0, 0)) == spans(
        (0, 3, 6), (0, 8, 9), (1, 0, 1), (1, 1, 5)
    )
    assert unshuffled(True).unread_rows(left, EpochLeg(2, 5, done=2), (0, 0)) == spans((1, 1, 5))
    assert unshuffled().unread_rows(left, EpochLeg(2, 5), (0, 0)) == spans((0, 0, 8), (0, 8, 9), (1, 0, 5))


def test_remainder_of_a_window_keeps_its_order() -> None:
    rules, left = RowOrder(9, 4, False), spans((0, 0, 12))
    first = (Span(0, 0, 4),), (9, 7, 3, 0, 0)
    assert rules.unread_rows(left, EpochLeg(2, 4, done=1), (7, 3)) == [
        Window(*first, 2, 4),
        Window((Span(0, 4, 6),), (9, 7, 3, 0, 1), 0, 2),
        Window((Span(0, 6, 10),), (9, 7, 3, 1, 0), 2, 4),
        Window((Span(0, 10, 12),), (9, 7, 3, 1, 1), 0, 2),
    ]
    assert Window(*first, 2, 4).full_window == Window(*first, 0, 4)
    assert Window((Span(0, 5, 7), Window(*first, 1, 4)), (1,), 1, 2).full_window.end == 5


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([3, 4], [[(0, 0, 3)], [(0, 3, 5), (1, 2, 4)]]),
        ([5, 3], [[(0, 0, 5)], [(1, 2, 5)]]),  # whole pieces
        ([1, 1, 1, 5], [[(0, 0, 1)], [(0, 1, 2)], [(0, 2, 3)], [(0, 3, 5), (1, 2, 5)]]),  # one piece cut three times
        ([0, 2, 0, 1], [[], [(0, 0, 2)], [], [(0, 2, 3)]]),
        ([6, 6, 6], [[(0, 0, 5), (1, 2, 3)], [(1, 3, 5)], []]),  # there are no more
        ([], []),
    ],
)
def test_chopped_cuts_pieces_into_parts_of_requested_sizes(
    sizes: list[int], parts: list[list[tuple[int, int, int]]]
) -> None:
    pieces = spans((0, 0, 5), (1, 2, 5))
    assert list(split_rows(pieces, sizes)) == [spans(*part) for part in parts]
    assert list(split_rows(iter(pieces), iter(sizes))) == [spans(*part) for part in parts]


def test_chopped_cuts_a_window_within_its_shuffled_rows() -> None:
    window = Window((Span(0, 0, 9),), (1,), 2, 8)
    assert (row_count(window), row_count(Span(4, 3, 8)), total_rows([window, Span(4, 3, 8)]), total_rows([])) == (
        6,
        5,
        11,
        0,
    )
    assert list(split_rows([window], [2, 4])) == [
        [Window((Span(0, 0, 9),), (1,), 2, 4)],
        [Window((Span(0, 0, 9),), (1,), 4, 8)],
    ]


def test_shuffled_rows_of_a_window_are_unchanged_since_earlier_releases() -> None:
    parts, key = (Span(3, 0, 5), Span(1, 2, 5)), (1, 0, 0, 0)
    expected = [(3, 1), (1, 4), (3, 0), (3, 4), (1, 3), (3, 3), (1, 2), (3, 2)]
    assert rows_of([Window(parts, key, 0, 8)]) == expected
    assert rows_of([Window(parts, key, 2, 5)]) == expected[2:5]
    assert list(locate_rows(Window(parts, key, 2, 3)).shards.items()) == [(3, 5), (1, 5)]
    assert sorted(rows_of([Window(parts, (2,), 0, 8)])) == sorted(expected) != rows_of([Window(parts, (2,), 0, 8)])


def test_shards_of_nested_windows_are_in_the_order_of_their_first_rows() -> None:
    inner = Window((Span(2, 1, 3), Span(0, 0, 1)), (1,), 0, 3)
    found = locate_rows(Window((Span(5, 0, 1), inner, Span(2, 7, 8), Span(5, 3, 4)), (2,), 0, 6))
    assert list(found.shards.items()) == [(5, 4), (2, 8), (0, 1)]
    assert (found.places.dtype, len(found.places), len(found.rows)) == (np.uint32, 6, 6)
    assert sorted(zip(found.places.tolist(), found.rows.tolist(), strict=True)) == [
        (0, 0),
        (0, 3),
        (1, 1),
        (1, 2),
        (1, 7),
        (2, 0),
    ]
