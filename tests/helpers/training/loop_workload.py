"""Training for the tests of ``hopsml.tensorflow.TrainingLoop``: a small model on scikit-learn's digits."""

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
    """Return a value that differs between workers, to detect independently initialised weights."""
    import os

    return os.getpid()


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.data / 16.0).astype("float32"), found.target.astype("int32")


def batches() -> Any:
    """Yield each worker's own order of all samples; 32 per batch."""
    import tensorflow as tf

    x, y = digits()
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=hash_of_process()).batch(32, True)


def in_pieces(
    algorithm: str, settings: dict[str, Any], calls: list[list[int]], changed: bool = False
) -> dict[str, Any]:
    """Train a weight by a constant gradient that differs between workers, in several calls of ``run``.

    Returns the weight at the end of each of ``calls``. ``changed``: it is set to 0 before the last call of ``run``.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import hopsml

    slope = 1.0 + hopsml.distributed.rank()

    def build() -> Any:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), loss=lambda y, p: -p * slope)
        return model

    def batches() -> Any:
        return tf.data.Dataset.from_tensor_slices((np.ones((4, 1), "float32"),) * 2).batch(1)

    found = []
    for steps in calls:
        loop = hopsml.tensorflow.TrainingLoop(build, batches, algorithm, **settings)  # type: ignore[arg-type]
        for number, count in enumerate(steps):
            if changed and number == len(steps) - 1:
                loop.model.set_weights([np.zeros((1, 1), "float32")])
            loop.run(count)
        found.append(float(loop.model.get_weights()[0][0, 0]))
    return {"weights": found}


def train(algorithms: list[str], steps: int = 120) -> dict[str, Any]:
    """Return the accuracy on all samples by algorithm, and whether all workers end with the same model."""
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
        all_workers = hopsml.distributed.exchange(weights)
        found[name] = {
            "logs": logs,
            "accuracy": accuracy(loop.model),
            "alike": all(one == weights for one in all_workers),
        }
    return found


def accuracy(model: Any) -> float:
    """Return the accuracy without Keras's evaluation, which the strategy distributes."""
    import numpy as np

    x, y = digits()
    return float((np.argmax(model(x, training=False).numpy(), 1) == y).mean())


def refused(algorithm: str, **settings: Any) -> str:
    """Return the text of the error."""
    import hopsml
    from hopsml.errors import ArgumentError

    try:
        hopsml.tensorflow.TrainingLoop(build, batches, algorithm, **settings)  # type: ignore[arg-type]
    except ArgumentError as error:
        return str(error)
    return "nothing was refused"
