"""Tests of loader processes that divide a worker's batches: together each batch once, in order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.training.data.batch_reader import BatchReader, strided_batches
from hopsml.training.data.shard_order import KnownShards
from hopsml.training.data.shard_sampler import ShardSampler, StridedSampler
from tests.helpers.clock import END_S
from tests.unit.training.test_shard_order import SHARDS, WAVES, Arriving, rows_of, sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.fast


@settings(max_examples=100, deadline=None)
@given(
    shards=SHARDS,
    waves=st.none() | WAVES,
    batch=st.integers(1, 9),
    window=st.sampled_from([0, 3, 100]),
    epochs=st.integers(1, 3),
    place=st.sampled_from([(0, 1), (0, 2), (1, 2)]),
    turns=st.integers(1, 5),
)
def test_batches_of_all_turns_are_those_of_the_worker(
    shards: list[int],
    waves: list[int] | None,
    batch: int,
    window: int,
    epochs: int,
    place: tuple[int, int],
    turns: int,
) -> None:
    named: dict[str, Any] = {"shards": shards, "batch": batch, "window": window, "epochs": epochs}
    if waves is not None:
        those = [[shard for shard in range(len(shards)) if waves[shard] == wave] for wave in range(4)]
        named["shards"] = lambda: Arriving(those, shards)

    def own() -> ShardSampler:
        made = sampler(**named)
        made.join(*place)
        return made

    undivided, wanted = own(), []
    while not undivided.is_exhausted:
        wanted.append(rows_of(undivided.next_pieces()))
    for turn in range(turns):
        one, found = StridedSampler(own(), turn, turns), []
        while not one.is_exhausted:
            found.append(rows_of(one.next_pieces()))
        assert found == wanted[turn::turns]
        with pytest.raises(StopIteration):
            one.next_pieces()


def test_turn_sampler_waits_for_the_wave_of_its_next_batch() -> None:
    shards = Arriving([[0], [1]], [4, 4])
    order = ShardSampler(shards, 2, 1, epochs=1, window=0, drop_last=False)
    third = StridedSampler(order, 2, 3)
    assert third.needs_next_wave and shards.known == 1
    assert not third.is_exhausted and shards.known == 2
    assert rows_of(third.next_pieces()) == [(1, 0), (1, 1)]
    assert third.is_exhausted and not third.needs_next_wave


@pytest.mark.parametrize(
    ("turn", "turns", "batches"),
    [(0, 1, [0, 1, 2, 3, 4]), (0, 2, [0, 2, 4]), (1, 2, [1, 3]), (2, 3, [2]), (4, 5, [4]), (5, 6, [])],
)
def test_each_turn_reads_every_nth_batch(turn: int, turns: int, batches: list[int]) -> None:
    order = ShardSampler(KnownShards([10]), 2, 1, epochs=1, window=0, drop_last=False)
    one = StridedSampler(order, turn, turns)
    found = []
    while not one.is_exhausted:
        assert not one.needs_next_wave
        found.append(rows_of(one.next_pieces()))
    assert found == [[(0, 2 * batch), (0, 2 * batch + 1)] for batch in batches]
    assert not one.needs_next_wave and order.is_exhausted


def test_batches_of_other_turns_are_skipped_only_when_the_next_own_batch_is_needed() -> None:
    order = ShardSampler(KnownShards([12]), 2, 1, epochs=1, window=0, drop_last=False)
    second = StridedSampler(order, 1, 3)
    assert order.batches_done_in_epoch == 0
    second.next_pieces()
    assert order.batches_done_in_epoch == 2
    assert not second.needs_next_wave and order.batches_done_in_epoch == 4
    assert not second.is_exhausted and order.batches_done_in_epoch == 4
    second.next_pieces()
    with pytest.raises(StopIteration):
        second.next_pieces()
    assert order.is_exhausted


class Counted:
    """Shards of ten rows, numbered through, which count how often each is read."""

    shard_sizes, row_bytes = (10,) * 6, 8.0

    def __init__(self) -> None:
        self.read_of = [0] * 6

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        self.read_of[shard] += 1
        return {"id": np.arange(10 * shard, 10 * shard + 10)}


def test_loader_process_reads_only_shards_of_its_batches_without_a_thread() -> None:
    def order() -> ShardSampler:
        return ShardSampler(KnownShards(Counted.shard_sizes), 10, 1, epochs=1, window=0, drop_last=False)

    source, threads = Counted(), threading.active_count()
    found = [batch["id"].tolist() for batch in strided_batches(source, order(), 1, 3)]
    assert found == [[*range(10, 20)], [*range(40, 50)]]
    assert source.read_of == [0, 1, 0, 0, 1, 0] and threading.active_count() == threads
    reader = BatchReader(Counted(), order)
    assert [reader.next_batch()["id"].tolist() for _ in range(6)][1::3] == found
    reader.close()
    for thread in threading.enumerate():
        if thread.name == "hopsml-read-ahead":
            thread.join(END_S)
