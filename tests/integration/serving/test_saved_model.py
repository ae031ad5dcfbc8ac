"""Test of a SavedModel of digits: trained and exported by Keras in one process, served by another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hopsml import serving
from hopsml.errors import ArgumentError
from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow


@pytest.mark.variant  # of docs/test_snippets, from a training to what it serves
def test_digits_are_predicted_as_where_they_were_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
    monkeypatch.setenv("HOPSML_SERVING_FOLDER", str(tmp_path / "machine"))
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    run_group("alone:export_digits", tmp_path / "training", workers=1, given=str(tmp_path / "given.npz"))
    given = np.load(tmp_path / "given.npz")
    serving.start("digits", version="best")
    try:
        assert np.allclose(serving.predict("digits", given["rows"]), given["wanted"], atol=1e-5)
        with ThreadPoolExecutor(16) as clients:  # their rows are computed together, and come back to whom they belong
            each = list(clients.map(lambda row: serving.predict("digits", [row])[0], given["rows"]))
        assert np.allclose(each, given["wanted"], atol=1e-5)
        with pytest.raises(
            ArgumentError, match=r"input '\w+': it has the shape \(1, 63\), and takes float32 \(any, 64\)"
        ):
            serving.predict("digits", given["rows"][:1, :63])
    finally:
        serving.stop("digits")
