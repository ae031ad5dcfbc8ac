"""What the tests of ``hopsml.tensorflow.TrainingLoop`` train: a small model on scikit-learn's digits."""

from __future__ import annotations

from typing import Any


def build() -> Any:
    import keras

    keras.utils.set_random_seed(hash_of_process())
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def hash_of_process() -> int:
    """Another one on each worker: weights that are the same at the beginning were made so."""
    import os

    return os.getpid()


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.data / 16.0).astype("float32"), found.target.astype("int32")


def batches() -> Any:
    """Every worker's own order of all samples; 32 a batch."""
    import tensorflow as tf

    x, y = digits()
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=hash_of_process()).batch(32, True)


def train(algorithms: list[str], steps: int = 120) -> dict[str, Any]:
    """Accuracy on all samples by algorithm, and whether all workers have the same model in the end."""
    import hopsml

    found: dict[str, Any] = {}
    for name in algorithms:
        settings = {} if name.endswith("_sgd") and name != "local_sgd" else {"every": 5}
        loop = hopsml.tensorflow.TrainingLoop(build, batches, name, **settings)  # type: ignore[arg-type]
        logs = loop.run(steps)
        if name == "async_sgd":
            copy = build()  # in this process, not on the servers
            copy.set_weights(loop.model.get_weights())
            found[name] = {"logs": logs, "accuracy": accuracy(copy)}
            continue
        weights = [one.tobytes() for one in loop.model.get_weights()]
        everybody = hopsml.distributed.exchange(weights)
        found[name] = {
            "logs": logs,
            "accuracy": accuracy(loop.model),
            "alike": all(one == weights for one in everybody),
        }
    return found


def accuracy(model: Any) -> float:
    """Without Keras's own evaluation, which is the strategy's."""
    import numpy as np

    x, y = digits()
    return float((np.argmax(model(x, training=False).numpy(), 1) == y).mean())


def refused(algorithm: str, **settings: Any) -> str:
    """The error's words."""
    import hopsml
    from hopsml.errors import ArgumentError

    try:
        hopsml.tensorflow.TrainingLoop(build, batches, algorithm, **settings)  # type: ignore[arg-type]
    except ArgumentError as error:
        return str(error)
    return "nothing was refused"
