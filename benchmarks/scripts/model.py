"""The training of every TensorFlow launcher: three dense layers as plain variables, a custom loop.

It does not use Keras, so that the launcher and TensorFlow are measured, not the import of a second library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from benchmarks.scripts import first

LAYERS = ((784, 256), (256, 128), (128, 10))
GLOBAL_BATCH = 128
EXAMPLES = 8192
RATE = 0.05


def rank() -> int:
    """Return this worker's rank, from TF_CONFIG."""
    config = json.loads(os.environ["TF_CONFIG"])
    task, cluster = config["task"], config["cluster"]
    return int(task["index"]) + (len(cluster.get("chief", ())) if task["type"] != "chief" else 0)


def plain_strategy() -> Any:
    """Return TensorFlow's own strategy, as in its documentation."""
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


def train(strategy: Any, folder: str, steps: int) -> None:
    """Make ``steps`` steps, or endless ones if 0, and report the first one."""
    step = build(strategy)
    step()
    first.report(folder, rank())
    done = 1
    while steps == 0 or done < steps:
        step()
        done += 1


def build(strategy: Any, batch: int = GLOBAL_BATCH) -> Callable[[], float]:
    """Return a synchronous step of ``batch`` examples over all workers, which returns the loss."""
    return prepare(strategy, batch)[0]


def prepare(strategy: Any, batch: int) -> tuple[Callable[[], float], list[Any]]:
    """Return the step and the variables that it trains."""
    import tensorflow as tf

    batches = iter(strategy.distribute_datasets_from_function(lambda context: dataset(context, strategy, batch)))
    with strategy.scope():
        variables = [
            tf.Variable(tf.random.stateless_normal((inputs, outputs), seed=(index, 3)) / inputs**0.5)
            for index, (inputs, outputs) in enumerate(LAYERS)
        ]
        biases = [tf.Variable(tf.zeros([outputs])) for _, outputs in LAYERS]

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = images
            for kernel, bias in zip(variables[:-1], biases[:-1], strict=True):
                hidden = tf.nn.relu(hidden @ kernel + bias)
            logits = hidden @ variables[-1] + biases[-1]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / batch
        every = variables + biases
        gradients = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, every))
        for variable, gradient in zip(every, gradients, strict=True):
            variable.assign_sub(RATE * gradient)
        return loss

    @tf.function(autograph=False)
    def step(examples: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=examples), axis=None)

    return lambda: float(step(next(batches))), variables + biases


def dataset(context: Any, strategy: Any, batch: int) -> Any:
    """Return this worker's share of random examples."""
    import numpy as np
    import tensorflow as tf

    random = np.random.RandomState(0)
    images = random.rand(EXAMPLES, 784).astype("float32")
    labels = random.randint(0, 10, EXAMPLES).astype("int64")
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    share = examples.shard(context.num_input_pipelines, context.input_pipeline_id).repeat()
    return share.batch(batch // strategy.num_replicas_in_sync, drop_remainder=True).prefetch(2)
