"""Tests that tf_keras trains under hopsml's strategy with the same callbacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("kind", ["tensorflow", "hopsml"])
@pytest.mark.variant
def test_tf_keras_fit_resumes_evaluates_and_predicts_under_a_strategy(tmp_path: Path, kind: str) -> None:
    own = tmp_path / "own"
    first, second = run_group(
        "legacy_keras:training", tmp_path, env={"TF_USE_LEGACY_KERAS": "1"}, own=str(own), kind=kind
    )
    saved = [path.name for path in (own / "saved").iterdir()]
    assert saved == ["model.weights.h5"]  # and no files of other ranks than the chief
    assert not list((own / "events").glob("workertemp*"))
    sent = first.pop("sent")
    assert second.pop("sent") == []
    collectives = [result.pop("collectives") for result in (first, second)]  # one sends, one receives
    assert kind == "hopsml" or all(counts["_ScopedAllocator"] >= 1 for counts in collectives)
    assert first == second
    trained, restored, continued = first["weights"]
    assert trained == restored != continued
    assert first["epochs"] == [2, 3, 3 * 3]  # its history is that of all epochs
    assert first["losses"][1] < first["losses"][0]
    assert first["accuracy"][0] == pytest.approx(first["accuracy"][1], abs=1e-6)
    assert first["loss_is_finite"]
    assert first["predicted"] == 32
    assert first["predict_error"] < 1e-5
    assert [message["step"] for message in sent] == [1, 2, 3, 3, 4, 5, 6, 6]


def test_callbacks_use_the_keras_library_of_the_model(tmp_path: Path) -> None:
    (found,) = run_group("legacy_keras:callbacks_without_a_keras_setting", tmp_path, workers=1)
    assert (found["keras"], found["tf_keras"]) == ([2, 1], [2, 1])  # epochs, files of events
