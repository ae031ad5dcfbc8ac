"""Keras ``fit``, served in turns: a small dense network and a small convolutional one on scikit-learn's digits.

    SOCKET WAY   a worker that was started by hand, TF_CONFIG in the environment (model.py)
    bare         TensorFlow's strategy, nothing of hopsml; tf_keras, as Keras 3 does not train under it
    bare-keras3  the same with Keras 3 and hopsml's repairs of it, without which it fails at the first batch
    alone        one worker's share of a batch on one core, without a strategy: a lower bound for every group that reduces

One process trains both models, so that a group uses the same cores for both.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks.scripts import model, turns

GLOBAL_BATCH = 64
MODELS = ("mlp", "cnn")


def serve(path: str, way: str, rank: int, strategy: Any, batch: int = GLOBAL_BATCH) -> None:
    """Serve the training of both models, as the methods WAY-mlp and WAY-cnn."""
    ways = {f"{way}-{name}": steps(strategy, name, batch) for name in MODELS}
    turns.serve_all(path, rank, ways)


def steps(strategy: Any, name: str, batch: int) -> turns.Steps:
    """Return a function that calls ``fit`` for some steps and returns the times between their ends."""
    import tensorflow as tf

    keras = tf.keras
    with strategy.scope():
        network = keras.Sequential(dense(keras) if name == "mlp" else convolutional(keras))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
    data = digits(batch)

    class Clock(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, logs: Any = None) -> None:
            self.ends: list[float] = []

        def on_train_batch_end(self, number: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

    def train(count: int) -> list[float]:
        clock = Clock()
        network.fit(data, epochs=1, steps_per_epoch=count + 1, verbose=0, callbacks=[clock])
        return [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]

    return train


def dense(keras: Any) -> list[Any]:
    """Return the layers of a dense network of 301 066 weights."""
    layers = keras.layers
    return [layers.Input((64,)), layers.Dense(512, "relu"), layers.Dense(512, "relu"), layers.Dense(10)]


def convolutional(keras: Any) -> list[Any]:
    """Return the layers of a convolutional network: 29 066 weights, with ten times the arithmetic for each."""
    layers = keras.layers
    return [
        layers.Input((64,)),
        layers.Reshape((8, 8, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(10),
    ]


def digits(batch: int) -> Any:
    """Return endless batches of all workers' examples, which the strategy divides.

    The batches are cached: each worker iterates over the examples of all, so the data's cost does not count as the
    group's.
    """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
    return data.batch(batch, drop_remainder=True).cache().repeat()


def by_hand(path: str, way: str) -> None:
    """Serve as a worker that does not belong to a run."""
    import tensorflow as tf

    if way == "bare-keras3":
        import keras.src.backend.tensorflow.trainer as trainer

        from hopsml.training.tensorflow.keras import repairs

        repairs.install_repairs(trainer)
    if way == "alone":
        serve(path, way, 0, tf.distribute.get_strategy(), GLOBAL_BATCH // 2)
    else:
        serve(path, way, model.rank(), model.plain_strategy())


if __name__ == "__main__":
    if sys.argv[2] == "alone":  # before TensorFlow counts the cores
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    by_hand(*sys.argv[1:])
