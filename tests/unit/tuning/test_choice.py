"""Tests of tuning's choice: the fastest method, unless the default is equally fast."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.errors import ArgumentError
from hopsml.tuning.choice import MARGIN, OURS, choose, list_candidates, total_gradient_bytes

pytestmark = pytest.mark.fast

rounds = st.integers(1, 9).flatmap(
    lambda count: st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.floats(0.1, 1e3), min_size=count, max_size=count), min_size=1
    ).map(lambda others: {"default": [10.0] * count, **others})
)


def test_gain_within_the_noise_keeps_the_default():
    assert choose({"default": [10.0], "other": [9.8]}, "default").chosen == "default"
    found = choose({"default": [10.0], "other": [9.6]}, "default")
    assert (found.chosen, found.ratio, found.medians_ms) == ("other", 0.96, {"default": 10.0, "other": 9.6})


def test_methods_are_compared_within_the_same_rounds():
    """A machine that became slower midway affected all methods alike, which medians alone would not show."""
    found = choose({"default": [10.0, 100.0, 101.0], "other": [9.0, 90.0, 100.0]}, "default")
    assert found.chosen == "other" and found.ratio == 0.9


@pytest.mark.parametrize(
    ("own", "margin", "chosen"),
    [
        (75.0, 0.25, "default"),  # a quarter is no more than a quarter
        (74.0, 0.25, "other"),
        (76.0, 0.25, "default"),
        (98.0, 0.01, "other"),
        (99.9, 0.0, "other"),
        (100.0, 0.0, "default"),
        (97.0, MARGIN, "default"),
        (96.9, MARGIN, "other"),
        (101.0, MARGIN, "default"),
    ],
)
def test_default_is_chosen_unless_the_gain_exceeds_the_margin(own: float, margin: float, chosen: str):
    found = choose({"default": [100.0], "other": [own]}, "default", margin)
    assert (found.chosen, found.default) == (chosen, "default")
    assert found.ratio == pytest.approx(1.0 if chosen == "default" else own / 100)


def test_fastest_method_is_chosen_and_all_medians_are_reported():
    found = choose({"a": [9.0, 9.0], "b": [30.0, 30.0], "c": [3.0, 7.0], "d": [6.0, 6.0]}, "a")
    assert (found.chosen, found.default, found.ratio) == ("c", "a", 0.5556)  # halfway between a third and seven ninths
    assert found.medians_ms == {"a": 9.0, "b": 30.0, "c": 5.0, "d": 6.0}
    assert list(found.medians_ms) == ["a", "b", "c", "d"]


def test_first_of_equally_fast_methods_is_chosen():
    assert choose({"slow": [9.0], "one": [3.0], "other": [3.0]}, "slow").chosen == "one"


def test_ratio_and_medians_have_four_decimals():
    found = choose({"default": [3.0], "other": [1.00006]}, "default")
    assert (found.ratio, found.medians_ms["other"]) == (0.3334, 1.0001)


@given(rounds)
def test_chosen_method_is_never_slower_than_the_default(measured: dict[str, list[float]]):
    found = choose(measured, "default")
    assert found.ratio == 1.0 if found.chosen == "default" else found.ratio < 1 - MARGIN


@pytest.mark.parametrize("measured", [{}, {"default": []}, {"other": [1.0]}, {"default": [1.0], "other": [1.0, 2.0]}])
def test_rounds_that_differ_between_methods_are_refused(measured: dict[str, list[float]]):
    with pytest.raises(ArgumentError, match="no candidate was measured in every round"):
        choose(measured, "default")


def test_refused_rounds_are_listed_by_method():
    with pytest.raises(ArgumentError) as caught:
        choose({"default": [1.0], "other": [1.0, 2.0]}, "default")
    assert str(caught.value) == "no candidate was measured in every round: {'default': 1, 'other': 2}"


def test_lossy_candidates_are_included_only_if_allowed():
    assert {one.compression for one in list_candidates()} == {"none"}
    assert [one.name for one in list_candidates(["fp16", "fp16"])][-1] == "hopsml, fp16"
    with pytest.raises(ArgumentError, match="lossy='int8': the compression must be one of 'fp16', 'bf16', or omitted"):
        list_candidates(["int8"])


def test_candidate_names_are_as_distinct_as_their_settings():
    tried = list_candidates(["fp16", "bf16"])
    assert len({one.name for one in tried}) == len(tried) == len({str(one.settings()) for one in tried})
    assert OURS.settings() == {"implementation": "hopsml"}


def test_gradient_bytes_are_the_sum_of_shapes_times_type_size():
    assert total_gradient_bytes([((2, 3), "float32"), ((5,), "float64"), ((), "bfloat16")]) == 24 + 40 + 2


def test_candidate_settings_are_options_of_the_verb():
    found = {one.name: one.settings() for one in list_candidates(["fp16", "bf16", "fp16"])}
    assert found["hopsml"] == {"implementation": "hopsml"}
    assert found["tensorflow, all by packs"] == {
        "implementation": "tensorflow",
        "merge_scope": "all",
        "scoped_allocator": False,
    }
    assert found["hopsml, fp16"] == {"implementation": "hopsml", "compression": "fp16"}
    assert list(found)[-2:] == ["hopsml, fp16", "hopsml, bf16"] and len(found) == 8
