"""Tests of models that are built late or outside of the strategy's scope, and of optimizers built by the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed

pytestmark = pytest.mark.tensorflow


def test_model_outside_of_the_scope_error_names_the_remedy(store: Path) -> None:
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


@pytest.mark.variant
def test_elastic_fit_continues_without_its_chief_with_a_late_optimizer(store: Path, tmp_path: Path) -> None:
    def train(mark: str) -> dict[str, int]:
        import os
        import pathlib
        import signal

        import keras
        import numpy as np
        import tensorflow as tf

        import hopsml

        strategy = hopsml.tensorflow.strategy()

        class Own(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.inner = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(3)])

            def train_step(self, data: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(self.inner(data) ** 2)
                variables = self.inner.trainable_variables
                self.second.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
                return {"loss": loss}

        class Kill(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                steps = int(self.model.second.iterations.numpy())
                if hopsml.distributed.rank() == 0 and steps == 14 and not os.path.exists(mark):
                    pathlib.Path(mark).touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        with strategy.scope():
            model = Own()
            model.compile()
            model.second = keras.optimizers.Adam(0.01)
        model.fit(
            np.ones((64, 3), "float32"), batch_size=16, epochs=8, verbose=0,
            callbacks=[*hopsml.tensorflow.callbacks(checkpoint_every_steps=1), Kill()],
        )  # fmt: skip
        return {"steps": int(model.second.iterations.numpy())}

    arguments = {"mark": str(tmp_path / "mark")}
    result = experiment.collective_all_reduce(train, args=arguments, min_workers=1, max_workers=2, progress=False)
    assert result.value == {"steps": 32}
