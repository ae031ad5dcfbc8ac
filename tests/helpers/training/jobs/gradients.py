"""Jobs that compare reduced gradients under each communication setting with NumPy's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hopsml.cluster.shared.spec import GradientSettings
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from tests.helpers.training.jobs.common import digest
from tests.helpers.training.jobs.own_group import join_own

INPUTS, OUTPUTS, BATCH, RATE, STEPS = 40, 50, 4, 0.05, 9
LOOPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"compression": "fp16"},
    "bf16": {"compression": "bf16"},
    "double": {"double_buffering": True},
    "accumulate": {"accumulate": 3},
    "accumulate_rest": {"accumulate": 4},
    "adasum": {"reduction": "adasum"},
    "topk": {"compression": "topk", "topk": 0.1},
    "powersgd": {"compression": "powersgd", "powersgd_rank": 16},
    "double_fp16": {"double_buffering": True, "compression": "fp16"},
    "double_accumulate": {"double_buffering": True, "accumulate": 3},
    "double_adasum": {"double_buffering": True, "reduction": "adasum"},
    "double_topk": {"double_buffering": True, "compression": "topk", "topk": 0.1},
    "double_powersgd": {"double_buffering": True, "compression": "powersgd", "powersgd_rank": 16},
    "adasum_fp16": {"reduction": "adasum", "compression": "fp16"},
}


def everything(parts: list[str], loops: list[str]) -> dict[str, Any]:
    """Run the parts below in one group whose members count as separate machines."""
    from hopsml.training.tensorflow import setup

    join_own(1, apart=True)
    setup.prepare()
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "kinds": _kinds,
        "rounded": _rounded,
        "fits": lambda: {
            **_fits("plain", "double", "accumulate"),
            "one_step": _one_step(*_rows()),
            "averaged": _averaged(*_rows()),
        },
        "fits_rest": lambda: _fits("accumulate_rest"),
        "digits": _digits,
        "tf_keras": lambda: _tf_keras("fp16", "double_accumulate"),
        "tf_keras_rest": lambda: _tf_keras("topk"),
        "overflow": _overflow,
        "generations": _generations,
        "refused": _refused,
        "left": _left,
    }
    return {"loops": {name: _loop(LOOPS[name]) for name in loops}, **{part: jobs[part]() for part in parts}}


def _rank_and_size() -> tuple[int, int]:
    context = current()
    assert context is not None
    return context.rank, context.world_size


def _strategy(**settings: Any) -> Any:
    from hopsml.training.tensorflow.distribution.collective_strategy import CollectiveStrategy

    return CollectiveStrategy(GradientSettings(**settings))


def batch_of(rank: int, step: int) -> tuple[Any, Any]:
    import numpy as np

    drawn = np.random.default_rng([rank, step])
    x = drawn.normal(size=(BATCH, INPUTS)).astype("float32")
    return x, (x @ np.full((INPUTS, OUTPUTS), 0.5) + drawn.normal(size=(BATCH, OUTPUTS))).astype("float32")


def over_tensorflow(loops: list[str]) -> dict[str, Any]:
    """Run loops over TensorFlow's own collectives, and one fit."""
    import hopsml
    from hopsml.training.tensorflow.distribution import gradient_hooks

    strategy = hopsml.tensorflow.strategy(implementation="tensorflow", compression="fp16")
    own = strategy.extended.gradient_exchange.settings.description

    def make(**settings: Any) -> Any:
        gradient_hooks.exchange_by_strategy(strategy, GradientSettings(**settings))
        return strategy

    return {
        "settings": own,
        "loops": {name: _loop(LOOPS[name], make=make) for name in loops},
        "kinds": _kinds(("plain", "fp16"), make),
        "fit": _iterations_of_fit(make(compression="bf16")),
    }


def _iterations_of_fit(strategy: Any) -> int:
    """Return the number of updates after six steps of a fit."""
    import keras
    import numpy as np

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((INPUTS,)), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(np.ones((24, INPUTS), "float32"), np.ones((24, 4), "float32"), batch_size=8, epochs=2, verbose=0)
    return int(model.optimizer.iterations.numpy())


def _loop(
    settings: dict[str, Any], library: str = "keras", steps: int = STEPS, make: Callable[..., Any] = _strategy
) -> dict[str, Any]:
    """Train a linear regression in a custom loop; return its error against NumPy, and values that all ranks must share."""
    import numpy as np
    import tensorflow as tf

    import hopsml

    strategy = make(**settings)
    rank, size = _rank_and_size()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([INPUTS, OUTPUTS]))
        unused = tf.Variable(1.0)
        optimizer = _sgd(library)

    @tf.function
    def train(x: Any, y: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(tf.matmul(x, weights) - y)) / (BATCH * size)
            gradients = tape.gradient(loss, [weights, unused])
            optimizer.apply_gradients(zip(gradients, [weights, unused], strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

    losses = [float(train(*batch_of(rank, step))) for step in range(steps)]
    hopsml.tensorflow.finish_updates(optimizer)
    expected = expected_weights(settings, size, steps)
    return {
        "digest": digest([weights.numpy()]),
        "iterations": int(optimizer.iterations.numpy()),
        "error": float(np.abs(weights.numpy() - expected).max() / np.abs(expected).max()),
        "losses": [losses[0], losses[-1]],
        "unused": float(unused.numpy()),
    }


def _sgd(library: str) -> Any:
    import keras

    if library == "keras":
        return keras.optimizers.SGD(RATE)
    import tf_keras

    return (tf_keras.optimizers if library == "tf_keras" else tf_keras.optimizers.legacy).SGD(RATE)


def expected_weights(settings: dict[str, Any], size: int, steps: int) -> Any:
    """Return the same training in one process with NumPy; a gradient is the list of the workers'."""
    import numpy as np

    weights = np.zeros((INPUTS, OUTPUTS))
    every = settings.get("accumulate", 1)
    left = [np.zeros(INPUTS * OUTPUTS) for _ in range(size)]
    waiting: list[list[Any]] = []
    travelling: list[list[Any]] = []

    def apply(gradients: list[Any]) -> None:
        nonlocal weights
        weights = weights - RATE * _combined(settings, gradients, left)

    def travel(gradients: list[Any]) -> None:
        if not settings.get("double_buffering"):
            apply(gradients)
            return
        if travelling:
            apply(travelling.pop())
        travelling.append(gradients)

    def taken() -> list[Any]:
        means = [np.mean(of_rank, axis=0) for of_rank in zip(*waiting, strict=True)]
        waiting.clear()
        return means

    for step in range(steps):
        gradients = []
        for rank in range(size):
            x, y = batch_of(rank, step)
            gradients.append(2 * x.T @ (x @ weights - y) / (BATCH * size))
        waiting.append(gradients)
        if len(waiting) == every:
            travel(taken())
    if waiting:
        travel(taken())
    if travelling:
        apply(travelling.pop())
    return weights


def _combined(settings: dict[str, Any], gradients: list[Any], left: list[Any]) -> Any:
    import numpy as np

    if settings.get("reduction") == "adasum":
        return len(gradients) * _adasum(gradients)
    if settings.get("compression") != "topk":
        return np.sum(gradients, axis=0)  # powersgd: these gradients have no higher rank than it keeps
    total = np.zeros(INPUTS * OUTPUTS)
    for rank, gradient in enumerate(gradients):
        whole = gradient.ravel() + left[rank]
        chosen = np.argsort(-np.abs(whole))[: math.ceil(whole.size * settings["topk"])]
        total[chosen] += whole[chosen]
        left[rank] = whole
        left[rank][chosen] = 0
    return total.reshape(INPUTS, OUTPUTS)


def _adasum(gradients: list[Any]) -> Any:
    """Reduce pairwise; the last value of an odd number is unchanged."""
    while len(gradients) > 1:
        pairs = zip(gradients[:-1:2], gradients[1::2], strict=True)
        odd = gradients[-1:] if len(gradients) % 2 else []
        gradients = [
            (1 - (a * b).sum() / (2 * (a * a).sum())) * a + (1 - (a * b).sum() / (2 * (b * b).sum())) * b
            for a, b in pairs
        ] + odd
    return gradients[0]


def _kinds(
    names: Sequence[str] = ("plain", "topk", "powersgd", "adasum", "double", "accumulate", "double_accumulate"),
    make: Callable[..., Any] = _strategy,
) -> dict[str, Any]:
    """Reduce sparse gradients, None, and those with a changing number of rows, under each setting."""
    import keras
    import tensorflow as tf

    import hopsml

    rank, _ = _rank_and_size()
    found = {}
    for name in names:
        strategy = make(**LOOPS[name])
        with strategy.scope():
            table = tf.Variable(tf.ones([6, 2]))
            weight = tf.Variable([[1.0], [2.0]])
            unused = tf.Variable(3.0)
            optimizer = keras.optimizers.SGD(0.125)
            optimizer.build([table, weight, unused])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
        def train(
            words: Any, strategy: Any = strategy, held: Any = (table, weight, unused), by: Any = optimizer
        ) -> None:
            def step(words: Any) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.nn.embedding_lookup(held[0], words)) + tf.reduce_sum(held[1])
                gradients = tape.gradient(loss, held)
                assert isinstance(gradients[0], tf.IndexedSlices) and gradients[2] is None
                by.apply_gradients(zip(gradients, held, strict=True))

            strategy.run(step, args=(words,))

        for words in ([0, 1, 1] if rank == 0 else [5, 0], [2], [3, 3, 3, 3] if rank == 0 else [4]):
            train(tf.constant(words))
        hopsml.tensorflow.finish_updates(optimizer)
        found[name] = [table.numpy().tolist(), weight.numpy().tolist(), float(unused.numpy())]
    return found


def _rounded() -> dict[str, Any]:
    """Reduce with compression: only gradients, or a part of them, are rounded."""
    import keras
    import numpy as np
    import tensorflow as tf

    found = {}
    for compression in ("fp16", "topk", "powersgd"):
        strategy = _strategy(compression=compression)
        with strategy.scope():
            weight = tf.Variable(tf.zeros([300, 200]))
            optimizer = keras.optimizers.SGD(1.0)
        gradient = tf.constant(np.random.default_rng(1).normal(size=(300, 200)).astype("float32"))

        def step(by: Any = optimizer, weight: Any = weight, gradient: Any = gradient) -> Any:
            own = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            by.apply_gradients([(gradient, weight)])
            return own

        own = strategy.run(step)
        found[compression] = {
            "own": bool(np.array_equal(own.numpy(), 2 * gradient.numpy())),
            "outside": bool(np.array_equal(strategy.reduce("SUM", gradient, axis=None).numpy(), 2 * gradient.numpy())),
            "weight": bool(np.array_equal(weight.numpy(), -2 * gradient.numpy())),
            "error": float(np.abs(weight.numpy() + 2 * gradient.numpy()).max()),
        }
    return found


def _rows() -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(3).normal(size=(64, 8)).astype("float32")
    return x, (x.sum(1) > 0).astype("int32")


def _fits(*names: str) -> dict[str, Any]:
    """Run Keras's fit with momentum, batch normalisation, clipping and weight decay under delayed gradients."""
    import keras
    import numpy as np

    x, y = _rows()
    found = {}
    for name in names:
        strategy = _strategy(**LOOPS[name])
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = keras.Sequential(
                [keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.BatchNormalization()]
            )
            model.add(keras.layers.Dense(2, "softmax"))
            optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5)
            model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        begun = model.get_weights()
        history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False).history
        found[name] = {
            "weights": digest(model.get_weights()),
            "iterations": int(model.optimizer.iterations.numpy()),
            "moved": bool(any(not np.array_equal(a, b) for a, b in zip(begun, model.get_weights(), strict=True))),
            "losses": history["loss"],
        }
    return found


def _averaged(x: Any, y: Any) -> bool:
    """Return whether a model with averaged weights ends with the averages under delayed gradients."""
    import keras
    import numpy as np

    strategy = _strategy(**LOOPS["double"])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2, "softmax")])
        model.compile(keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9), "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=16, epochs=1, verbose=0, shuffle=False)
    averages = [variable.numpy() for variable in model.optimizer._model_variables_moving_average]
    return all(np.array_equal(one, other) for one, other in zip(model.get_weights(), averages, strict=True))


def _one_step(x: Any, y: Any) -> dict[str, Any]:
    """Return applied gradients: none after one step, the first's after the second, as by a plain step."""
    import keras
    import numpy as np

    import hopsml

    steps = {}
    for name in ("plain", "double"):
        strategy = _strategy(**LOOPS[name])
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2, "softmax")])
            model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "sparse_categorical_crossentropy")
        begun = model.get_weights()
        model.train_on_batch(x[:16], y[:16])
        after_one = model.get_weights()
        model.train_on_batch(x[:16], y[:16])
        steps[name] = begun, after_one, model.get_weights()
        hopsml.tensorflow.finish_updates(model)
    begun, nothing, first = steps["double"]
    return {
        "nothing": all(np.array_equal(a, b) for a, b in zip(begun, nothing, strict=True)),
        "first": all(np.array_equal(a, b) for a, b in zip(steps["plain"][1], first, strict=True)),
    }


def _digits() -> dict[str, Any]:
    """Train on digits with lossy settings; return the accuracy, and values that all ranks must share."""
    import keras
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    found = {}
    for name, settings in {
        "plain": {},
        "topk": {"compression": "topk", "topk": 0.02},
        "powersgd": {"compression": "powersgd"},
        "adasum": {"reduction": "adasum"},
        "double": {"double_buffering": True, "compression": "bf16"},
    }.items():
        strategy = _strategy(**settings)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential(
                [keras.layers.Input((64,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
            )
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            # A gradient that is applied one step late costs 0.05 of accuracy at momentum 0.9 and a rate of 0.1 (the same in
            # NumPy, 8 seeds); here plain, delayed and top-k reach 0.912, 0.912 and 0.913, spread 0.006 (12 seeds).
            model.compile(keras.optimizers.SGD(0.2, momentum=0.5), loss, metrics=["accuracy"], steps_per_execution=7)
        model.fit(images[:1400], labels[:1400], batch_size=100, epochs=24, verbose=0)
        _, accuracy = model.evaluate(images[1400:], labels[1400:], batch_size=100, verbose=0)
        found[name] = {"accuracy": accuracy, "weights": digest(model.get_weights())}
    return found


def _tf_keras(*names: str) -> dict[str, Any]:
    """Run both generations of tf_keras's optimizers."""
    return {f"{library}_{name}": _loop(LOOPS[name], library) for library in ("tf_keras", "legacy") for name in names}


def _overflow() -> dict[str, Any]:
    """Train in mixed precision with double buffering: an overflow on one rank skips the step on all."""
    import keras
    import tensorflow as tf

    import hopsml

    strategy = _strategy(double_buffering=True)
    rank, _ = _rank_and_size()
    with strategy.scope():
        weight = tf.Variable([0.0, 0.0])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
        optimizer.build([weight])

    @tf.function
    def train(gradient: Any) -> None:
        strategy.run(lambda given: optimizer.apply_gradients([(given * 4.0, weight)]), args=(gradient,))

    seen = []
    for step in range(4):
        bad = step == 1 and rank == 1
        train(tf.constant([math.inf if bad else 1.0, 10.0**step]))
        seen.append(weight.numpy().tolist())
    hopsml.tensorflow.finish_updates(optimizer)
    return {"seen": seen, "end": weight.numpy().tolist(), "scale": float(optimizer.dynamic_scale.numpy())}


def _generations() -> dict[str, Any]:
    """Form the group again between two steps; rank 1 has no state of the first, like a newcomer."""
    import keras
    import tensorflow as tf

    import hopsml
    from hopsml.training.tensorflow.distribution import collective_ops
    from hopsml.training.tensorflow.distribution.gradient_exchange import GradientExchange

    rank, _ = _rank_and_size()
    found: dict[str, Any] = {}
    for generation, name in enumerate(("double", "accumulate", "double_powersgd"), start=2):
        strategy = _strategy()
        with strategy.scope():
            weight = tf.Variable(tf.zeros([INPUTS, OUTPUTS]))
            optimizer = keras.optimizers.SGD(1.0)
            optimizer.build([weight])
        traces = []

        def begin(settings: Any = LOOPS[name], held: Any = (strategy, optimizer, weight), traces: Any = traces) -> Any:
            strategy, optimizer, weight = held
            strategy.extended.gradient_exchange = GradientExchange(GradientSettings(**settings), changes=True)

            def step(gradient: Any) -> None:
                traces.append(1)
                strategy.run(lambda given: optimizer.apply_gradients([(given, weight)]), args=(gradient,))

            return tf.function(step)

        train = begin()
        train(tf.fill([INPUTS, OUTPUTS], 1.0))
        join_own(generation, apart=True)
        train = begin() if rank == 1 else train
        for _ in range(3):
            train(tf.fill([INPUTS, OUTPUTS], 10.0 * (rank + 1)))
        (kept,) = strategy.extended.gradient_exchange._lists.values()
        held = kept.held.holds_something()
        hopsml.tensorflow.finish_updates(optimizer)
        value = weight.numpy()
        found[name] = [float(value.min()), float(value.max()), len(traces), held, kept.held.holds_something()]
    found["nothing"] = collective_ops.has_transfers("of nobody")
    return found


def _refused() -> dict[str, str]:
    """Return the errors for calls that are invalid under delayed gradients."""
    import keras
    import tensorflow as tf

    strategy = _strategy(double_buffering=True)
    with strategy.scope():
        weight = tf.Variable([0.0])
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        optimizer.build([weight])
    try:
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant([1.0]), weight)]))
    except ArgumentError as error:
        return {"accumulation": str(error)}
    return {}


def _left() -> dict[str, int]:
    """Leave a loop early: its pending gradients are reported at the end of the process."""
    import keras
    import tensorflow as tf

    strategy = _strategy(double_buffering=True)
    with strategy.scope():
        weight = tf.Variable([0.0])
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight])
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant([1.0]), weight)]))
    return {"iterations": int(optimizer.iterations.numpy())}
