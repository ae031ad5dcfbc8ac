"""Tests of lanes with TensorFlow: no state passes between trials, and forked runners can train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.experiment.lanes_kit import bench

pytestmark = [pytest.mark.tensorflow]


def train(units: int) -> dict[str, Any]:
    import os

    import keras
    import numpy as np
    import tensorflow as tf

    import hopsml

    strategy = hopsml.tensorflow.strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        model.compile(loss="mse", optimizer="sgd")
    data = np.random.rand(32, 8).astype("float32")
    model.fit(data, data[:, :1], batch_size=16, epochs=1, verbose=0)
    return {
        "loss": float(model.evaluate(data, data[:, :1], verbose=0)),
        "pid": os.getpid(),
        "name": model.layers[0].name,
        "graph": len(tf.compat.v1.get_default_graph().get_operations()),
    }


@pytest.mark.variant  # of tests/integration/experiment/test_search.py and test_maggy.py, with TensorFlow
def test_trials_in_one_process_and_in_forks_train_equally(store: Path) -> None:
    with bench(train, preload=("tensorflow", "keras")) as found:
        lane = found.joined()
        numbers = [(0, False), (1, False), (0, False), (0, True), (1, True)]
        trials = [
            found.assign_trial(lane, {"units": 4}, metric="loss", number=number, attempt=attempt, isolated=isolated)
            for attempt, (number, isolated) in enumerate(numbers)
        ]
        ends = [found.ended(trial) for trial in trials]
        assert [end.how for end in ends] == ["finished"] * 5, [end.error for end in ends]
        outputs = [end.outputs for end in ends]
        assert {one["name"] for one in outputs} == {"dense"} and {one["graph"] for one in outputs} == {0}
        pids = [one["pid"] for one in outputs]
        assert len(set(pids[:3])) == 1 and len(set(pids)) == 3
        losses = [one["loss"] for one in outputs]
        assert losses[0] == losses[2] == losses[3] and losses[1] == losses[4] != losses[0]
