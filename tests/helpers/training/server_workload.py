"""Training functions with parameter servers, sent to workers by value, that leave traces for tests."""

from __future__ import annotations

from typing import Any


def small_model(strategy: Any) -> Any:
    """Return a model that is compiled and built in the strategy's scope."""
    import keras

    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def sums() -> Any:
    """Return batches of 16 whose target is the sum of the inputs."""
    import tensorflow as tf

    x = tf.random.stateless_uniform((256, 8), seed=(1, 2))
    return tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True))).shuffle(256).batch(16)


def train_exactly(steps: int, checkpoint_every: int) -> dict[str, Any]:
    """Train in the form of TensorFlow's tutorial, by hopsml's loop; the chief does not enter the branch for servers."""
    import json
    import os

    import tensorflow as tf

    import hopsml

    config = json.loads(os.environ["TF_CONFIG"])
    if config["task"]["type"] in ("worker", "ps"):
        tf.distribute.Server(tf.train.ClusterSpec(config["cluster"])).join()
    strategy = hopsml.tensorflow.strategy()
    model = small_model(strategy)
    refused = ""
    try:
        model.fit(sums(), epochs=1)
    except ValueError as error:
        refused = str(error)
    loop = hopsml.tensorflow.ServerLoop(model, sums, checkpoint_every_steps=checkpoint_every)
    began_at = loop.steps
    logs = loop.run(began_at + steps)
    return {
        **logs,
        "began_at": began_at,
        "counted": loop.steps,
        "second": hopsml.tensorflow.ServerLoop(model, sums).steps,
        "roles": sorted(config["cluster"]),
        "refused": refused,
        "strategy": type(strategy).__name__,
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def train_until(told: str, checkpoint_every: int = 20) -> dict[str, Any]:
    """Make steps until a file of this name exists, then as many as it states."""
    import os
    from pathlib import Path

    import hopsml

    model = small_model(hopsml.tensorflow.strategy())
    loop = hopsml.tensorflow.ServerLoop(model, sums, checkpoint_every_steps=checkpoint_every)
    while not os.path.exists(told):
        loop.run(loop.steps + checkpoint_every)
    more = int(Path(told).read_text())
    before = loop.steps
    logs = loop.run(before + more)
    return {**logs, "more": loop.steps - before, "recoveries": loop.recoveries}


def record_cluster_and_evaluate(told: str) -> dict[str, Any]:
    """Let the evaluator record its cluster; the chief continues only then."""
    import json
    import os
    from pathlib import Path

    from tests.helpers.cluster.workloads import wait_for_files

    config = json.loads(os.environ["TF_CONFIG"])
    if config["task"]["type"] == "evaluator":
        Path(told).with_suffix(".part").write_text(json.dumps(config))
        Path(told).with_suffix(".part").rename(told)
        return {}
    wait_for_files(os.path.dirname(told), os.path.basename(told))
    return {"roles": sorted(config["cluster"]), "total": _by_hand()}


def _by_hand() -> float:
    """Train in a custom loop over raw variables, by TensorFlow's own strategy."""
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    with strategy.scope():
        total = tf.Variable(0.0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step() -> None:
        total.assign_add(1.0)

    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    return float(total.numpy())


def save_parts(value: float) -> dict[str, Any]:
    """Save a partitioned variable with a Keras model; those of an earlier run are restored."""
    import keras
    import tensorflow as tf

    import hopsml

    strategy = hopsml.tensorflow.strategy()
    with strategy.scope():
        table = tf.Variable(tf.zeros((4096, 64)), name="table")
        model = keras.Sequential([keras.Input((4096,)), keras.layers.Dense(64)])
    checkpointer = hopsml.tensorflow.Checkpointer(table=table, model=model)
    step = checkpointer.restore_latest()
    restored = float(tf.reduce_mean(tf.convert_to_tensor(table)))
    table.assign(tf.fill((4096, 64), value))
    checkpointer.save(step + 1)
    parts = [len(getattr(one, "variables", [one])) for one in (table, model.layers[0].kernel.value)]
    return {"step": step, "restored": restored, "parts": parts[0], "kernel_parts": parts[1]}


def counted_exactly() -> dict[str, Any]:
    """Count concurrent steps of two workers: a checkpoint with the counter, additions, and a step that fails late."""
    import tensorflow as tf

    import hopsml

    strategy = hopsml.tensorflow.strategy()
    failed = _failing_late(strategy)
    model = small_model(strategy)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
        older = tf.Variable(7, dtype=tf.int64)
    hopsml.tensorflow.Checkpointer(model=model, steps=older).save(7)
    loop = hopsml.tensorflow.ServerLoop(model, sums)
    began_at, logs = loop.steps, loop.run(40)

    @tf.function  # type: ignore[untyped-decorator]
    def add() -> None:
        model.optimizer.iterations.assign_add(1)

    before = int(model.optimizer.iterations.numpy())
    for _ in range(300):
        loop._coordinator.schedule(add)
    loop._coordinator.join()
    return {
        "began_at": began_at,
        "steps": logs["steps"],
        "staleness": logs["staleness"],
        "added": int(model.optimizer.iterations.numpy()) - before,
        "more_sent": _sent(loop, loop._one_step) - _sent(loop, lambda batches: _trained(strategy, model, batches)),
        "read_at_once": _read_at_once(model),
        **failed,
    }


def _read_at_once(model: Any) -> list[bool]:
    """Return whether a joint read of all variables equals single reads; also after changes and with a new variable."""
    import numpy as np
    import tensorflow as tf

    from hopsml.training.tensorflow import checkpoints

    together, holder = checkpoints.ServerVariableReader(), tf.train.Checkpoint(model=model)
    found = []

    def same() -> bool:
        one_by_one, at_once = checkpoints.read_tensors(holder), checkpoints.read_tensors(holder, together)
        assert one_by_one is not None and at_once is not None
        return list(one_by_one) == list(at_once) and all(
            np.array_equal(at_once[name], one_by_one[name]) for name in at_once
        )

    found.append(same())
    model.layers[0].kernel.assign(model.layers[0].kernel + 1.0)
    found.append(same())
    with model.distribute_strategy.scope():
        holder.more = tf.Variable([5.0, 6.0])
    return [*found, same()]


def _trained(strategy: Any, model: Any, batches: Any) -> None:
    strategy.run(model.train_step, args=(next(batches),))


def _sent(loop: Any, step: Any) -> int:
    """Return the number of tensors sent between tasks in a step."""
    import tensorflow as tf
    from tensorflow.python.distribute.coordinator.coordinator_context import with_dispatch_context
    from tensorflow.python.eager.context import context

    context().enable_run_metadata()
    with with_dispatch_context(loop._coordinator._cluster.workers[0]):
        tf.function(step, autograph=False)(iter(sums().repeat()))
    graphs = context().export_run_metadata().function_graphs
    context().disable_run_metadata()
    parts = [part for graph in graphs for part in graph.partition_graphs]
    return sum(node.op == "_Send" for part in parts for node in part.node)


def _failing_late(strategy: Any) -> dict[str, Any]:
    """Make steps whose last update fails after all others; only it counts complete steps."""
    import keras
    import tensorflow as tf

    import hopsml

    class Late(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            found = super().train_step(data)
            whole.assign_add(tf.cast(tf.debugging.check_numerics(data[1][0, 0], "bad batch"), tf.int64))
            return found

    def batches() -> Any:
        x = tf.ones((160, 2))
        y = tf.concat([tf.ones((144, 1)), tf.fill((16, 1), float("nan"))], axis=0)  # the tenth batch
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

    with strategy.scope():
        whole = tf.Variable(0, dtype=tf.int64)
        model = Late([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    loop = hopsml.tensorflow.ServerLoop(model, batches, checkpoint_every_steps=1000)
    refused = ""
    try:
        loop.run(500)
    except tf.errors.InvalidArgumentError as error:
        refused = str(error)
    return {"refused": refused, "whole": int(whole.numpy()), "counted": loop.steps}


def classify_errors() -> list[bool]:
    """Return which TensorFlow errors indicate a lost server: three that do, two of the model, and the end of data;
    during a training, and before its first step.
    """
    from tensorflow import errors
    from tensorflow.python.distribute.coordinator.cluster_coordinator import ClosureInputError

    from hopsml.training.tensorflow.fit.server_loop import is_server_loss

    restarted = errors.InvalidArgumentError(
        None,
        None,
        "Resource input tensor contains an invalid device. This might happen when the client has connected to a different "
        "cluster, or some remote workers have been restarted. [Op:ReadVariableOp] name: ",
    )
    lost = (restarted, errors.UnavailableError(None, None, "Socket closed"), ClosureInputError(restarted))
    own = (
        errors.InvalidArgumentError(None, None, "Incompatible shapes: [16,1] vs. [16,2]"),
        ValueError("unknown device"),
    )
    ended = errors.OutOfRangeError(None, None, "End of sequence")
    told = [is_server_loss(error) for error in (*lost, *own)]
    return [*told, is_server_loss(ended, has_trained=True), is_server_loss(ended, has_trained=False)]


def fit_of_tf_keras() -> dict[str, Any]:
    """Train with servers and tf_keras, with the usual arguments of ``fit``."""
    import tf_keras

    import hopsml

    with hopsml.tensorflow.strategy().scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(8,))])
        model.compile("sgd", "mse")
    history = model.fit(
        sums().repeat(), steps_per_epoch=5, epochs=2, verbose=0, callbacks=hopsml.tensorflow.callbacks()
    )
    return {"epochs": len(history.history["loss"])}
