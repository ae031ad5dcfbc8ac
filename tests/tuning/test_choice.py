"""Which way tuning takes: the fastest, unless the default is as good as that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.errors import ArgumentError
from hopsml.tuning.candidates import OURS, bytes_of, candidates
from hopsml.tuning.choice import MARGIN, choose

pytestmark = pytest.mark.fast

rounds = st.integers(1, 9).flatmap(
    lambda count: st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.floats(0.1, 1e3), min_size=count, max_size=count), min_size=1
    ).map(lambda others: {"default": [10.0] * count, **others})
)


def test_a_gain_within_the_noise_is_none():
    assert choose({"default": [10.0], "other": [9.8]}, "default").chosen == "default"
    found = choose({"default": [10.0], "other": [9.6]}, "default")
    assert (found.chosen, found.ratio, found.medians_ms) == ("other", 0.96, {"default": 10.0, "other": 9.6})


def test_ways_are_compared_in_the_same_rounds():
    """A machine that became slower in the middle met all alike; the medians alone would not say so."""
    found = choose({"default": [10.0, 100.0, 101.0], "other": [9.0, 90.0, 100.0]}, "default")
    assert found.chosen == "other" and found.ratio == 0.9


@given(rounds)
def test_never_slower_than_the_default(measured: dict[str, list[float]]):
    found = choose(measured, "default")
    assert found.ratio == 1.0 if found.chosen == "default" else found.ratio < 1 - MARGIN


@pytest.mark.parametrize("measured", [{}, {"default": []}, {"other": [1.0]}, {"default": [1.0], "other": [1.0, 2.0]}])
def test_rounds_that_cannot_be_compared(measured: dict[str, list[float]]):
    with pytest.raises(ArgumentError, match="nothing to choose from"):
        choose(measured, "default")


def test_what_loses_is_tried_only_where_it_is_allowed():
    assert {one.compression for one in candidates()} == {"none"}
    assert [one.name for one in candidates(["fp16", "fp16"])][-1] == "hopsml, fp16"
    with pytest.raises(ArgumentError, match="lossy='int8': it must be of 'fp16', 'bf16', or left out"):
        candidates(["int8"])


def test_names_are_as_different_as_the_settings():
    tried = candidates(["fp16", "bf16"])
    assert len({one.name for one in tried}) == len(tried) == len({str(one.settings()) for one in tried})
    assert OURS.settings() == {"implementation": "hopsml"}


def test_bytes_of_gradients():
    assert bytes_of([((2, 3), "float32"), ((5,), "float64"), ((), "bfloat16")]) == 24 + 40 + 2


def test_a_candidates_settings_are_options_of_the_verb():
    found = {one.name: one.settings() for one in candidates(["fp16", "bf16", "fp16"])}
    assert found["hopsml"] == {"implementation": "hopsml"}
    assert found["tensorflow, all by packs"] == {
        "implementation": "tensorflow",
        "merge_scope": "all",
        "scoped_allocator": False,
    }
    assert found["hopsml, fp16"] == {"implementation": "hopsml", "compression": "fp16"}
    assert list(found)[-2:] == ["hopsml, fp16", "hopsml, bf16"] and len(found) == 8
