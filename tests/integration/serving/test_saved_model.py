"""Test of a SavedModel of digits: trained and exported by Keras in one process, served by another."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hopsml import model, serving
from hopsml.errors import ArgumentError
from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow


SIGNATURES = """
import sys
import tensorflow as tf

class Scaled(tf.Module):
    def __init__(self):
        self.factor = tf.Variable(2.0)
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def double(self, x):
        return {"doubled": x * self.factor}
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.float32, name="rows"), tf.TensorSpec([None], tf.float32, name="by")
        ]
    )
    def summed(self, rows, by):
        return {"sum": tf.reduce_sum(rows, 1) * by, "by": by}

model = Scaled()
tf.saved_model.save(model, sys.argv[1], signatures={"serving_default": model.double, "summed": model.summed})
"""


@pytest.mark.variant
def test_named_signatures_of_a_saved_model_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
    monkeypatch.setenv("HOPSML_SERVING_FOLDER", str(tmp_path / "machine"))
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    subprocess.run([sys.executable, "-c", SIGNATURES, str(tmp_path / "saved")], check=True, capture_output=True)
    model.export(str(tmp_path / "saved"), "scaled")
    serving.create_or_update("scaled", "Models/scaled", "TENSORFLOW_SERVING", 1)
    serving.start("scaled")
    try:
        for named in ({}, {"signature_name": "serving_default"}):
            found = serving.make_inference_request("scaled", {**named, "instances": [1.0, 3.0]})
            assert found == {"predictions": [2.0, 6.0]}
        data = {
            "signature_name": "summed",
            "instances": [{"rows": [1.0, 2.0], "by": 10.0}, {"rows": [0.0, 1.0], "by": 1.0}],
        }
        found = serving.make_inference_request("scaled", data)
        assert found == {"predictions": [{"by": 10.0, "sum": 30.0}, {"by": 1.0, "sum": 1.0}]}
        with pytest.raises(ArgumentError, match=r"no signature_name='other'; use one of serving_default, summed"):
            serving.make_inference_request("scaled", {"signature_name": "other", "instances": [1.0]})
        with pytest.raises(ArgumentError, match="rows"):  # an input of that signature
            serving.make_inference_request("scaled", {"signature_name": "summed", "instances": [{"x": 1.0}]})
    finally:
        serving.stop("scaled")


@pytest.mark.variant  # of docs/test_snippets, from a training to what it serves
def test_served_predictions_equal_those_of_the_training_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
    monkeypatch.setenv("HOPSML_SERVING_FOLDER", str(tmp_path / "machine"))
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    run_group("alone:export_digits", tmp_path / "training", workers=1, given=str(tmp_path / "given.npz"))
    given = np.load(tmp_path / "given.npz")
    serving.start("digits", version="best")
    try:
        assert np.allclose(serving.predict("digits", given["rows"]), given["wanted"], atol=1e-5)
        with ThreadPoolExecutor(16) as clients:  # their rows are computed in batches, and returned to their senders
            each = list(clients.map(lambda row: serving.predict("digits", [row])[0], given["rows"]))
        assert np.allclose(each, given["wanted"], atol=1e-5)
        with pytest.raises(
            ArgumentError, match=r"input '\w+': it has the shape \(1, 63\), but the model takes float32 \(any, 64\)"
        ):
            serving.predict("digits", given["rows"][:1, :63])
    finally:
        serving.stop("digits")
