"""Jobs on the reduction of gradients: merged operations, values, odd lists, retraces, loops."""

from __future__ import annotations

from typing import Any

import hopsml
from tests.helpers.training.jobs.common import collectives_of, digest

GRADIENTS = 160


def everything(merge_scope: int | str) -> dict[str, Any]:
    """Run all checks that can share one group of processes."""
    strategy = hopsml.tensorflow.strategy(merge_scope=merge_scope, ring_order=[0])
    from tensorflow.python.eager import context

    return {
        "ring_order": context.context().config.gpu_options.experimental.collective_ring_order,
        "settings": [strategy.merge_settings.merge_scope, strategy.merge_settings.path],
        "counts": {name: _counts(strategy, *setting) for name, setting in SETTINGS.items()},
        "own_counts": _own_counts(strategy),
        "losses": {name: _train(strategy, *setting) for name, setting in SETTINGS.items()},
        "odd": _odd_lists(strategy),
        "retrace": _retrace_on_one_rank(strategy),
        "nested": _nested_and_loops(strategy, bare=False),
        "nested_bare": _nested_and_loops(strategy, bare=True),
        "eager": _eager(strategy),
        "local": _local_gradients_survive(strategy),
    }


SETTINGS: dict[str, tuple[int | None, bool]] = {
    "1": (1, True),
    "32": (32, True),
    "all": (None, True),
    "packs-32": (32, False),
}


def _install(strategy: Any, scope: int | None, scoped_allocator: bool) -> None:
    from hopsml.training.tensorflow.distribution.merging import GradientReducer

    GradientReducer(strategy, scope, scoped_allocator).install()


def _rank(strategy: Any) -> int:
    return int(strategy.cluster_resolver.task_id)


def _summed(tensors: Any) -> Any:
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce("SUM", [tf.identity(tensor) for tensor in tensors])


def _make_sum(strategy: Any) -> Any:
    import tensorflow as tf

    @tf.function
    def total(tensors: Any) -> Any:
        return strategy.run(lambda inside: _summed([2.0 * tensor for tensor in inside]), args=(tensors,))

    return total


def _counts(strategy: Any, scope: int | None, scoped_allocator: bool) -> dict[str, int]:
    import tensorflow as tf

    _install(strategy, scope, scoped_allocator)
    gradients = [tf.ones((number + 1,)) for number in range(GRADIENTS)]
    return collectives_of(lambda: _make_sum(strategy)(gradients))


def _own_counts(strategy: Any) -> dict[str, int]:
    """Count operations with the settings that the strategy was built with."""
    import tensorflow as tf

    from hopsml.training.tensorflow.distribution.merging import set_merging

    settings = strategy.merge_settings
    set_merging(strategy, settings.merge_scope, settings.path == "scoped_allocator")
    return collectives_of(lambda: _make_sum(strategy)([tf.ones((3,))] * 70))


def _train(strategy: Any, scope: int | None, scoped_allocator: bool) -> dict[str, Any]:
    """Train a custom loop on raw variables; return the losses and the digest of the weights."""
    import numpy as np
    import tensorflow as tf

    _install(strategy, scope, scoped_allocator)
    random = np.random.default_rng(7)
    with strategy.scope():
        weights = [
            tf.Variable(random.normal(0, 0.3, (6, 6)).astype("float32"), aggregation=tf.VariableAggregation.MEAN)
            for _ in range(8)
        ]
    data = np.random.default_rng(_rank(strategy)).normal(size=(20, 6)).astype("float32")

    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = batch
            for weight in weights:
                hidden = tf.tanh(hidden @ weight.read_value())
            loss = tf.reduce_mean((hidden - 0.1) ** 2)
        gradients = tape.gradient(loss, weights)
        replica = tf.distribute.get_replica_context()
        gradients = replica.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)

        def apply(_: Any, gradients: Any) -> None:
            for weight, gradient in zip(weights, gradients, strict=True):
                strategy.extended.update(weight, lambda w, g: w.assign_sub(0.1 * g), args=(gradient,))

        replica.merge_call(apply, args=(gradients,))
        return loss

    run = tf.function(lambda batch: strategy.run(step, args=(batch,)))
    losses = [float(strategy.reduce("MEAN", run(tf.constant(data)), axis=None)) for _ in range(5)]
    return {"losses": losses, "digest": digest(weight.numpy() for weight in weights)}


def _odd_lists(strategy: Any) -> dict[str, Any]:
    """Reduce mixed types, sparse among dense, constants, repeated tensors, an unknown shape, a single tensor."""
    import tensorflow as tf

    _install(strategy, 32, True)
    rank = _rank(strategy)

    @tf.function(input_signature=[tf.TensorSpec((None,)), tf.TensorSpec((4,))])
    def run(unknown: Any, known: Any) -> Any:
        def step(unknown: Any, known: Any) -> Any:
            replica = tf.distribute.get_replica_context()
            known = tf.identity(known)  # TensorFlow refuses to reduce a bare argument
            types = [tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.float16, tf.float32]
            mixed = replica.all_reduce("SUM", [tf.cast(known, dtype) for dtype in types])
            sparse = tf.IndexedSlices(tf.ones((2 + rank, 3)), tf.range(2 + rank), dense_shape=tf.constant([5, 3]))
            among = replica.all_reduce("SUM", [known * 1.0, sparse, known * 2.0, sparse, known * 3.0])
            constants = replica.all_reduce("MEAN", [tf.zeros((3,)), tf.constant([2.0]), known, known, known])
            open_ended = replica.all_reduce("SUM", [tf.identity(unknown), known * 1.0])
            single = replica.all_reduce("SUM", known * 1.0)
            dense = [tf.convert_to_tensor(value) for value in among]
            return [tf.cast(value, tf.float32) for value in [*mixed, *dense, *constants, *open_ended, single]]

        return strategy.run(step, args=(unknown, known))

    values = run(tf.ones((3,)), tf.fill((4,), 1.0 + rank))
    return {"sums": [float(tf.reduce_sum(value)) for value in values]}


def _retrace_on_one_rank(strategy: Any) -> list[float]:
    """Trace rank 1 two times more than rank 0: the keys must not depend on it."""
    import tensorflow as tf

    _install(strategy, 2, True)
    weights = tf.ones((3, 5))

    @tf.function
    def run(batch: Any) -> Any:
        def step(batch: Any) -> Any:
            product = batch @ weights
            return _summed([tf.reduce_sum(product, 0), tf.reduce_mean(product), tf.reduce_sum(batch, 0)])

        return strategy.run(step, args=(batch,))

    results = []
    for size in (4, 4, 4, 4):
        rows = size if _rank(strategy) == 0 else size + len(results)
        results.append(float(run(tf.ones((rows, 3)))[1]))
    return results


def _make_bare_sum(strategy: Any) -> Any:
    """Return a function that reduces its arguments without a computation before."""
    import tensorflow as tf

    return tf.function(lambda tensors: strategy.run(_summed, args=(tensors,)))


def _nested_and_loops(strategy: Any, bare: bool) -> dict[str, float]:
    """Use static keys more than once in one step: a function called twice, in a loop, in a branch."""
    import tensorflow as tf

    _install(strategy, 32, True)
    inner = _make_bare_sum(strategy) if bare else _make_sum(strategy)
    gradients = [tf.ones((100,)), tf.ones((50,)), tf.ones((10,))]
    inner(gradients)  # traced outside, so that the callers below reuse this very trace

    @tf.function
    def twice(tensors: Any) -> Any:
        first, second = inner(tensors), inner([10.0 * tensor for tensor in tensors])
        return tf.add_n([tf.reduce_sum(tensor) for tensor in [*first, *second]])

    @tf.function
    def loop(tensors: Any) -> Any:
        total = 0.0
        for number in tf.range(6):
            if number % 3 == 0:
                total += tf.add_n([tf.reduce_sum(tensor) for tensor in inner(tensors)])
            total += tf.add_n([tf.reduce_sum(tensor) for tensor in inner(tensors)])
        return total

    return {
        "twice": min(float(twice(gradients)) for _ in range(20)),
        "loop": min(float(loop(gradients)) for _ in range(20)),
    }


def _eager(strategy: Any) -> list[float]:
    import tensorflow as tf

    _install(strategy, 32, True)
    tensors = [tf.ones((3,)), tf.ones((2, 2)), tf.ones((), tf.float16)]
    return [float(tf.reduce_sum(value)) for value in strategy.run(_summed, args=(tensors,))]


def _local_gradients_survive(strategy: Any) -> list[float]:
    """Check that a step's computation on its own gradients after the reduction uses the unreduced ones."""
    import tensorflow as tf

    _install(strategy, 32, True)

    @tf.function
    def run(ones: Any) -> Any:
        def step(ones: Any) -> Any:
            local = [2.0 * ones, 3.0 * ones]
            reduced = tf.distribute.get_replica_context().all_reduce("SUM", local)
            with tf.control_dependencies(reduced):
                return [tf.reduce_sum(tensor + 0.0) for tensor in [*local, *reduced]]

        return strategy.run(step, args=(ones,))

    return [float(value) for value in run(tf.ones((10,)))]
