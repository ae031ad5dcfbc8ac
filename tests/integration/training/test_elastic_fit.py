"""Tests of elastic ``fit`` with ``hopsml.tensorflow.callbacks()``: it continues with every kind of input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow


@pytest.mark.variant
def test_successor_of_elastic_fit_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:interrupted", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    found.pop("sent")
    assert len(found) == 7
    for name, (undisturbed, broken_off) in found.items():
        assert broken_off[0] == undisturbed[0], f"{name}: other weights"
        assert broken_off[1:3] == undisturbed[1:3], f"{name}: another history"
        assert 0 < broken_off[3] < undisturbed[3], f"{name}: it began anew"


def test_successor_resumes_an_optimizer_built_by_its_first_step(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:second_optimizer", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    undisturbed, broken_off = found["undisturbed"], found["broken_off"]
    assert broken_off[:3] == undisturbed[:3]
    assert 0 < broken_off[3] < undisturbed[3], "it began anew"


def test_uneven_shares_are_weighted_as_one_global_batch(tmp_path: Path) -> None:
    slots = str(tmp_path / "slots")
    (alone,) = run_group("elastic_fit:together", tmp_path / "one", workers=1, slots=f"{slots}-1")
    first, second = run_group("elastic_fit:together", tmp_path / "two", slots=f"{slots}-2")
    assert first["weights"] == second["weights"] == pytest.approx(alone["weights"], rel=1e-4, abs=1e-6)


@pytest.mark.variant
def test_uneven_shares_work_with_positional_losses_and_custom_train_steps(tmp_path: Path) -> None:
    slots = str(tmp_path / "slots")
    (alone,) = run_group("elastic_fit:shapes", tmp_path / "one", workers=1, slots=f"{slots}-1")
    first, second = run_group("elastic_fit:shapes", tmp_path / "two", slots=f"{slots}-2")
    for kind in ("Sequential", "Own"):
        assert first[kind] == second[kind] and first[kind]["moved"]
    assert first["Sequential"]["weights"] == pytest.approx(alone["Sequential"]["weights"], rel=1e-4, abs=1e-6)


def test_keras_data_set_receives_begin_and_end_of_each_epoch(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:epoch_notifications", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    assert found["events"] == ["end", "begin", "end", "begin", "end", "begin"], "the first by the reset before training"


@pytest.mark.variant
def test_linear_scaling_sets_batch_and_rate_by_group_size(tmp_path: Path) -> None:
    first, second = run_group("elastic_fit:linear", tmp_path, slots=str(tmp_path / "slots"))
    assert first["rates"] == second["rates"] and len(first["rates"]) == 12 * 16 // 8, "batches of 2 x 4"
    assert first["rates"][0] == pytest.approx(0.1) and first["rates"][-1] == pytest.approx(0.2), "by a ramp of 5 epochs"
    assert first["rates"] == sorted(first["rates"])


def test_elastic_fit_refuses_data_without_a_reproducible_order(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:refusals", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    assert "give shuffle() a seed=" in found["unseeded"]
    assert "steps_per_epoch= with arrays" in found["steps"]
    assert "give fit() the arrays, with batch_size=" in found["linear"]


@pytest.mark.variant
def test_newcomer_draws_its_own_batches_and_receives_callback_state(tmp_path: Path) -> None:
    (found,) = run_group("elastic_fit:newcomer", tmp_path, workers=1, slots=str(tmp_path / "slots"))
    drawn = found["drawn"]
    assert drawn["arrays"] == [[5, 5, 5], ""], "its first batches, whole; two of 17 samples are for the validation"
    assert drawn["in order"] == [[5, 5, 5, 2], ""]
    assert "shuffled anew for each epoch" in drawn["dataset"][1] and "shuffled anew" in drawn["unknown"][1]
    assert found["given"] == [3, 3, True, 2, True]
    assert found["tuned"] == [True, False]
    assert found["adopted"] == [[True, True], [False, True], [False, True]]
