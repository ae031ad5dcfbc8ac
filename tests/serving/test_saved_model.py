"""A SavedModel of digits, trained and exported by Keras in one process, served by another."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hopsml import serving
from hopsml.errors import ArgumentError

pytestmark = pytest.mark.tensorflow
EXPORT = """
import keras, numpy, sys
from sklearn.datasets import load_digits
from hopsml import model

digits = load_digits()
made = keras.Sequential([keras.Input((64,), name="pixels"), keras.layers.Dense(10, activation="softmax", name="classes")])
made.compile("adam", "sparse_categorical_crossentropy")
made.fit(digits.data / 16, digits.target, epochs=1, verbose=0)
model.export(made, "digits", metrics={"accuracy": 0.5})
numpy.savez(sys.argv[1], rows=digits.data[:64] / 16, wanted=made(digits.data[:64] / 16).numpy())
"""


def test_digits_are_predicted_as_where_they_were_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
    monkeypatch.setenv("HOPSML_SERVING_FOLDER", str(tmp_path / "machine"))
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    subprocess.run([sys.executable, "-c", EXPORT, str(tmp_path / "given.npz")], check=True, capture_output=True)
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
