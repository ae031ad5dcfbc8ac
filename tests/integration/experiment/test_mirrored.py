"""Tests of ``experiment.mirrored``: one worker with the model mirrored on its devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from tests.helpers.training.group import run_group

pytestmark = [pytest.mark.tensorflow]


def batches(x: Any) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(32)


def train() -> dict[str, Any]:
    import os

    import keras
    import numpy as np

    import hopsml

    strategy = hopsml.tensorflow.strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 4)).astype("float32") * np.arange(1, 5)
    history = model.fit(x, x[:, :1], batch_size=32, epochs=2, verbose=0)
    statistics = [value.numpy() for value in model.layers[0].moving_variance.value.values]
    logs = hopsml.tensorflow.ServerLoop(model, lambda: batches(x), checkpoint_every_steps=5).run(10)
    return {
        "steps": logs["steps"],
        "strategy": type(strategy).__name__,
        "replicas": strategy.num_replicas_in_sync,
        "loss": history.history["loss"][-1],
        "apart": float(np.abs(statistics[0] - statistics[1]).max()),
        "tf_config": "TF_CONFIG" in os.environ,
    }


def test_mirrored_model_on_logical_devices_has_one_set_of_statistics(store: Path) -> None:
    result = experiment.mirrored(train, logical_devices=2, progress=False)
    found = dict(result.value)
    assert found.pop("loss") > 0 and found.pop("apart") == 0.0
    assert found == {"strategy": "MirroredStrategy", "replicas": 2, "tf_config": False, "steps": 10.0}


def test_multi_worker_strategy_in_a_mirrored_run_is_warned_about(
    store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train() -> int:
        import tensorflow as tf

        return int(tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync)

    assert experiment.mirrored(train).value == 1
    shown = capfd.readouterr()
    assert "MultiWorkerMirroredStrategy has one worker" in shown.out + shown.err
    assert "use experiment.collective_all_reduce(train)" in shown.out + shown.err


@pytest.mark.variant  # of test_parameter_server
def test_server_loop_outside_of_a_run_makes_its_steps(tmp_path: Path) -> None:
    (found,) = run_group("alone:server_loop", tmp_path, workers=1)
    assert (found["logs"], found["steps"]) == (12.0, 12)
    assert found["of one that has trained"] == 50_008
