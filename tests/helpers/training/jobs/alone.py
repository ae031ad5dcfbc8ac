"""Jobs of one process outside of a run, in a fork of a process with TensorFlow imported."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.worker.context import set_current


def captured_tensor() -> dict[str, str]:
    """Capture a function that holds a tensor, and return the error."""
    import tensorflow as tf

    from hopsml.cluster.driver.capture import capture
    from hopsml.errors import CaptureError

    set_current(None)
    weights = tf.constant([1.0, 2.0])

    def train() -> Any:
        return weights

    try:
        capture(train)
    except CaptureError as error:
        return {"refused": str(error)}
    return {}


def server_loop() -> dict[str, Any]:
    """Run the loop for parameter servers without any."""
    import hopsml
    from tests.helpers.training.server_workload import small_model, sums

    set_current(None)
    loop = hopsml.tensorflow.ServerLoop(small_model(hopsml.tensorflow.strategy()), sums, checkpoint_every_steps=5)
    return {"logs": loop.run(12)["steps"], "steps": loop.steps, "of one that has trained": _after_other_training()}


def _after_other_training() -> int:
    """Return the step count of an already trained model's optimizer after 8 more steps."""
    import hopsml
    from tests.helpers.training.server_workload import small_model, sums

    strategy = hopsml.tensorflow.strategy()
    model = small_model(strategy)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(50_000)
    hopsml.tensorflow.ServerLoop(model, sums, checkpoint_every_steps=4).run(8)
    return int(model.optimizer.iterations.numpy())


def export_digits(given: str) -> None:
    """Export a model of digits to the registry; ``given`` is a file for rows and for the model's outputs."""
    import keras
    import numpy as np
    from sklearn.datasets import load_digits

    from hopsml import model

    set_current(None)
    digits = load_digits()
    layer = keras.layers.Dense(10, activation="softmax", name="classes")
    made = keras.Sequential([keras.Input((64,), name="pixels"), layer])
    made.compile("adam", "sparse_categorical_crossentropy")
    made.fit(digits.data / 16, digits.target, epochs=1, verbose=0)
    model.export(made, "digits", metrics={"accuracy": 0.5})
    np.savez(given, rows=digits.data[:64] / 16, wanted=made(digits.data[:64] / 16).numpy())
