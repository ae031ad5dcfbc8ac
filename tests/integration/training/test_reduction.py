"""Tests of effective merge settings: merged operations in the graph, right sums, one result for all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of all checks, run once by one group of two workers."""
    return run_group("reduction:everything", tmp_path_factory.mktemp("reduction"), merge_scope="all")


@pytest.mark.parametrize(("setting", "collectives", "buffers"), [("1", 160, 0), ("32", 5, 5), ("all", 1, 1)])
def test_gradients_are_merged_as_configured_in_the_optimised_graph(
    results: Results, setting: str, collectives: int, buffers: int
) -> None:
    for result in results:
        counts = result["counts"][setting]
        assert counts["CollectiveReduce"] == collectives
        assert counts.get("_ScopedAllocator", 0) == buffers
        assert "CollectiveReduceV2" not in counts


def test_packs_are_merged_without_the_scoped_allocator(results: Results) -> None:
    for result in results:
        assert result["counts"]["packs-32"] == {"CollectiveReduceV2": 5}


def test_strategy_arguments_override_the_settings_of_the_run(results: Results) -> None:
    for result in results:
        assert result["settings"] == ["all", "scoped_allocator"]
        assert result["ring_order"] == "0"
        assert result["own_counts"]["CollectiveReduce"] == 1


def test_all_merge_settings_train_equally_on_all_ranks(results: Results) -> None:
    first, second = (result["losses"] for result in results)
    for setting, trained in first.items():
        assert trained["digest"] == second[setting]["digest"], setting
        assert trained["losses"] == pytest.approx(first["packs-32"]["losses"], rel=1e-6), setting
    assert first["32"]["losses"][-1] < first["32"]["losses"][0]


def test_mixed_types_sparse_constant_and_unknown_shapes_are_reduced(results: Results) -> None:
    # known is 1 on rank 0 and 2 on rank 1, four elements: the sum over ranks and elements is 12
    mixed = [12.0] * 7
    among = [12.0, 15.0, 24.0, 15.0, 36.0]  # sparse: (2 + 3) rows of three ones
    constants = [0.0, 2.0, 6.0, 6.0, 6.0]
    assert [result["odd"]["sums"] for result in results] == [[*mixed, *among, *constants, 6.0, 12.0, 12.0]] * 2


def test_retrace_on_one_rank_does_not_separate_the_workers(results: Results) -> None:
    assert [result["retrace"] for result in results] == [[6.0] * 4] * 2


def test_functions_called_twice_in_loops_and_branches_are_reduced(results: Results) -> None:
    once = 2 * 2 * 160.0
    for result in results:
        assert result["nested"] == {"twice": 11 * once, "loop": 8 * once}
        assert result["nested_bare"] == {"twice": 11 * once / 2, "loop": 8 * once / 2}


def test_reduction_does_not_change_the_local_gradients(results: Results) -> None:
    assert [result["local"] for result in results] == [[20.0, 30.0, 40.0, 60.0]] * 2


def test_reduction_works_outside_of_a_function(results: Results) -> None:
    assert [result["eager"] for result in results] == [[6.0, 8.0, 2.0]] * 2
