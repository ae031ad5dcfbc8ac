"""Tests of the choice of batch sizes, with models of known cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.model.batch import FACTOR, FIRST, LARGEST, MOST_BYTES, BatchTuner

pytestmark = pytest.mark.fast


def settled(tuner: BatchTuner, call_s: float, row_s: float, calls: int = 40) -> int:
    for _ in range(calls):
        tuner.record_call(tuner.size, call_s + row_s * tuner.size)
    assert tuner.settled
    return tuner.size


def test_it_grows_as_long_as_that_pays() -> None:
    assert settled(BatchTuner(4), call_s=1e-3, row_s=1e-3) == FIRST  # a call costs no more than a row
    assert settled(BatchTuner(4), call_s=1.0, row_s=1e-6) == LARGEST
    assert FIRST < settled(BatchTuner(4), call_s=1e-2, row_s=1e-5) < LARGEST


@given(row_bytes=st.integers(1, 1 << 30), call_s=st.floats(0, 1), row_s=st.floats(1e-9, 1))
def test_no_batch_is_larger_than_memory_shall_hold(row_bytes: int, call_s: float, row_s: float) -> None:
    size = settled(BatchTuner(row_bytes), call_s, row_s)
    assert 1 <= size <= LARGEST and (size == 1 or size * row_bytes <= MOST_BYTES)


def test_a_slower_size_is_left_for_the_one_before() -> None:
    tuner = BatchTuner(4)
    for _ in range(20):
        tuner.record_call(tuner.size, tuner.size * (1e-6 if tuner.size <= FIRST * FACTOR else 1e-3) + 1e-3)
    assert (tuner.size, tuner.settled) == (FIRST * FACTOR, True)


def test_the_first_call_and_short_batches_say_nothing() -> None:
    tuner = BatchTuner(4)
    tuner.record_call(FIRST, 60.0)
    for _ in range(10):
        tuner.record_call(FIRST - 1, 1e-9)
    assert (tuner.size, tuner.settled) == (FIRST, False)


def test_a_size_that_is_given_stays() -> None:
    tuner = BatchTuner(4, fixed=7)
    tuner.record_call(7, 1.0)
    assert (tuner.size, tuner.settled) == (7, True)
