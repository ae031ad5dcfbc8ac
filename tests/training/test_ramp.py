"""Tests of a learning rate that follows the global batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.training.elastic.sampler import Ramp, first_ramp

pytestmark = pytest.mark.fast


def test_it_rises_in_equal_parts_and_stays() -> None:
    ramp = first_ramp(8.0, 1000)
    assert [ramp.factor(samples) for samples in (0, 250, 500, 1000, 5000)] == [1.0, 2.75, 4.5, 8.0, 8.0]


def test_it_falls_at_once_and_another_rise_begins_where_it_stands() -> None:
    halfway = first_ramp(8.0, 1000).towards(2.0, 500, 1000)
    assert halfway.factor(500) == 2.0
    again = halfway.towards(4.0, 600, 1000)
    assert (again.factor(600), again.factor(1100), again.factor(1600)) == (2.0, 3.0, 4.0)
    assert again.towards(4.0, 900, 1000) is again


@given(
    st.lists(st.tuples(st.floats(0.1, 64), st.integers(0, 5000)), min_size=1, max_size=8),
    st.floats(0, 3000),
)
def test_it_never_jumps_up_and_never_leaves_its_bounds(changes: list[tuple[float, int]], length: float) -> None:
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
