"""Training with parameter servers that serves steps, by hand or by hopsml's loop: a model, its data, its steps.

By hand: ``python -m benchmarks.scripts.server_steps JOB INDEX SOCKET CLUSTER``; JOB chief makes the steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.scripts import turns

BATCH = 64
UNITS = 512


def build(strategy: Any) -> Any:
    """Return a compiled Keras 3 model of 0.3 million weights."""
    import keras

    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(UNITS, activation="relu"), keras.layers.Dense(UNITS, activation="relu")]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.optimizer.build(model.trainable_variables)
    return model


def batches() -> Any:
    """Return endless batches of random digits."""
    import tensorflow as tf

    x = tf.random.stateless_uniform((1024, 64), seed=(1, 2))
    y = tf.random.stateless_uniform((1024,), seed=(3, 4), maxval=10, dtype=tf.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH)


def timed(make: Callable[[int], object]) -> turns.Steps:
    """Return steps from ``make``, which makes several at once; the time of each is their mean."""

    def steps(count: int) -> list[float]:
        began = time.perf_counter()
        make(count)
        return [(time.perf_counter() - began) / count] * count

    return steps


def by_hand(strategy: Any, folder: str) -> dict[str, Callable[[int], object]]:
    """Return functions that make steps by hand, with checkpoints and without.

    They use TensorFlow's coordinator, and a separate counter of the steps, as Keras's counter is wrong here.
    """
    import tensorflow as tf

    model = build(strategy)
    with strategy.scope():
        counter = tf.Variable(0, dtype=tf.int64, trainable=False)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    data = iter(coordinator.create_per_worker_dataset(batches))

    @tf.function(autograph=False)
    def step(iterator: Any) -> None:
        strategy.run(model.train_step, args=(next(iterator),))
        counter.assign_add(1)

    saved = tf.train.CheckpointManager(tf.train.Checkpoint(model=model, steps=counter), folder, max_to_keep=3)

    def make(count: int) -> None:
        for _ in range(count):
            coordinator.schedule(step, args=(data,))
        coordinator.join()

    def make_and_save(count: int) -> None:
        make(count)
        saved.save(checkpoint_number=int(counter.numpy()))

    return {"by-hand-saved": make_and_save, "by-hand": make}


def main() -> None:
    """Serve until the server sends 0, or until killed."""
    job, index, path, described = sys.argv[1:]
    cluster = json.loads(described)
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": job, "index": int(index)}})
    import tensorflow as tf

    if job != "chief":
        tf.distribute.Server(tf.train.ClusterSpec(cluster), job, int(index), protocol="grpc").join()
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    ways = by_hand(strategy, os.path.join(os.path.dirname(path), "by-hand"))
    turns.serve_all(path, 0, {way: timed(make) for way, make in ways.items()})


if __name__ == "__main__":
    main()
