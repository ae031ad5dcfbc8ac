"""Tests of the settings of ``strategy()``: what it refuses before it imports TensorFlow, merge scopes, groups, keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hopsml
from hopsml.cluster.shared import checks
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.tensorflow.distribution.merging import InstanceKeys, plan_groups

pytestmark = pytest.mark.fast

DTYPES = st.lists(st.sampled_from(["float32", "float16", "int32"]), max_size=200)
SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5)
LISTS = st.lists(st.tuples(st.sampled_from(["float32", "float16"]), SHAPES), max_size=8)


@pytest.mark.parametrize(("value", "scope"), [(1, 1), (32, 32), ("32", 32), ("all", "all"), (1000, 1000)])
def test_merge_scope_accepts_a_number_of_gradients_or_all(value: int | str, scope: int | str) -> None:
    assert checks.merge_scope("merge_scope", value) == scope


@pytest.mark.parametrize(
    ("error", "values"),
    [(ArgumentError, [0, -1, "0", "none", "-3", "", "1.5"]), (ArgumentTypeError, [1.5, True, None, [32]])],
)
def test_invalid_merge_scope_is_refused(error: type[Exception], values: list[Any]) -> None:
    for value in values:
        with pytest.raises(error, match="merge_scope="):
            checks.merge_scope("merge_scope", value)


@pytest.mark.parametrize(("scope", "groups"), [(1, 160), (32, 5), (33, 5), (160, 1), (None, 1)])
def test_merge_scope_determines_the_number_of_gradient_groups(scope: int | None, groups: int) -> None:
    assert len(plan_groups(["float32"] * 160, scope)) == groups


def test_merge_groups_start_with_the_last_gradients_and_separate_types() -> None:
    groups = plan_groups(["float32", "float16", "float32", "float32", "float16"], 2)
    assert [group.positions for group in groups] == [(4, 1), (3, 2), (0,)]


@given(DTYPES, st.one_of(st.none(), st.integers(1, 64)))
def test_every_tensor_is_in_one_merge_group_of_its_type(dtypes: list[str], scope: int | None) -> None:
    groups = plan_groups(dtypes, scope)
    assert sorted(position for group in groups for position in group.positions) == list(range(len(dtypes)))
    for group in groups:
        assert {dtypes[position] for position in group.positions} == {group.dtype}
        assert scope is None or len(group.positions) <= scope


@given(LISTS)
def test_instance_keys_within_a_list_differ(groups: list[tuple[str, list[list[int]]]]) -> None:
    firsts = InstanceKeys().assign_keys(groups)
    taken = [key + index for key, (_, shapes) in zip(firsts, groups, strict=True) for index in range(len(shapes))]
    assert len(set(taken)) == len(taken)
    assert all(0 < key < 2**31 for key in taken)


@given(LISTS, LISTS)
def test_instance_keys_do_not_depend_on_earlier_traces(
    first: list[tuple[str, list[list[int]]]], second: list[tuple[str, list[list[int]]]]
) -> None:
    one, other = InstanceKeys(), InstanceKeys()
    one.assign_keys(first)
    expected = one.assign_keys(second)
    assert other.assign_keys(second) == expected
    assert other.assign_keys(second) == expected


def test_merge_groups_with_overlapping_keys_are_moved_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from hopsml.training.tensorflow.distribution import merging

    # Two different groups whose keys would overlap: with 2**30 keys nothing but a narrow key space shows it.
    monkeypatch.setattr(merging, "_KEY_SPACE", 16)
    groups = [("float32", [(1,)] * 4), ("float32", [(2,)] * 4), ("float32", [(3,)] * 4)]
    firsts = InstanceKeys().assign_keys(groups)
    taken = [key + index for key in firsts for index in range(4)]
    assert len(set(taken)) == 12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"compression": "topk", "implementation": "tensorflow"}, "compression with implementation='tensorflow'"),
        (
            {"reduction": "adasum", "accumulate": 4, "implementation": "nccl"},
            "accumulate and reduction with implementation='nccl'",
        ),
        ({"double_buffering": True, "merge_scope": 4}, "double_buffering with merge_scope"),
        ({"compression": "powersgd", "ring_order": [0]}, "compression with ring_order"),
        ({"compression": "gzip"}, "compression='gzip': it must be None, or one of 'fp16'"),
        ({"topk": 0.5, "compression": "powersgd"}, "this is a setting of compression='topk'"),
    ],
)
def test_invalid_strategy_settings_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        hopsml.tensorflow.strategy(**arguments)


def test_hopsml_setting_with_another_implementation_names_the_remedy() -> None:
    with pytest.raises(ArgumentError, match="use implementation='hopsml', or omit these settings"):
        hopsml.tensorflow.strategy(reduction="adasum", implementation="ring")
