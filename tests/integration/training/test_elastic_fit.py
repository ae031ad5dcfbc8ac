"""Tests of elastic ``fit`` with ``hopsml.tensorflow.callbacks()``: it continues with every kind of input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow


@pytest.mark.variant
def test_a_successor_ends_with_the_weights_of_an_undisturbed_training(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:interrupted", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    found.pop("sent")
    assert len(found) == 7
    for name, (undisturbed, broken_off) in found.items():
        assert broken_off[0] == undisturbed[0], f"{name}: other weights"
        assert broken_off[1:3] == undisturbed[1:3], f"{name}: another history"
        assert 0 < broken_off[3] < undisturbed[3], f"{name}: it began anew"


def test_a_successor_goes_on_with_an_optimizer_that_the_first_step_builds(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:second_optimizer", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    undisturbed, broken_off = found["undisturbed"], found["broken_off"]
    assert broken_off[:3] == undisturbed[:3]
    assert 0 < broken_off[3] < undisturbed[3], "it began anew"


def test_uneven_shares_count_as_the_whole_batch_does(tmp_path: Path) -> None:
    slots = str(tmp_path / "slots")
    (alone,) = run_group("elastic_fit:together", tmp_path / "one", workers=1, slots=f"{slots}-1")
    first, second = run_group("elastic_fit:together", tmp_path / "two", slots=f"{slots}-2")
    assert first["weights"] == second["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-6)


@pytest.mark.variant
def test_uneven_shares_suit_losses_by_position_and_steps_of_ones_own(tmp_path: Path) -> None:
    slots = str(tmp_path / "slots")
    (alone,) = run_group("elastic_fit:shapes", tmp_path / "one", workers=1, slots=f"{slots}-1")
    first, second = run_group("elastic_fit:shapes", tmp_path / "two", slots=f"{slots}-2")
    for kind in ("Sequential", "Own"):
        assert first[kind] == second[kind] and first[kind]["moved"]
    assert first["Sequential"]["weights"] == pytest.approx(alone["Sequential"]["weights"], rel=1e-4, abs=1e-6)


def test_a_data_set_of_keras_is_told_of_each_epoch(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:told", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    assert found["events"] == ["end", "begin", "end", "begin", "end", "begin"], "the first by the reset before training"


@pytest.mark.variant
def test_linear_scaling_sets_batch_and_rate_by_the_size_of_the_group(tmp_path: Path) -> None:
    first, second = run_group("elastic_fit:linear", tmp_path, slots=str(tmp_path / "slots"))
    assert first["rates"] == second["rates"] and len(first["rates"]) == 12 * 16 // 8, "batches of 2 x 4"
    assert first["rates"][0] == pytest.approx(0.1) and first["rates"][-1] == pytest.approx(0.2), "by a ramp of 5 epochs"
    assert first["rates"] == sorted(first["rates"])


def test_data_without_an_order_that_can_be_found_again_is_refused(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:refusals", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    assert "give shuffle() a seed=" in found["unseeded"]
    assert "steps_per_epoch= with arrays" in found["steps"]
    assert "give fit() the arrays, with batch_size=" in found["linear"]


@pytest.mark.variant
def test_what_a_newcomer_draws_alone_and_what_it_is_given_of_callbacks(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:newcomer", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    drawn = found["drawn"]
    assert drawn["arrays"] == [[5, 5, 5], ""], "its first batches, whole; two of 17 samples are for the validation"
    assert drawn["in order"] == [[5, 5, 5, 2], ""]
    assert "shuffled anew for each epoch" in drawn["dataset"][1] and "shuffled anew" in drawn["unknown"][1]
    assert found["given"] == [3, 3, True, 2, True]
    assert found["tuned"] == [True, False]
    assert found["adopted"] == [[True, True], [False, True], [False, True]]
