"""Tests of the values that a run with Keras's ``fit`` reports: one series for each meaning, epochs as Keras has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hopsml import experiment
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import local_path

pytestmark = pytest.mark.tensorflow


def train(implementation: str) -> dict[str, Any]:
    """Three epochs of four batches, validated, as a user writes them; every batch is reported."""
    import keras
    import numpy as np

    import hopsml

    strategy = hopsml.tensorflow.strategy(implementation=implementation)
    data = np.random.default_rng(0)
    x, y = data.normal(size=(64, 4)).astype(np.float32), data.integers(0, 2, 64)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    callbacks = hopsml.tensorflow.callbacks()
    callbacks[0] = hopsml.tensorflow.ReportCallback(interval_s=0)
    history = model.fit(
        x, y, batch_size=16, epochs=3, validation_data=(x[:32], y[:32]), verbose=0, callbacks=callbacks
    ).history
    return {"history": history, "accuracy": history["accuracy"][-1]}


@pytest.mark.variant
@pytest.mark.parametrize(
    ("implementation", "group"),
    [
        ("hopsml", {"num_workers": 2}),
        pytest.param("tensorflow", {"num_workers": 2}, marks=pytest.mark.variant),
        pytest.param("hopsml", {"min_workers": 2, "max_workers": 2}, marks=pytest.mark.variant),  # elastic
    ],
)
def test_epoch_metrics_equal_keras_history_and_batch_metrics_have_other_names(
    store: Any, implementation: str, group: dict[str, int]
) -> None:
    run = experiment.submit(train, args={"implementation": implementation}, progress=False, **group)
    result = run.result(END_S)
    lines = (local_path(run.run_dir) / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    history = result.value["history"]
    assert history.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name, values in history.items():
        assert [report[name] for report in reports if name in report] == pytest.approx(values, rel=1e-6), name
    within = [report for report in reports if "batch_loss" in report]
    assert len(within) == 12 and all(
        report.keys() == {"time", "step", "batch_loss", "batch_accuracy"} for report in within
    )
    assert result.metrics["accuracy"] == history["accuracy"][-1]
