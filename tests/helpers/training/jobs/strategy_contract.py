"""Contract of a strategy over TensorFlow's and hopsml's collectives."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentTypeError
from tests.helpers.training.jobs import keras3
from tests.helpers.training.jobs.common import digest
from tests.helpers.training.jobs.own_group import join_own, strategy_of


def contract(kind: str, parts: list[str], keras_parts: list[str]) -> dict[str, Any]:
    """Run the parts below, and those of the Keras 3 job."""
    strategy = strategy_of(kind)
    jobs = {
        "values": _values,
        "gradients": _gradients,
        "variables": _variables,
        "data": _data,
        "weighted": _weighted,
        "clipped": _clipped,
        "own_state": _own_state,
        "synchronized": _synchronized,
        "files": _files,
        "overflow": keras3.overflow,
        "compiled": _compiled,
        "types": _types,
        "differing": _differing,
        "absent": _absent,
    }
    return {**keras3.under(strategy, keras_parts), **{part: jobs[part](strategy) for part in parts}}


def _rank() -> int:
    context = current()
    assert context is not None
    return context.rank


def _own_state(strategy: Any) -> dict[str, Any]:
    """Return the output of a ``fit`` whose layer stores the last row, and the named variables."""
    import contextlib
    import io

    import keras
    import numpy as np

    class Last(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, aggregation: str) -> None:
            super().__init__(name=aggregation)
            self.last = self.add_weight(
                shape=(), initializer="zeros", trainable=False, name="last", aggregation=aggregation
            )

        def call(self, inputs: Any) -> Any:
            self.last.assign(keras.ops.mean(inputs))
            return inputs

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), Last("none"), Last("mean"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        model.fit(np.arange(8.0)[:, None], np.zeros(8), batch_size=8, shuffle=False, verbose=0)
    return {"printed": printed.getvalue()}


def _clipped(strategy: Any) -> dict[str, Any]:
    """Return, for each kind of clipping, the weights after a step on eight rows in the group and in one process."""
    import keras
    import numpy as np
    import tensorflow as tf

    words = np.array([0, 0, 1, 3, 0, 1, 1, 0])

    def trained(scope: Any, clip: dict[str, float]) -> list[Any]:
        with scope:
            layers = [keras.layers.Input((1,), dtype="int32"), keras.layers.Embedding(5, 2, "ones")]
            model = keras.Sequential(
                [*layers, keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer="ones")]
            )
            model.compile(keras.optimizers.SGD(0.1, **clip), "mse")
        model.fit(words, np.full(8, 50.0), batch_size=8, shuffle=False, verbose=0)
        return [one.tolist() for one in model.get_weights()]

    clips = {"clipvalue": 0.2, "clipnorm": 0.3, "global_clipnorm": 0.4}
    alone = tf.distribute.get_strategy()
    return {
        name: [trained(scope.scope(), {name: value}) for scope in (strategy, alone)] for name, value in clips.items()
    }


def _values(strategy: Any) -> dict[str, Any]:
    """Check reduce, gather, all_reduce, all_gather."""
    import tensorflow as tf

    rank = _rank()
    mine = tf.constant([[1.0, 2.0]] * (rank + 1)) * (rank + 1)
    context = tf.distribute.get_replica_context

    def step(x: Any) -> Any:
        reduced = context().all_reduce("SUM", {"a": x[0] + 0, "b": [tf.reduce_sum(x), tf.constant(rank + 1)]})
        mean = context().all_reduce("MEAN", tf.cast(x[0], tf.bfloat16))
        return reduced, mean, context().all_gather(x + 0, axis=0), context().replica_id_in_sync_group

    reduced, mean, gathered, replica = tf.function(lambda x: strategy.run(step, args=(x,)))(mine)
    wide = tf.constant([[10 * rank + column for column in range(rank + 1)]])
    return {
        "sum": float(strategy.reduce("SUM", tf.constant(1.0 + rank), axis=None)),
        "mean": float(strategy.reduce("MEAN", tf.constant(1.0 + rank), axis=None)),
        "integers": strategy.reduce("SUM", tf.constant([1, rank]), axis=None).numpy().tolist(),
        "mean_of_rows": strategy.reduce("MEAN", mine, axis=0).numpy().tolist(),
        "rows": strategy.gather(mine, axis=0).numpy().tolist(),
        "columns": strategy.gather(wide, axis=1).numpy().tolist(),
        "structure": [value.numpy().tolist() for value in tf.nest.flatten(reduced)],
        "half_mean": tf.cast(mean, tf.float32).numpy().tolist(),
        "all_gathered": gathered.numpy().tolist(),
        "replica": int(strategy.experimental_local_results(replica)[0]),
        "replicas": strategy.num_replicas_in_sync,
        "eager": float(strategy.run(lambda x: context().all_reduce("SUM", x * 1.0), args=(tf.constant(1.0 + rank),))),
    }


def _gradients(strategy: Any) -> dict[str, Any]:
    """Check a custom loop with dense, sparse and None gradients, and the gradient of a reduction."""
    import keras
    import tensorflow as tf

    rank = _rank()
    with strategy.scope():
        table = tf.Variable(tf.ones([6, 2]))
        weight = tf.Variable([[1.0], [2.0]])
        unused = tf.Variable(3.0)
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([table, weight, unused])
    words = tf.constant([0, 1, 1] if rank == 0 else [5, 0])

    @tf.function
    def train(words: Any) -> Any:
        def step(words: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.matmul(tf.nn.embedding_lookup(table, words), weight))
            gradients = tape.gradient(loss, [table, weight, unused])
            assert isinstance(gradients[0], tf.IndexedSlices) and gradients[2] is None
            optimizer.apply_gradients(zip(gradients, [table, weight, unused], strict=True))
            return loss

        return strategy.run(step, args=(words,))

    @tf.function
    def through(x: Any) -> Any:
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.distribute.get_replica_context().all_reduce("SUM", x * x)
                loss = tf.reduce_sum(y * tf.constant([1.0, 2.0])) * (rank + 1.0)
            return tape.gradient(loss, x)

        return strategy.run(step, args=(x,))

    loss = strategy.reduce("SUM", train(words), axis=None)
    return {
        "loss": float(loss),
        "table": table.numpy().tolist(),
        "weight": weight.numpy().ravel().tolist(),
        "unused": float(unused.numpy()),
        "through": through(tf.constant([1.0, 3.0])).numpy().tolist(),
    }


def _variables(strategy: Any) -> dict[str, Any]:
    """Check initial values, aggregation when written, synchronization when read, and checkpoints of variables."""
    import tensorflow as tf

    rank, on_read = _rank(), tf.VariableSynchronization.ON_READ
    kinds = tf.VariableAggregation
    with strategy.scope():
        initial = tf.Variable(10.0 + rank)
        integer = tf.Variable([rank, 7], aggregation=kinds.SUM)
        written = {kind: tf.Variable(0.0, aggregation=kind) for kind in (kinds.SUM, kinds.MEAN)}
        read = {
            kind: tf.Variable(0.0, synchronization=on_read, aggregation=kind, trainable=False)
            for kind in (kinds.SUM, kinds.MEAN, kinds.ONLY_FIRST_REPLICA)
        }

    @tf.function
    def update(x: Any) -> None:
        def step(x: Any) -> None:
            for variable in [*written.values(), *read.values()]:
                variable.assign_add(x * 1.0)
            integer.assign(tf.cast(x, tf.int32) * [1, 2])

        strategy.run(step, args=(x,))

    update(tf.constant(1.0 + rank))
    found = {
        "initial": float(initial.numpy()),
        "integer": integer.numpy().tolist(),
        "written": [float(variable.numpy()) for variable in written.values()],
        "read": [float(variable.read_value()) for variable in list(read.values())[:2]],
        "own": [
            float(strategy.experimental_local_results(strategy.run(variable.read_value))[0])
            for variable in read.values()
        ],
    }
    with strategy.scope():
        read[kinds.SUM].assign(8.0)
        initial.assign(20.0)
    found["assigned"] = [float(strategy.experimental_local_results(read[kinds.SUM])[0].numpy()), float(initial.numpy())]
    found["total"] = float(read[kinds.SUM].read_value())
    checkpoint = tf.train.Checkpoint(total=read[kinds.SUM], initial=initial)
    prefix = checkpoint.write(str(current().work_dir / "variables"))  # type: ignore[union-attr]
    with strategy.scope():
        read[kinds.SUM].assign(0.0)
        initial.assign(0.0)
    found["saved"] = float(tf.train.load_variable(prefix, "total/.ATTRIBUTES/VARIABLE_VALUE"))
    checkpoint.read(prefix).assert_consumed()
    found["restored"] = [float(read[kinds.SUM].read_value()), float(initial.numpy())]
    return found


def _data(strategy: Any) -> dict[str, Any]:
    """Return each worker's share of global batches, with a last partial one, by policy; and datasets by function."""
    import tensorflow as tf

    def shares(dataset: Any) -> list[list[int]]:
        return [strategy.experimental_local_results(batch)[0].numpy().tolist() for batch in dataset]

    def with_policy(name: str) -> Any:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = getattr(tf.data.experimental.AutoShardPolicy, name)
        return tf.data.Dataset.range(19).batch(8).with_options(options)

    def by_function(context: Any) -> Any:
        batch = context.get_per_replica_batch_size(4 * context.num_replicas_in_sync)
        return tf.data.Dataset.range(12).shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch)

    @tf.function
    def total(dataset: Any) -> Any:
        summed = tf.constant(0, tf.int64)
        for batch in dataset:
            summed += strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(batch,)), axis=None)
        return summed

    distribute = strategy.experimental_distribute_dataset
    value = strategy.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
    return {
        "data": shares(distribute(with_policy("DATA"))),
        "auto": shares(distribute(with_policy("AUTO"))),
        "off": shares(distribute(with_policy("OFF"))),
        "endless": shares(distribute(tf.data.Dataset.range(6).batch(6).repeat().take(2))),
        "function": shares(strategy.distribute_datasets_from_function(by_function)),
        "in_function": int(total(distribute(with_policy("DATA")))),
        "value": int(strategy.experimental_local_results(value)[0]),
    }


def _weighted(strategy: Any) -> dict[str, Any]:
    """Run fit with class weights and with sample weights, in the group and without a strategy."""
    import keras
    import numpy as np
    import tensorflow as tf

    x, y = keras3._data(32)
    weights = np.linspace(0.1, 2.0, 32).astype("float32")
    data = {
        "classes": (tf.data.Dataset.from_tensor_slices((x, y)).batch(16), {"class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}),
        "samples": (tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(16), {}),
    }
    found: dict[str, Any] = {}
    for name, (dataset, options) in data.items():
        for where, scope in (("group", strategy), ("alone", tf.distribute.get_strategy())):
            keras.utils.set_random_seed(11)
            with scope.scope():
                model = keras.Sequential(
                    [keras.layers.Input((keras3.FEATURES,)), keras.layers.Dense(keras3.CLASSES, "softmax")]
                )
                model.compile(
                    keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"]
                )
            history = model.fit(dataset, epochs=2, verbose=0, **options).history
            weights_now = [float(value) for weight in model.get_weights() for value in weight.ravel()]
            found[f"{name}_{where}"] = {"history": history, "weights": weights_now}
    return found


def _synchronized(strategy: Any) -> dict[str, Any]:
    """Check that BatchNormalization(synchronized=True) uses the statistics of the global batch."""
    import keras
    import numpy as np
    import tensorflow as tf

    x = np.random.default_rng(5).normal(size=(16, 3)).astype("float32")
    with strategy.scope():
        layer = keras.layers.BatchNormalization(synchronized=True, momentum=0.5)
        layer.build((None, 3))
    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(16))
    run = tf.function(lambda batch: strategy.run(lambda x: layer(x, training=True), args=(batch,)))
    given = strategy.gather(run(batch), axis=0).numpy()
    alone = keras.layers.BatchNormalization(momentum=0.5)
    expected = alone(x, training=True).numpy()
    return {
        "error": float(np.abs(given - expected).max()),
        "mean_error": float(np.abs(layer.moving_mean.numpy() - alone.moving_mean.numpy()).max()),
        "variance_error": float(np.abs(layer.moving_variance.numpy() - alone.moving_variance.numpy()).max()),
    }


def _files(strategy: Any) -> dict[str, Any]:
    """Save the chief's model and weights, load them on all ranks under the strategy, and train."""
    import keras
    import numpy as np
    import tensorflow as tf

    context = current()
    assert context is not None
    model = keras3._model(strategy)
    model.fit(keras3._dataset(32, 16), epochs=1, verbose=0)
    place = context.work_dir / "model.keras"
    model.save(place)
    model.save_weights(place.with_suffix(".weights.h5"))
    before = digest(model.get_weights())
    with strategy.scope():
        loaded = keras.models.load_model(place)
    found = {"saved": before, "loaded": digest(loaded.get_weights())}
    again = keras3._model(strategy)
    again.set_weights([np.zeros_like(weight) for weight in again.get_weights()])
    again.load_weights(place.with_suffix(".weights.h5"))
    found["weights"] = digest(again.get_weights())
    model.export(place.with_suffix(""), verbose=False)
    x, _ = keras3._data(4)
    exported = tf.saved_model.load(place.with_suffix(""))
    found["served"] = float(np.abs(exported.serve(x).numpy() - model(x, training=False).numpy()).max())
    loaded.fit(keras3._dataset(32, 16), epochs=1, verbose=0)
    model.fit(keras3._dataset(32, 16), epochs=1, verbose=0)
    return {**found, "trained_on": [digest(model.get_weights()), digest(loaded.get_weights())]}


def _compiled(strategy: Any) -> dict[str, str]:
    """Reduce in a function that XLA compiles."""
    import tensorflow as tf

    def step(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", x * 2.0)

    compiled = tf.function(lambda x: strategy.run(step, args=(x,)), jit_compile=True)
    try:
        compiled(tf.constant(1.0))
    except Exception as error:  # noqa: BLE001 what it is, is what the test asks
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "", "message": ""}


def _types(strategy: Any) -> dict[str, Any]:
    """Reduce types that TensorFlow's collectives do not support."""
    import tensorflow as tf

    rank = _rank()

    def step(x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        small = context.all_reduce("SUM", [tf.cast(x, tf.uint8), None, tf.cast(x, tf.int16)])
        empty = context.all_reduce("SUM", [tf.zeros([0, 3]), tf.zeros([0])])
        return small, empty, context.all_gather(x > 1.5, axis=0)

    small, empty, flags = tf.function(lambda x: strategy.run(step, args=(x,)))(tf.constant([1.0 + rank]))
    mean = strategy.reduce("MEAN", tf.constant([1 + rank]), axis=None)
    found: dict[str, Any] = {
        "small": [None if value is None else [value.dtype.name, value.numpy().tolist()] for value in small],
        "empty": [value.shape.as_list() for value in empty],
        "flags": flags.numpy().tolist(),
        "mean": [mean.dtype.name, mean.numpy().tolist()],
    }
    try:
        strategy.reduce("SUM", tf.constant(True), axis=None)
    except ArgumentTypeError as error:
        found["refused"] = str(error)
    return found


def _differing(strategy: Any) -> dict[str, Any]:
    """Reduce different shapes, types, numbers of tensors or orders per rank; the group is formed again each time."""
    import tensorflow as tf

    rank = _rank()

    def shapes() -> list[Any]:
        return [tf.ones([3, 2 + rank]), tf.ones([4])]

    def types() -> list[Any]:
        return [tf.ones([3], tf.float32 if rank == 0 else tf.float64)]

    def numbers() -> list[Any]:
        return [tf.ones([2])] * (1 + rank)

    def order() -> list[Any]:
        return [tf.ones([2]), tf.ones([5])][:: 1 - 2 * rank]

    found = {}
    for generation, given in enumerate((shapes, types, numbers, order), start=2):

        def step(given: Any = given) -> Any:
            return tf.distribute.get_replica_context().all_reduce("SUM", given())

        try:
            tf.function(lambda step=step: strategy.run(step))()
        except tf.errors.OpError as error:
            found[given.__name__] = [type(error).__name__, error.message]
        join_own(generation)
    found["afterwards"] = [float(strategy.reduce("SUM", tf.constant(1.0), axis=None))]
    return found


def _absent(strategy: Any) -> dict[str, Any]:
    """Let rank 1 be absent: rank 0's step has a deadline, then it is cancelled while waiting. Each is reported once."""
    import tensorflow as tf

    rank, found = _rank(), {}
    told = Path(current().run_url)  # type: ignore[union-attr]

    def raises() -> Any:
        raise ValueError("this rank's own")

    def alone(name: str, generation: int, timeout_s: float, fails: bool) -> None:
        join_own(generation, timeout_s=timeout_s)
        place = told / f"{name}.told"
        while rank == 1 and not place.exists():
            time.sleep(0.005)

        def step() -> Any:
            reduced = tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2]))
            return (reduced, tf.numpy_function(raises, [], tf.float32)) if fails and rank == 0 else reduced

        try:
            tf.function(lambda: strategy.run(step))()
        except tf.errors.OpError as error:
            found[name] = [type(error).__name__, error.message]
        place.touch()

    alone("late", 6, 0.5, fails=False)
    alone("cancelled", 7, 5.0, fails=True)
    join_own(8)
    return found


def loss(kind: str) -> dict[str, Any]:
    """Kill rank 1 during a step; with hopsml's group rank 0 continues in place without retracing."""
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = strategy_of(kind)
    rank, traces, keras_traces = _rank(), 0, 0

    def squared(expected: Any, given: Any) -> Any:
        nonlocal keras_traces
        keras_traces += 1
        return tf.square(given - expected)

    with strategy.scope():
        weight = tf.Variable(tf.zeros([1000]))
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, "linear", kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.5), squared)
    batch = np.array([[1.0], [2.0]], "float32")
    model.train_on_batch(batch, 3 * batch)

    def die_at(number: Any) -> Any:
        if rank == 1 and int(number) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.float32(1.0)

    @tf.function
    def train(number: Any) -> Any:
        nonlocal traces
        traces += 1

        def step(number: Any) -> None:
            gradient = tf.ones([1000]) * tf.numpy_function(die_at, [number], tf.float32)
            gradient.set_shape([1000])
            weight.assign_add(tf.distribute.get_replica_context().all_reduce("MEAN", gradient))

        strategy.run(step, args=(number,))

    done, error = 0, None
    try:
        for number in range(100):
            train(tf.constant(number))
            done += 1
    except tf.errors.OpError as raised:
        error = raised
    found: dict[str, Any] = {"done": done, "error": type(error).__name__, "message": str(error)}
    if kind == "hopsml":
        join_own(2, rank=0, size=1)
        for number in range(3):
            train(tf.constant(100 + number))
        found.update(traces=traces, weight=float(weight.numpy()[0]), replicas=strategy.num_replicas_in_sync)
        model.set_weights([np.ones((1, 1)), np.zeros(1)])
        before = keras_traces
        model.train_on_batch(batch, 3 * batch)
        # Of the mean of (w x + b - 3 x)^2 over x = 1, 2 at w = 1, b = 0: -10 for w, -6 for b.
        found["keras"] = [float(value) for array in model.get_weights() for value in array.ravel()]
        found["traced_again"] = keras_traces - before
    return found
