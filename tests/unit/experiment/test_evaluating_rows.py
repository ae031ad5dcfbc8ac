"""Tests that ``hopsml.data.evaluate`` gives the metrics of a single process even with uneven shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopsml
from hopsml.errors import ArgumentError, ArgumentTypeError
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit

ROWS = 103


@pytest.fixture
def path(tmp_path: Path) -> str:
    ids = np.arange(ROWS)
    features = list(np.stack([ids, ids * 2], 1).astype(np.float32))
    columns = {"features": features, "positive": list((ids % 3 > 0).astype(np.float32)[:, None])}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=17)
    return str(tmp_path / "rows.parquet")


@pytest.mark.tensorflow
def test_evaluate_with_three_workers_equals_one_process(path: str, store: Path) -> None:
    def train() -> dict[str, Any]:
        import keras
        import numpy as np
        from sklearn.metrics import roc_auc_score

        import hopsml

        strategy = hopsml.tensorflow.strategy(implementation="hopsml")
        with strategy.scope():
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [keras.Input((2,)), keras.layers.Rescaling(0.01), keras.layers.Dense(1, "sigmoid")]
            )
            of_strategy = keras.metrics.BinaryAccuracy()
        metrics = {
            "function": lambda labels, predictions: float(roc_auc_score(labels, predictions)),
            "auc": keras.metrics.AUC(),
            "loss": keras.metrics.BinaryCrossentropy(),
            "accuracy": of_strategy,
            "r2": keras.metrics.R2Score(),
            "f1": keras.metrics.F1Score(threshold=0.5),
        }
        rows = hopsml.data.parquet(path).batch(10, drop_last=True).shuffle().repeat(3)
        shared = hopsml.data.evaluate(model, rows, metrics, features="features", label="positive")
        reader = hopsml.data.parquet(path).batch(1000).reader()  # of no group: all rows
        batch = reader.next_batch()
        predictions = np.asarray(model(batch["features"], training=False))
        alone = {"function": metrics["function"](batch["positive"], predictions)}
        for name in set(metrics) - {"function"}:
            metric = type(metrics[name]).from_config(metrics[name].get_config())
            metric.update_state(batch["positive"], predictions)
            alone[name] = float(np.asarray(metric.result()).item())
        mine = np.array([shared[name] for name in sorted(shared)])
        agreed = bool((hopsml.all_gather(mine) == mine).all())
        return {"shared": shared, "alone": alone, "rows": len(batch["positive"]), "agreed": agreed}

    found = submit(train, 3).result(END_S).value
    assert found["rows"] == ROWS and found["agreed"]
    assert found["shared"] == pytest.approx(found["alone"], abs=1e-6)
    assert set(found["alone"]) == {"function", "auc", "loss", "accuracy", "r2", "f1"}


def error(labels: Any, predictions: Any) -> float:
    return float(np.abs(labels - predictions).mean())


@pytest.mark.fast
def test_evaluate_outside_of_a_group_needs_no_framework(path: str) -> None:
    rows = hopsml.data.parquet(path).batch(7)
    scores = hopsml.data.evaluate(
        lambda given: given["features"][:, :1] * 0, rows, {"error": error}, features=["features"], label="positive"
    )
    expected = np.mean(np.arange(ROWS) % 3 > 0)
    assert scores == {"error": pytest.approx(expected, abs=1e-6)}


@pytest.mark.fast
def test_evaluate_refuses_unknown_columns_invalid_metrics_and_no_rows(path: str, tmp_path: Path) -> None:
    def evaluate(rows: Any, metrics: Any, features: Any = "features", label: str = "positive") -> Any:
        return hopsml.data.evaluate(lambda given: given[:, :1], rows, metrics, features=features, label=label)

    rows = hopsml.data.parquet(path).batch(7)
    for named in ({"features": "no"}, {"features": ["features", "no"]}, {"label": "no"}):
        with pytest.raises(ArgumentError, match="the data has no column no; its columns are features, positive"):
            evaluate(rows, {"error": error}, **named)
    with pytest.raises(ArgumentError, match="the metric 'auc' is a str; it must be a function"):
        evaluate(rows, {"auc": "auc"})
    pq.write_table(pq.read_table(path).slice(0, 0), tmp_path / "none.parquet")
    with pytest.raises(ArgumentError, match="there is nothing to evaluate"):
        evaluate(hopsml.data.parquet(str(tmp_path / "none.parquet")).batch(7), {"error": error})


@pytest.mark.fast
@pytest.mark.parametrize(
    ("predict", "metrics", "error", "word"),
    [
        (
            lambda x: x[:3],
            {"rows": lambda labels, found: len(found)},
            ArgumentError,
            r"shape \(3, 2\) for 10 rows; it must",
        ),
        (lambda x: 1.0, {"rows": lambda labels, found: len(found)}, ArgumentError, r"shape \(\) for 10 rows"),
        (None, {}, ArgumentTypeError, "predict=None is not callable"),
        (lambda x: x, [len], ArgumentTypeError, r"metrics=\[<built-in function len>\] has no names; pass a dict"),
    ],
)
def test_evaluate_refuses_predictions_that_do_not_match_the_rows(
    path: str, predict: Any, metrics: Any, error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        hopsml.data.evaluate(
            predict, hopsml.data.parquet(path).batch(10), metrics, features="features", label="positive"
        )
