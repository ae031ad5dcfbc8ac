"""Tests of pass numbers: consecutive, and equal for all processes of one pass in any order of arrival."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.training.torch.input_batches import LoaderProcess, Passes, assign_pass

pytestmark = pytest.mark.fast


def play(*processes: LoaderProcess | None) -> list[int]:
    """The numbers that they get, one after another."""
    passes, numbers = Passes(), []
    for process in processes:
        passes, number = assign_pass(passes, process)
        numbers.append(number)
    return numbers


def of(seed: int, number: int, count: int = 2, lap: int = 0) -> LoaderProcess:
    return LoaderProcess(seed, lap, number, count)


def test_passes_of_the_training_process_are_numbered_consecutively() -> None:
    assert play(None, None, None) == [0, 1, 2]


def test_loader_processes_start_a_pass_together_in_any_order() -> None:
    assert play(of(7, 1), of(7, 0), None, of(8, 0), of(8, 1)) == [0, 0, 1, 2, 2]


def test_persistent_loader_processes_start_the_next_pass() -> None:
    assert play(of(7, 0), of(7, 1), of(7, 0, lap=1), None, of(7, 1, lap=1), of(7, 1, lap=2)) == [0, 0, 1, 2, 1, 3]


def test_repeated_seed_starts_another_pass() -> None:
    assert play(of(7, 0), of(7, 1), of(7, 0), of(7, 1)) == [0, 0, 1, 1]
    assert play(of(7, 0, 1), of(7, 0, 1)) == [0, 1]
    assert play(of(7, 0), of(7, 0), of(7, 1)) == [0, 1, 1]  # the first pass was left before its other process had begun


def test_concurrent_passes_and_process_counts_have_separate_numbers() -> None:
    assert play(of(7, 0), of(8, 0), of(8, 1), of(7, 1), of(7, 0, 3), of(7, 2, 3), of(7, 1, 3)) == [0, 1, 1, 0, 2, 2, 2]


def test_abandoned_passes_do_not_accumulate() -> None:
    passes = Passes()
    for seed in range(1000):
        passes, number = assign_pass(passes, of(seed, 0))
        assert number == seed
    assert len(passes.open) < 100
    assert assign_pass(passes, of(999, 1))[1] == 999


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=12, unique_by=lambda one: one[0]), st.randoms()
)
def test_each_pass_has_a_unique_number_in_any_order_of_arrival(loaders: list[tuple[int, int]], any_order: Any) -> None:
    coming = [LoaderProcess(seed, 0, number, count) for seed, count in loaders for number in range(count)]
    any_order.shuffle(coming)
    found: dict[int, set[int]] = {}
    for process, number in zip(coming, play(*coming), strict=True):
        found.setdefault(process.seed, set()).add(number)
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(len(loaders)))
