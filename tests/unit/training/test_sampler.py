"""Tests of the elastic sampler and of the learning rate that follows its batch: every sample once an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.elastic import Sampler
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.elastic.sampler import Ramp, first_ramp

pytestmark = pytest.mark.fast


def test_ramp_rises_linearly_and_then_stays() -> None:
    ramp = first_ramp(8.0, 1000)
    assert [ramp.factor(samples) for samples in (0, 250, 500, 1000, 5000)] == [1.0, 2.75, 4.5, 8.0, 8.0]


def test_ramp_falls_at_once_and_rises_from_its_current_value() -> None:
    halfway = first_ramp(8.0, 1000).towards(2.0, 500, 1000)
    assert halfway.factor(500) == 2.0
    again = halfway.towards(4.0, 600, 1000)
    assert (again.factor(600), again.factor(1100), again.factor(1600)) == (2.0, 3.0, 4.0)
    assert again.towards(4.0, 900, 1000) is again


@given(
    st.lists(st.tuples(st.floats(0.1, 64), st.integers(0, 5000)), min_size=1, max_size=8),
    st.floats(0, 3000),
)
def test_ramp_never_jumps_up_and_stays_within_its_bounds(changes: list[tuple[float, int]], length: float) -> None:
    ramp, samples = Ramp(1.0, 1.0), 0
    for target, further in changes:
        before = ramp.factor(samples)
        ramp = ramp.towards(target, samples, length)
        if length:
            assert ramp.factor(samples) <= before or target == pytest.approx(before)
        reached = ramp.factor(samples)
        samples += further
        assert min(reached, target) - 1e-9 <= ramp.factor(samples) <= max(reached, target) + 1e-9
    assert ramp.factor(samples + int(length) + 1) == pytest.approx(ramp.target)


def step(group: list[Sampler]) -> list[int]:
    return [int(one) for sampler in group for one in sampler.next_batch()]


def group_at(position: dict[str, int] | None, world: int, **options: Any) -> list[Sampler]:
    group = [Sampler(**options) for _ in range(world)]
    for rank, sampler in enumerate(group):
        sampler.join(rank, world)
        if position is not None:
            sampler.go_to(position)
    return group


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 70),
    worlds=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    scaling=st.sampled_from(["constant", "linear"]),
)
def test_no_sample_is_skipped_or_repeated_when_the_group_changes(
    n: int, batch: int, worlds: list[int], scaling: str
) -> None:
    options = {"n_samples": n, "global_batch_size": batch, "seed": 5, "epochs": 2, "scaling": scaling}
    seen: list[int] = []
    position = None
    for world in [*worlds, *[worlds[-1]] * 200]:
        group = group_at(position, world, **options)
        if group[0].is_exhausted:
            break
        seen += step(group)
        assert len({sampler.batch_size for sampler in group}) == 1
        (position,) = {tuple(sampler.position().items()) for sampler in group}
        position = dict(position)
    assert sorted(seen[:n]) == sorted(seen[n:]) == list(range(n))


def test_sample_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, world: int) -> list[list[int]]:
        group = group_at(None, world, n_samples=40, global_batch_size=8, seed=seed, epochs=2)
        return [sorted(step(group)) for _ in range(10)]

    assert order(1, 1) == order(1, 3) != order(2, 1)
    assert order(1, 1)[:5] != order(1, 1)[5:]


def test_sampler_defaults_are_one_shuffled_epoch_with_a_partial_last_batch() -> None:
    sampler = Sampler(10, 4)
    assert sampler.batch_size == 0  # before the first batch
    batches = []
    while not sampler.is_exhausted:
        batches.append(sampler.next_batch())
        assert sampler.batch_size == len(batches[-1])
    order = np.concatenate(batches)
    assert [len(batch) for batch in batches] == [4, 4, 2] and order.dtype == np.int64
    assert sorted(order) == list(range(10)) != list(order)
    with pytest.raises(StopIteration):
        sampler.next_batch()


def test_unshuffled_sampler_repeats_the_sample_order_each_epoch() -> None:
    sampler = Sampler(5, 2, epochs=2, shuffle=False)
    seen = [list(sampler.next_batch()) for _ in range(6)]
    assert seen == [[0, 1], [2, 3], [4]] * 2 and sampler.is_exhausted


def test_sampler_shares_differ_by_at_most_one_and_may_be_empty() -> None:
    group = group_at(None, 4, n_samples=10, global_batch_size=10, shuffle=False)
    assert [len(sampler.next_batch()) for sampler in group] == [3, 3, 2, 2]
    few = group_at(None, 4, n_samples=2, global_batch_size=8)
    assert [len(sampler.next_batch()) for sampler in few] == [1, 1, 0, 0]


def test_linear_scaling_keeps_the_local_batch_and_scales_the_learning_rate() -> None:
    options = {"n_samples": 100, "global_batch_size": 32, "scaling": "linear", "reference_workers": 4}
    (sampler,) = group_at(None, 1, **options, ramp_epochs=0)
    assert (sampler.size, sampler.learning_rate_scale) == (8, 0.25)
    sampler.join(0, 8)
    assert (sampler.size, sampler.learning_rate_scale) == (64, 2.0)
    assert Sampler(100, 32).learning_rate_scale == 1.0
    assert Sampler(100, 32, scaling="linear").learning_rate_scale == 1.0  # meant for one worker


@pytest.mark.parametrize(("world", "reference", "size"), [(1, 3, 3), (2, 3, 7), (1, 20, 1), (3, 4, 8), (1, 4, 2)])
def test_linear_global_batch_is_rounded_and_at_least_1(world: int, reference: int, size: int) -> None:
    (sampler,) = group_at(None, 1, n_samples=100, global_batch_size=10, scaling="linear", reference_workers=reference)
    sampler.join(0, world)
    assert sampler.size == size


def test_ramp_starts_at_the_given_rate_whatever_was_read_before_joining() -> None:
    sampler = Sampler(100, 10, scaling="linear", reference_workers=2, epochs=9, ramp_epochs=1)
    assert sampler.learning_rate_scale == 0.5  # alone, at once
    sampler.join(0, 4)
    assert sampler.learning_rate_scale == 1.0  # the ramp to 2.0 starts at the configured rate
    for scale in (1.2, 1.4, 1.6, 1.8, 2.0):
        assert len(sampler.next_global_batch()) == 20
        assert sampler.learning_rate_scale == pytest.approx(scale)
    sampler.join(0, 1)
    assert sampler.learning_rate_scale == 0.5
    sampler.next_batch()
    sampler.join(0, 2)
    assert sampler.learning_rate_scale == 0.5  # in the middle of the training it rises from where it was


def test_learning_rate_ramp_continues_in_the_next_generation() -> None:
    options = {"n_samples": 80, "global_batch_size": 4, "scaling": "linear", "reference_workers": 1, "epochs": 9}
    (sampler,) = group_at(None, 1, **options, ramp_epochs=2)
    step([sampler])
    assert sampler.learning_rate_scale == 1.0
    position, scales = sampler.position(), []
    for _ in range(20):  # each one a new generation: the commit is sufficient to continue
        group = group_at(position, 4, **options, ramp_epochs=2)
        scales.append(group[0].learning_rate_scale)
        assert {one.learning_rate_scale for one in group} == {scales[-1]}
        step(group)
        position = group[0].position()
    assert scales[0] == 1.0 and scales[-1] == 4.0 and scales == sorted(scales)
    assert scales[1] == pytest.approx(1.0 + 3 * 16 / 160)  # one batch of 16 of the 160 samples of two epochs
    (smaller,) = group_at(position, 1, **options, ramp_epochs=2)
    assert smaller.learning_rate_scale == 1.0  # at once


def test_drop_last_omits_the_partial_batch() -> None:
    sampler = Sampler(10, 4, epochs=2, drop_last=True)
    assert sampler.batches_left == 4
    batches = []
    while not sampler.is_exhausted:
        batches.append(sampler.next_batch())
    assert [len(batch) for batch in batches] == [4, 4, 4, 4]
    assert len(np.unique(np.concatenate(batches[:2]))) == 8
    even = Sampler(8, 4, epochs=2, drop_last=True)
    counted = [(even.epoch, even.offset, even.batches_left)]
    while not even.is_exhausted:
        assert len(even.next_batch()) == 4
        counted.append((even.epoch, even.offset, even.batches_left))
    assert counted == [(0, 0, 4), (0, 4, 3), (1, 0, 2), (1, 4, 1), (2, 0, 0)]
    assert Sampler(4, 4, drop_last=True).batches_left == 1  # one full batch


def test_grown_group_drops_rows_too_few_for_its_batch() -> None:
    sampler = Sampler(10, 2, epochs=2, drop_last=True, scaling="linear")
    lengths = []
    while not sampler.is_exhausted:
        lengths.append(len(sampler.next_global_batch()))
        sampler.join(0, 4 if sampler.epoch == 0 and sampler.offset == 4 else sampler.world_size)
        if sampler.epoch == 1:
            assert sampler.world_size == 4
    assert lengths == [2, 2, 8]  # of the six that are left none is trained on
    assert Sampler(10, 2, drop_last=True, scaling="linear").batches_left == 5


def test_partial_last_batch_counts_as_a_batch() -> None:
    sampler = Sampler(10, 4, epochs=2)
    left = [sampler.batches_left]
    while not sampler.is_exhausted:
        sampler.next_batch()
        left.append(sampler.batches_left)
    assert left == [6, 5, 4, 3, 2, 1, 0]


def test_sampler_refuses_a_position_of_other_data() -> None:
    with pytest.raises(ArgumentError) as refused:
        Sampler(11, 2).go_to(Sampler(10, 2).position())
    assert str(refused.value) == (
        "the stored state has n_samples=10, but this sampler has n_samples=11; use the same value, so that "
        "training continues with the remaining samples"
    )
    with pytest.raises(ArgumentError, match="has seed=0, but this sampler has seed=1"):
        Sampler(10, 2, seed=1).go_to(Sampler(10, 2).position())


@pytest.mark.parametrize(
    ("named", "kind", "word"),
    [
        ({"n_samples": 0}, ArgumentError, "n_samples=0 is too small; it must be at least 1"),
        (
            {"global_batch_size": 2.5},
            ArgumentTypeError,
            "global_batch_size=2.5 is a float; it must be a whole number, at least 1",
        ),
        ({"epochs": True}, ArgumentTypeError, "epochs=True is a bool; it must be a whole number, at least 1"),
        ({"reference_workers": 0}, ArgumentError, "reference_workers=0 is too small; it must be at least 1"),
        ({"scaling": "cubic"}, ArgumentError, "scaling='cubic': it must be 'constant' or 'linear'"),
        ({"ramp_epochs": -1}, ArgumentError, "ramp_epochs=-1: it must be a number of epochs, or 0 for none"),
        ({"ramp_epochs": float("nan")}, ArgumentError, "ramp_epochs=nan: it must be a number of epochs, or 0 for none"),
        ({"ramp_epochs": True}, ArgumentError, "ramp_epochs=True: it must be a number of epochs, or 0 for none"),
        ({"ramp_epochs": "5"}, ArgumentError, "ramp_epochs='5': it must be a number of epochs, or 0 for none"),
        ({"ramp_epochs": 1e6}, ArgumentError, "ramp_epochs=1000000.0: it must be a number of epochs, or 0 for none"),
        (
            {"drop_last": True, "n_samples": 3},
            ArgumentError,
            "drop_last=True with n_samples=3 and global_batch_size=4 leaves no batch; use drop_last=False, or a "
            "smaller batch",
        ),
    ],
)
def test_invalid_sampler_settings_are_refused(named: dict[str, Any], kind: type[Exception], word: str) -> None:
    with pytest.raises(kind) as refused:
        Sampler(**{"n_samples": 10, "global_batch_size": 4, **named})
    assert str(refused.value) == word


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 70),
    epochs=st.integers(1, 3),
    taken=st.integers(0, 20),
    drop_last=st.booleans(),
    scaling=st.sampled_from(["constant", "linear"]),
)
def test_batches_left_equals_the_remaining_batches(
    n: int, batch: int, epochs: int, taken: int, drop_last: bool, scaling: Any
) -> None:
    sampler = Sampler(n, min(batch, n), epochs=epochs, drop_last=drop_last, scaling=scaling)
    for _ in range(taken):
        if not sampler.is_exhausted:
            sampler.next_batch()
    expected, left = sampler.batches_left, 0
    while not sampler.is_exhausted:
        sampler.next_batch()
        left += 1
    assert expected == left and sampler.batches_left == 0


def test_numpy_seed_is_stored_as_an_int() -> None:
    assert type(Sampler(10, 2, seed=np.int64(3)).position()["seed"]) is int
    with pytest.raises(ArgumentTypeError, match="seed=None is a NoneType"):
        Sampler(10, 2, seed=None)  # type: ignore[arg-type]
