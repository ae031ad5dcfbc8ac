"""Jobs that commit each kind of TensorFlow and Keras object in a State, and restore it elsewhere."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hopsml
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.cluster.worker.context import CommitPort, current, set_current
from hopsml.errors import ArgumentError
from hopsml.training.elastic import commits
from hopsml.training.tensorflow import state_variables

Made = tuple[
    dict[str, Any], Callable[[], float]
]  # a State's values, and a step that gives a number which depends on them


def all_kinds(slots: str) -> dict[str, Any]:
    """Run both of the following jobs in one process."""
    return {"steps": round_trips(slots), "torn": torn(slots)}


def round_trips(slots: str) -> dict[str, list[list[float]]]:
    """Return, for each kind, the results of two further steps in the first process and in its successor."""
    return {name: _round_trip(make, Path(slots, name)) for name, make in _kinds().items()}


def _round_trip(make: Callable[[], Made], folder: Path) -> list[list[float]]:
    slots, announced = CommitSlots.create(folder), []
    _join(CommitPort(slots, -1, announced.append))
    values, step = make()
    state = hopsml.elastic.State(**values)
    step()
    state.commit(every=1)
    state._writer.wait_written()
    gone_on = [step(), step()]
    _join(CommitPort(slots, announced[-1].slot, announced.append))
    values, step = make()
    successor = hopsml.elastic.State(**values)
    step()  # it is elsewhere before it continues from the commit
    list(successor.resume(hopsml.elastic.Sampler(1, 1)))
    return [gone_on, [step(), step()]]


def torn(slots: str) -> dict[str, list[list[str]]]:
    """Return, for some kinds, the keys of each commit whose content in the slot has changed since the commit.

    Updates follow commits that are large enough to be still in progress, in both modes of writing.
    """
    kinds = {"model": lambda: _model(_sequential), "variables": _variables, "large": _large}
    return {name: _torn(make, Path(slots, f"torn {name}")) for name, make in kinds.items()}


def _torn(make: Callable[[], Made], folder: Path) -> list[list[str]]:
    import numpy as np

    slots, announced = CommitSlots.create(folder), []
    _join(CommitPort(slots, -1, announced.append))
    values, step = make()
    step()
    state, found = hopsml.elastic.State(**values), []
    for commit in range(8):
        variables = state_variables.collect_variables(state._trackables())
        expected = {key: np.array(variable.numpy()) for key, variable in variables.items()}
        state._batches = commit + 1
        state.commit(every=1)
        step()
        step()
        state._writer.wait_written()
        written = commits.decode(slots.read(announced[-1].slot))
        assert written.step == commit + 1 and written.arrays.keys() == expected.keys()
        found.append([key for key, array in written.arrays.items() if array.tobytes() != expected[key].tobytes()])
    slots.close()
    return found


def _large() -> Made:
    """Return variables that are written as a whole, by rows, and by a compiled function."""
    import tensorflow as tf

    whole, rows, compiled = (tf.Variable(tf.random.normal([2_000_000, 4])) for _ in range(3))
    added = tf.ones_like(whole)
    slices = tf.IndexedSlices(tf.ones([1000, 4]), tf.range(0, 2_000_000, 2000))

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def add() -> None:
        compiled.assign_add(added)

    def step() -> float:
        rows.scatter_add(slices)
        whole.assign_sub(added)
        add()
        return 0.0

    return {"variables": [whole, rows, compiled]}, step


def _join(port: CommitPort) -> None:
    set_current(dataclasses.replace(current(), commits=port))


def _kinds() -> dict[str, Callable[[], Made]]:
    legacy = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
    kinds = {
        "sequential and its own optimizer": lambda: _model(_sequential),
        "functional with a shared layer": lambda: _model(_functional),
        "subclassed with layers in lists and dicts": lambda: _model(_subclassed),
        "nested": lambda: _model(_nested),
        "optimizer that stands by itself": _custom_loop,
        "two models, two optimizers": _two_models,
        "variables in dicts and lists": _variables,
        "metric": _metric,
    }
    return kinds if legacy else {**kinds, "seed generator": _seed_generator, "mixed precision": _mixed_precision}


def _keras() -> Any:
    import tensorflow as tf

    return tf.keras


def _data() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    return random.normal(size=(16, 4)).astype("float32"), random.normal(size=(16, 1)).astype("float32")


def _sequential() -> Any:
    keras = _keras()
    layers = [keras.layers.Dense(5), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    if os.environ.get("TF_USE_LEGACY_KERAS") != "1":  # tf_keras uses a separate generator that cannot be seeded
        layers.insert(1, keras.layers.Dropout(0.5))
    return keras.Sequential([keras.Input((4,)), *layers])


def _functional() -> Any:
    keras = _keras()
    entry, shared = keras.Input((4,)), keras.layers.Dense(4)
    return keras.Model(entry, keras.layers.Dense(1)(shared(shared(entry))))


def _subclassed() -> Any:
    keras = _keras()

    class Net(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [keras.layers.Dense(4), keras.layers.Dense(3)]
            self.heads = {"one": keras.layers.Dense(1), "other": keras.layers.Dense(1)}

        def call(self, values: Any) -> Any:
            for block in self.blocks:
                values = block(values)
            return self.heads["one"](values) + self.heads["other"](values)

    model = Net()
    model(_data()[0])
    return model


def _nested() -> Any:
    keras = _keras()
    return keras.Sequential([keras.Input((4,)), _functional(), keras.layers.Dense(1)])


def _model(build: Callable[[], Any]) -> Made:
    model = build()
    model.compile(_keras().optimizers.Adam(0.05), "mse", metrics=["mae"])
    x, y = _data()

    def step() -> float:
        model.train_on_batch(x, y)
        return float(model(x).numpy().sum())

    return {"model": model}, step


def _descend(model: Any, optimizer: Any) -> float:
    import tensorflow as tf

    x, y = _data()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return float(loss)


def _custom_loop() -> Made:
    model, optimizer = _sequential(), _keras().optimizers.SGD(0.05, momentum=0.9)
    return {"model": model, "optimizer": optimizer}, lambda: _descend(model, optimizer)


def _two_models() -> Made:
    models = [_functional(), _sequential()]
    steps = [_keras().optimizers.Adam(0.05) for _ in models]
    for model, optimizer in zip(models, steps, strict=True):
        optimizer.build(model.trainable_variables)
    return {"models": models, "optimizers": dict(zip("ab", steps, strict=True))}, lambda: sum(
        _descend(model, optimizer) for model, optimizer in zip(models, steps, strict=True)
    )


def _variables() -> Made:
    import tensorflow as tf

    first, second = tf.Variable(tf.random.normal([3])), tf.Variable(1, dtype=tf.int64)
    half = tf.Variable(tf.cast(1, tf.bfloat16))

    def step() -> float:
        first.assign(first * 0.9 + 1)
        second.assign_add(1)
        half.assign_add(half)
        return float(tf.reduce_sum(first)) * int(second) * float(half)

    return {"weights": {"a": first, "more": [second, (first,)]}, "alone": second, "half": half}, step


def _metric() -> Made:
    metric = _keras().metrics.Mean()

    def step() -> float:
        metric.update_state([float(metric.count) + 1])
        return float(metric.result())

    return {"metric": metric}, step


def _seed_generator() -> Made:
    keras = _keras()
    generator = keras.random.SeedGenerator()
    return {"seed": generator}, lambda: float(keras.random.normal([3], seed=generator).numpy().sum())


def _mixed_precision() -> Made:
    keras = _keras()
    layers = [keras.layers.Dense(3, dtype="mixed_float16"), keras.layers.Dense(1, dtype="float32")]
    model = keras.Sequential([keras.Input((4,)), *layers])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.05))
    return {"model": model, "optimizer": optimizer}, lambda: _descend(model, optimizer)


def refusals() -> dict[str, str]:
    """Return values that cannot be committed, and their errors."""
    import tensorflow as tf

    keras = _keras()

    class Unbuilt(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.outer = keras.layers.Dense(1)

    adam = keras.optimizers.Adam
    given: dict[str, dict[str, Any]] = {
        "unbuilt": {"model": keras.Sequential([keras.layers.Dense(1)])},
        "half built": {"model": Unbuilt()},
        "two optimizers": {"model": _functional(), "a": adam(), "b": adam()},
        "optimizer alone": {"optimizer": adam()},
        "mixed": {"values": {"weight": tf.Variable(1.0), "loss": 0.5}},
    }
    return {name: _refused(values) for name, values in given.items()}


def _refused(values: dict[str, Any]) -> str:
    try:
        hopsml.elastic.State(**values)
    except ArgumentError as error:
        return str(error)
    return ""
