"""Tests of Keras 3 under hopsml's strategy and the plain one: train, evaluate, predict."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow

Results = list[dict[str, Any]]


ALL = ["fit", "uneven", "several_steps", "custom_loop", "collectives", "arrays", "orders", "files"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two workers under hopsml's strategy."""
    return run_group("keras3:training", tmp_path_factory.mktemp("keras3"), parts=ALL)


def test_fit_gives_every_rank_the_same_weights_and_history(results: Results) -> None:
    first, second = results
    assert first["fit"] == second["fit"]
    assert set(first["fit"]["history"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}


def test_loss_curve_does_not_depend_on_the_number_of_workers(results: Results, tmp_path: Path) -> None:
    (alone,) = run_group("keras3:training", tmp_path, workers=1, parts=["fit"])
    for name, values in alone["fit"]["history"].items():
        assert results[0]["fit"]["history"][name] == pytest.approx(values, rel=1e-4), name


@pytest.mark.variant  # of test_strategy_contract.py
@pytest.mark.parametrize("part", ["fit", "several_steps"])
def test_plain_strategy_equals_the_strategy_of_hopsml(results: Results, tmp_path: Path, part: str) -> None:
    for plain, ours in zip(
        run_group("keras3:training", tmp_path, parts=[part], plain=True, fresh=True), results, strict=True
    ):
        assert plain[part] == ours[part]


def test_shuffled_arrays_are_divided_without_overlap(results: Results) -> None:
    shares = [result["arrays"]["share"] for result in results]
    assert sorted(shares[0] + shares[1]) == list(range(40))
    assert shares[0] + shares[1] != sorted(shares[0] + shares[1])
    assert [result["arrays"]["seed"] for result in results] == [None, None]


@pytest.mark.parametrize("fit", [0, 1, 2], ids=["no seed", "no seed once more", "the user's seed"])
def test_each_epoch_of_a_shuffled_array_has_a_different_order(results: Results, fit: int) -> None:
    first, second = (result["orders"]["orders"][fit] for result in results)
    assert len(first) == 3
    for mine, others in zip(first, second, strict=True):
        assert sorted(mine + others) == list(range(40))
    assert len({tuple(epoch) for epoch in first}) == 3
    other = results[0]["orders"]["orders"][1 - fit if fit < 2 else 0]
    assert first[0] != other[0]


def test_shuffled_arrays_are_not_stored_in_the_graph(tmp_path: Path) -> None:
    """A graph is limited to 2 GB."""
    (found,) = run_group("keras3:size_of_shuffled", tmp_path, workers=1)
    assert found["functions"] == 2 and found["largest"] < 100_000


def test_worker_without_a_share_of_the_last_batch_stays_equal(results: Results) -> None:
    first, second = (result["uneven"] for result in results)
    assert first["finite"]
    assert first["weights"] == second["weights"]
    for result in (first, second):
        assert result["loss"][0] == pytest.approx(result["loss"][1], rel=1e-4)
        assert result["accuracy"][0] == pytest.approx(result["accuracy"][1], abs=1e-6)


def test_predict_preserves_the_order_of_uneven_data(results: Results) -> None:
    for result in results:
        assert result["uneven"]["predict_shape"] == [33, 3]
        assert result["uneven"]["predict_error"] < 1e-5


def test_steps_per_execution_gives_equal_results_on_all_ranks(results: Results) -> None:
    first, second = (result["several_steps"] for result in results)
    assert first == second
    assert first["losses"][1] < first["losses"][0]


@pytest.mark.parametrize("name", ["direct", "nested"])
def test_custom_loop_gives_equal_weights_and_statistics_on_all_ranks(results: Results, name: str) -> None:
    first, second = (result["custom_loop"][name] for result in results)
    assert first == second  # moving statistics among the weights
    assert first["losses"][-1] < first["losses"][0]
    assert any(abs(mean) > 1e-4 for mean in first["moving_mean"])


def test_step_merges_gradients_statistics_and_logs_into_one_collective_each(results: Results) -> None:
    for result in results:
        assert result["collectives"]["_ScopedAllocator"] == 3


def test_asynchronously_written_model_files_equal_those_of_keras(results: Results) -> None:
    for result in results:
        assert result["files"] == {"differ": [], "found": result["files"]["found"], "same": True, "word": 2}
        assert result["files"]["found"] > 80


@pytest.mark.variant  # of test_strategy_contract.py
def test_mixed_precision_overflow_on_one_rank_skips_the_step_on_all(tmp_path: Path) -> None:
    first, second = run_group("keras3:mixed_precision", tmp_path)
    assert first == {**second, "sent": []}
    assert first["scales"] == [2.0**15, 2.0**14, 2.0**14]
    assert first["weights"][0] == first["weights"][1] != first["weights"][2]


@pytest.mark.variant  # of integration/experiment/test_keras_saving.py
@pytest.mark.parametrize("kind", ["tensorflow", "hopsml"])
def test_keras_callbacks_with_shared_paths_write_once_and_resume(tmp_path: Path, kind: str) -> None:
    first, second = run_group("keras3:callbacks", tmp_path, epochs=2, kind=kind)
    assert first["weights"] == second["weights"]
    shared = tmp_path / "shared"
    for name in ("best-1.keras", "best-2.keras", "model.keras"):
        assert zipfile.ZipFile(shared / name).testzip() is None
    assert len((shared / "log.csv").read_text().splitlines()) == 3
    assert len(list((shared / "board" / "train").glob("events.*"))) == 1
    # Another run with the same folder continues from the first one's end, on all ranks.
    shutil.rmtree(tmp_path / "group", ignore_errors=True)
    third, fourth = run_group("keras3:callbacks", tmp_path, epochs=3, kind=kind)
    assert third["epochs"] == fourth["epochs"] == [2]
    assert third["further"] == fourth["further"] == [0], "where the first fit went on is nothing to the next"
    assert third["weights"] == fourth["weights"] != first["weights"]
    assert not list(tmp_path.glob("work-*/hopsml-unused-*"))
