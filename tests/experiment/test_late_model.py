"""A model that was built outside the strategy's scope: TensorFlow's bare AssertionError gets a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed

pytestmark = pytest.mark.tensorflow


def test_the_remedy_names_the_scope(store: Path) -> None:
    def train() -> None:
        import keras
        import numpy as np

        import hopsml

        strategy = hopsml.tensorflow.strategy()
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        with strategy.scope():
            model.compile("sgd", "mse")
        model.fit(np.zeros((8, 3)), np.zeros((8, 1)), verbose=0)

    with pytest.raises(WorkerFailed, match=r"with strategy\.scope\(\):") as failed:
        experiment.collective_all_reduce(train, num_workers=1, progress=False)
    assert failed.value.cause == "AssertionError"
