"""Tests of the choice of batch sizes, with models of known cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.model.batch import FACTOR, FIRST, LARGEST, MOST_BYTES, BatchTuner

pytestmark = pytest.mark.fast


def tuned_size(tuner: BatchTuner, call_s: float, row_s: float, calls: int = 40) -> int:
    for _ in range(calls):
        tuner.record_call(tuner.size, call_s + row_s * tuner.size)
    assert tuner.settled
    return tuner.size


def test_batch_size_grows_while_that_reduces_cost_per_row() -> None:
    assert tuned_size(BatchTuner(4), call_s=1e-3, row_s=1e-3) == FIRST  # a call costs no more than a row
    assert tuned_size(BatchTuner(4), call_s=1.0, row_s=1e-6) == LARGEST
    assert FIRST < tuned_size(BatchTuner(4), call_s=1e-2, row_s=1e-5) < LARGEST


@given(row_bytes=st.integers(1, 1 << 30), call_s=st.floats(0, 1), row_s=st.floats(1e-9, 1))
def test_batch_size_stays_within_the_memory_limit(row_bytes: int, call_s: float, row_s: float) -> None:
    size = tuned_size(BatchTuner(row_bytes), call_s, row_s)
    assert 1 <= size <= LARGEST and (size == 1 or size * row_bytes <= MOST_BYTES)


def test_slower_batch_size_is_replaced_by_the_previous_one() -> None:
    tuner = BatchTuner(4)
    for _ in range(20):
        tuner.record_call(tuner.size, tuner.size * (1e-6 if tuner.size <= FIRST * FACTOR else 1e-3) + 1e-3)
    assert (tuner.size, tuner.settled) == (FIRST * FACTOR, True)


def test_first_call_and_short_batches_are_not_measured() -> None:
    tuner = BatchTuner(4)
    tuner.record_call(FIRST, 60.0)
    for _ in range(10):
        tuner.record_call(FIRST - 1, 1e-9)
    assert (tuner.size, tuner.settled) == (FIRST, False)


def test_fixed_batch_size_is_not_changed() -> None:
    tuner = BatchTuner(4, fixed=7)
    tuner.record_call(7, 1.0)
    assert (tuner.size, tuner.settled) == (7, True)
