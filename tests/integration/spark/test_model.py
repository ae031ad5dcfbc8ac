"""Tests from a training on Spark executors, through the registry, to predictions for a DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml import experiment, model
from hopsml.errors import ArgumentError

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

KERNEL = [[0.0, 1.0, -1.0], [2.0, 0.5, 0.0], [1.0, 1.0, 1.0], [-1.0, 0.0, 2.0]]


def train(kernel: list[list[float]]) -> Any:
    """Both ranks build the model under their strategy and export it; the version that the chief got."""
    import json
    import os

    import keras
    import numpy as np

    import hopsml

    with hopsml.tensorflow.strategy().scope():
        image, weight = keras.Input((2, 2), name="image"), keras.Input((1,), name="weight")
        dense = keras.layers.Dense(3, use_bias=False, name="scores")
        score = dense(keras.layers.Flatten()(image))
        made = keras.Model([image, weight], {"scores": score, "total": keras.ops.sum(score, axis=1) * weight[:, 0]})
    dense.set_weights([np.array(kernel)])
    hopsml.tracking.data(__file__)
    version = hopsml.model.export(made, "digits", metrics={"accuracy": 0.75})
    is_chief = json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief"
    assert (version is not None) == is_chief
    return version.version if version is not None else 0


@pytest.mark.variant
def test_exported_model_predicts_the_rows_of_a_dataframe(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setenv("HOPSML_MODEL_CACHE", str(tmp_path / "models"))
    run = experiment.collective_all_reduce(train, args={"kernel": KERNEL}, num_workers=2, progress=False)
    assert run.value == 1
    version = model.find("digits", "best")
    assert version.description.flavor == "keras" and set(version.description.artifacts) == {"saved_model", "keras"}
    assert version.description.lineage.run_url == run.run_dir
    assert [Path(one["url"]).name for one in version.description.lineage.data] == ["test_model.py"]

    session = SparkSession.builder.getOrCreate()
    rows = np.random.default_rng(1).normal(size=(3000, 4)).astype("float32")
    table = session.createDataFrame(
        [(number, [[float(v) for v in row[:2]], [float(v) for v in row[2:]]], 2.0) for number, row in enumerate(rows)],
        "`row.id` long, image array<array<float>>, weight double",
    ).repartition(2)  # each imports TensorFlow
    with pytest.raises(ArgumentError, match=r"there is no column 'image' .*there are: row.id, weight"):
        model.predict(table.drop("image"), "digits")
    found = model.predict(table, "digits", prefix="p_")
    assert found.schema["p_scores"].dataType.simpleString() == "array<float>"
    assert found.schema["p_total"].dataType.simpleString() == "float"
    collected = sorted(found.select("`row.id`", "p_scores", "p_total").collect())
    assert [row["row.id"] for row in collected] == list(range(3000))
    wanted = rows @ np.array(KERNEL, "float32")
    np.testing.assert_allclose([row.p_scores for row in collected], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([row.p_total for row in collected], 2 * wanted.sum(axis=1), rtol=1e-4, atol=1e-4)
    assert len(list((tmp_path / "models").iterdir())) == 1  # fetched once for all of this machine


@pytest.mark.variant
def test_dataframe_nulls_are_missing_values_for_an_estimator(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd
    from pyspark.sql import SparkSession
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    monkeypatch.setenv("HOPSML_MODEL_CACHE", str(tmp_path / "models"))
    rows = [(20, 1.0, "oslo"), (None, 2.0, "rome"), (40, None, None), (60, 3.0, "rome")]
    table = pd.DataFrame(rows, columns=["age", "score", "city"])
    texts = make_pipeline(SimpleImputer(strategy="most_frequent", missing_values=None), OneHotEncoder())
    parts = ColumnTransformer([("numbers", SimpleImputer(), ["age", "score"]), ("texts", texts, ["city"])])
    trained = make_pipeline(parts, LogisticRegression()).fit(table, [0, 1, 0, 1])
    model.export(trained, "people", example=table)
    session = SparkSession.builder.getOrCreate()
    frame = session.createDataFrame(rows, "age int, score double, city string").coalesce(1)
    found = [row.predict_proba for row in model.predict(frame, "people").collect()]
    np.testing.assert_allclose(found, trained.predict_proba(table))
