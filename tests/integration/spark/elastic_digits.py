"""TensorFlow training for elastic groups, as a user would write it, with traces for the tests."""

from __future__ import annotations

from typing import Any


def train(
    folder: str = "", epochs: int = 6, commit: int = 5, step_s: float = 0.0, over: str = "tensorflow"
) -> dict[str, Any]:
    """A small network on scikit-learn's digits; returns its weights' sum, the samples of each step, and the accuracy."""
    import os
    import time
    from pathlib import Path

    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    import hopsml
    from hopsml.cluster.worker.context import current

    context = current()
    if folder and context is not None:
        Path(folder, f"pid-{context.rank}-{context.generation}").write_text(str(os.getpid()))
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    # Over hopsml's collective the others may continue without the lost share: tests/integration/cluster/test_mending.py.
    strategy = hopsml.tensorflow.strategy(implementation=over)
    with strategy.scope():
        tf.random.set_seed(1)
        rng = np.random.default_rng(1)
        shapes = ((64, 32), (32,), (32, 10), (10,))
        weights = [tf.Variable(rng.normal(0, 0.1, shape).astype(np.float32)) for shape in shapes]
    state = hopsml.elastic.State(**{f"w{number}": weight for number, weight in enumerate(weights)}, seen=[])
    data = hopsml.elastic.Sampler(len(x), global_batch_size=128, seed=1, epochs=epochs)

    @tf.function(reduce_retracing=True)
    def step(images: Any, labels: Any, size: Any) -> None:
        def replica() -> None:
            with tf.GradientTape() as tape:
                hidden = tf.nn.relu(images @ weights[0] + weights[1])
                logits = hidden @ weights[2] + weights[3]
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_sum(losses) / tf.cast(size, tf.float32)
            gradients = tape.gradient(loss, weights)
            context = tf.distribute.get_replica_context()
            for weight, gradient in zip(weights, context.all_reduce("sum", gradients), strict=True):
                weight.assign_sub(0.5 * gradient)

        strategy.run(replica)

    for batch in state.resume(data):
        step(tf.constant(x[batch]), tf.constant(y[batch]), tf.constant(data.batch_size))
        state.seen = [*state.seen, (state.batches, [int(one) for one in batch])]
        if folder and context is not None:
            Path(folder, f".step-{context.rank}").write_text(str(state.batches))
            Path(folder, f".step-{context.rank}").rename(Path(folder, f"step-{context.rank}"))
        time.sleep(step_s)
        state.commit(every=commit)
    hidden = np.maximum(x @ weights[0].numpy() + weights[1].numpy(), 0)
    accuracy = float(np.mean(np.argmax(hidden @ weights[2].numpy() + weights[3].numpy(), axis=1) == y))
    return {
        "weights": [weight.numpy() for weight in weights],
        "accuracy": accuracy,
        "batches": state.batches,
        "generation": context.generation if context is not None else 0,
        "world_size": context.world_size if context is not None else 1,
    }
