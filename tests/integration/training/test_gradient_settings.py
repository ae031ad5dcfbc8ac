"""Tests of communication settings of hopsml's collective: equal weights on all ranks, equal to NumPy's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.training.group import group, run_group
from tests.helpers.training.jobs.gradients import LOOPS, STEPS

pytestmark = pytest.mark.tensorflow

Results = list[dict[str, Any]]
PARTS = ["kinds", "rounded", "fits", "tf_keras", "overflow", "refused", "generations", "left"]
# Three workers, below, go through some of these, and through what the rest is made of.
COMBINED = (
    "fp16", "adasum", "double_fp16", "double_accumulate", "double_adasum", "double_topk", "double_powersgd", "adasum_fp16",
)  # fmt: skip
WITHIN = {"fp16": 1e-3, "bf16": 1e-2, "double_fp16": 1e-3, "adasum_fp16": 2e-3}  # else float32's


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two workers that went through everything."""
    folder = tmp_path_factory.mktemp("gradients")
    loops = [name for name in LOOPS if name not in COMBINED]
    with group("gradients:everything", folder, parts=PARTS, loops=loops) as workers:
        return [{**result, "log": workers.log(rank)} for rank, result in enumerate(workers.wait())]


def iterations_of(name: str) -> int:
    """Updates, those at the end among them."""
    return -(-STEPS // LOOPS[name].get("accumulate", 1))


def check_loop(found: list[dict[str, Any]], name: str) -> None:
    assert len({one["digest"] for one in found}) == 1
    for one in found:
        assert one["error"] < WITHIN.get(name, 1e-5), one
        assert one["iterations"] == iterations_of(name)
        assert one["losses"][1] < one["losses"][0]
        assert one["unused"] == 1.0


@pytest.mark.parametrize("name", [name for name in LOOPS if name not in COMBINED])
def test_custom_loop_with_each_setting_equals_numpy_on_all_ranks(results: Results, name: str) -> None:
    check_loop([result["loops"][name] for result in results], name)


@pytest.fixture(scope="module")
def combined(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two workers that went through the rest."""
    parts = ["tf_keras_rest", "fits_rest"]
    return run_group("gradients:everything", tmp_path_factory.mktemp("combined"), parts=parts, loops=list(COMBINED))


@pytest.mark.variant  # of three workers
@pytest.mark.parametrize("name", COMBINED)
def test_custom_loop_with_combined_settings_equals_numpy_on_all_ranks(combined: Results, name: str) -> None:
    check_loop([result["loops"][name] for result in combined], name)


@pytest.mark.parametrize("library", ["tf_keras", "legacy"])
@pytest.mark.parametrize("name", ["fp16", "double_accumulate"])
def test_custom_loop_with_tf_keras_optimizer_equals_numpy(results: Results, library: str, name: str) -> None:
    check_loop([result["tf_keras"][f"{library}_{name}"] for result in results], name)


@pytest.mark.variant  # of Keras's own, above, and of the other settings
@pytest.mark.parametrize("library", ["tf_keras", "legacy"])
def test_custom_loop_with_topk_and_tf_keras_optimizer_equals_numpy(combined: Results, library: str) -> None:
    check_loop([result["tf_keras_rest"][f"{library}_topk"] for result in combined], "topk")


def test_sparse_and_absent_gradients_are_reduced_correctly_with_every_setting(results: Results) -> None:
    for result in results:
        kinds = result["kinds"]
        table, weight, unused = kinds["plain"]
        assert [row[0] for row in table] == [1 - 0.25, 1 - 0.25, 1 - 0.25, 1 - 0.5, 1 - 0.125, 1 - 0.125]
        assert weight == [[1 - 0.75], [2 - 0.75]] and unused == 3.0
        for name in ("topk", "powersgd", "double"):
            assert kinds[name] == kinds["plain"], name
        assert kinds["adasum"] == kinds["plain"]  # their dense gradients are parallel
        means = [1 - (1 - row[0]) / 3 for row in table]
        for name in ("accumulate", "double_accumulate"):
            assert [row[0] for row in kinds[name][0]] == pytest.approx(means), name
            assert kinds[name][2] == 3.0


def test_only_gradients_are_compressed(results: Results) -> None:
    for result in results:
        for compression, found in result["rounded"].items():
            assert found["own"] and found["outside"], compression
            assert not found["weight"], compression
        assert 0 < result["rounded"]["fp16"]["error"] < 0.005


def test_fit_applies_delayed_and_accumulated_gradients(results: Results) -> None:
    first, second = (result["fits"] for result in results)
    assert first == second
    steps = 3 * 4
    for name, iterations in {"plain": steps, "double": steps, "accumulate": steps // 3}.items():
        assert first[name]["iterations"] == iterations, name
        assert first[name]["moved"]


def test_fit_with_double_buffering_ends_with_the_averages_of_all_steps(results: Results) -> None:
    for result in results:
        assert result["fits"]["averaged"]


@pytest.mark.variant  # of what is accumulated over three steps, above
def test_fit_applies_gradients_accumulated_over_an_epoch(combined: Results) -> None:
    first, second = (result["fits_rest"] for result in combined)
    assert first == second and first["accumulate_rest"]["iterations"] == 3 and first["accumulate_rest"]["moved"]


def test_double_buffering_applies_nothing_in_the_first_step(results: Results) -> None:
    for result in results:
        assert result["fits"]["one_step"] == {"nothing": True, "first": True}


@pytest.mark.variant
def test_digits_training_with_each_setting_reaches_the_same_accuracy(tmp_path: Any) -> None:
    first, second = (
        result["digits"] for result in run_group("gradients:everything", tmp_path, parts=["digits"], loops=[])
    )
    assert first == second
    assert first["plain"]["accuracy"] > 0.89
    for name in ("topk", "powersgd", "adasum", "double"):
        assert first[name]["accuracy"] >= first["plain"]["accuracy"] - 0.02, name


def test_overflow_on_one_rank_skips_the_step_on_all_ranks(results: Results) -> None:
    for result in results:
        found = result["overflow"]
        # Each is scaled by 4, whatever the scale is now: after the overflow gradients count twice.
        assert found["seen"] == [[0, 0], [0, 0], [-2, -2], [-6, -402]]
        assert found["end"] == [-10, -4402] and found["scale"] == 2.0


def test_newcomer_has_no_delayed_gradients_and_all_ranks_restart_equal(results: Results) -> None:
    total = 30.0  # of a step's gradients: 10 and 20
    for rank, result in enumerate(results):
        found = result["generations"]
        assert found["double"] == [-3 * total, -3 * total, 1 + rank, True, False]
        assert found["accumulate"] == [-total, -total, 1 + rank, False, False]
        low, high, traces, held, after = found["double_powersgd"]
        left = 1.0  # of the first step, with rank 0
        assert (low, high) == (pytest.approx(-3 * total - left, abs=0.05), pytest.approx(-3 * total - left, abs=0.05))
        assert (traces, held, after) == (1 + rank, True, False)
        assert not found["nothing"]


def test_unapplied_gradients_at_the_end_are_logged_once(results: Results) -> None:
    for result in results:
        assert result["left"] == {"iterations": 0}
        line = (
            "hopsml: gradients of the last step were not applied (double buffering): call "
            "hopsml.tensorflow.finish_updates(optimizer) after the loop, in all workers; fit() does it by itself"
        )
        assert result["log"].splitlines().count(line) == 1


def test_two_kinds_of_accumulation_are_refused(results: Results) -> None:
    for result in results:
        assert "gradient_accumulation_steps=2" in result["refused"]["accumulation"]
        assert "give accumulate=" in result["refused"]["accumulation"]


def test_settings_with_three_workers_equal_numpy(tmp_path: Any) -> None:
    names = ["fp16", "adasum", "double_topk", "double_powersgd", "double_accumulate"]
    found = run_group("gradients:everything", tmp_path, workers=3, parts=[], loops=names)
    for name in names:
        check_loop([result["loops"][name] for result in found], name)


def test_settings_over_tensorflow_collectives_equal_numpy_on_all_ranks(tmp_path: Any) -> None:
    names = ["fp16", "bf16"]
    found = run_group("gradients:over_tensorflow", tmp_path, loops=names)
    for name in names:
        check_loop([result["loops"][name] for result in found], name)
    for result in found:
        assert result["settings"] == "fp16" and result["fit"] == 6
        plain = result["kinds"]["plain"]
        assert [row[0] for row in plain[0]] == [1 - 0.25, 1 - 0.25, 1 - 0.25, 1 - 0.5, 1 - 0.125, 1 - 0.125]
        assert result["kinds"]["fp16"] == plain
