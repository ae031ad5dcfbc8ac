"""Jobs with a ``fit`` that is interrupted and continued by another process, and the same without interruption."""

from __future__ import annotations

import dataclasses
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hopsml
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.cluster.shared.spec import ElasticGroup, FixedGroup, RunSpec
from hopsml.cluster.worker.context import CommitPort, current, set_current
from hopsml.errors import ArgumentError
from hopsml.training.elastic import reconfiguration
from hopsml.training.tensorflow import state_variables
from hopsml.training.tensorflow.fit import elastic_fit, input_data
from tests.helpers.training.jobs.common import digest

SAMPLES, BATCH, EPOCHS = 17, 5, 3


class BrokenOff(Exception):
    """Exception that simulates the death of the process."""


def interrupted(slots: str) -> dict[str, Any]:
    """Return weights and history for each kind of data, undisturbed and interrupted."""
    strategy = hopsml.tensorflow.strategy()
    return {
        name: [_train(fit, strategy, Path(slots, f"{name} {at}"), at) for at in (0, 5)]
        for name, fit in _kinds().items()
    }


def second_optimizer(slots: str) -> dict[str, Any]:
    """Do the same with a model whose step uses a separate optimizer that it builds."""
    strategy = hopsml.tensorflow.strategy()

    def fit(model: Any, callbacks: list[Any]) -> Any:
        return model.fit(*_arrays(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)

    undisturbed, broken_off = [_train(fit, strategy, Path(slots, str(at)), at, _with_own_optimizer) for at in (0, 5)]
    return {"undisturbed": undisturbed, "broken_off": broken_off}


def _with_own_optimizer() -> Any:
    import keras
    import tensorflow as tf

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.own = keras.optimizers.Adam(0.05)

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs)

        def train_step(self, data: Any) -> Any:
            variables = self.inner.trainable_variables
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.inner(data[0]) - data[1]) ** 2)
            self.own.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    model = Own()
    model.compile()
    return model


def _sequential() -> Any:
    import keras

    layers = [
        keras.layers.Dense(6, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def _train(
    fit: Callable[..., Any], strategy: Any, folder: Path, at: int, build: Callable[[], Any] = _sequential
) -> list[Any]:
    """Interrupt after so many batches, 0: never; then continue from the newest commit."""
    slots, announced = CommitSlots.create(folder), []
    if at:
        _join(CommitPort(slots, -1, announced.append))
        try:
            _call(fit, strategy, at, build)
        except BrokenOff:
            hopsml.training.elastic.commits.writer_of(current().commits).wait_written()
        else:
            raise AssertionError("it was not broken off")
    _join(CommitPort(slots, announced[-1].slot if announced else -1, lambda *what: None))
    return _call(fit, strategy, 0, build)


def _join(port: CommitPort) -> None:
    set_current(dataclasses.replace(current(), commits=port))


def _call(fit: Callable[..., Any], strategy: Any, at: int, build: Callable[[], Any] = _sequential) -> list[Any]:
    import keras

    elastic_fit._fits = elastic_fit._batches = 0  # another process
    keras.utils.set_random_seed(1)
    done = 0

    class Break(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            nonlocal done
            done += self.model.steps_per_execution
            if done == at:
                raise BrokenOff

    with strategy.scope():
        model = build()
    history = fit(model, [*hopsml.tensorflow.callbacks(checkpoint_every_steps=1), Break()])
    return [digest(model.get_weights()), len(history.history["loss"]), history.history["loss"][-1], done]


def _arrays() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    return random.normal(size=(SAMPLES, 4)).astype("float32"), random.normal(size=(SAMPLES, 1)).astype("float32")


def _dataset() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(_arrays()).shuffle(SAMPLES, seed=3).batch(BATCH)


def _kinds() -> dict[str, Callable[[Any, list[Any]], Any]]:
    def arrays(model: Any, callbacks: list[Any]) -> Any:
        x, y = _arrays()
        return model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks, validation_split=0.1)

    def dataset(model: Any, callbacks: list[Any]) -> Any:
        return model.fit(_dataset(), epochs=EPOCHS, verbose=0, callbacks=callbacks)

    def of_unknown_length(model: Any, callbacks: list[Any]) -> Any:
        return model.fit(_dataset().filter(lambda x, y: True), epochs=EPOCHS, verbose=0, callbacks=callbacks)

    def stream(model: Any, callbacks: list[Any]) -> Any:
        return model.fit(_dataset().repeat(), steps_per_epoch=3, epochs=EPOCHS, verbose=0, callbacks=callbacks)

    def two_fits(model: Any, callbacks: list[Any]) -> Any:
        x, y = _arrays()
        breaks = callbacks[-1]
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=callbacks)
        again = [*hopsml.tensorflow.callbacks(checkpoint_every_steps=1), breaks]
        return model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=again)

    def in_order(model: Any, callbacks: list[Any]) -> Any:
        return model.fit(_in_order(), epochs=EPOCHS, verbose=0, callbacks=callbacks)

    def stream_in_order(model: Any, callbacks: list[Any]) -> Any:
        return model.fit(_in_order().repeat(), steps_per_epoch=3, epochs=EPOCHS, verbose=0, callbacks=callbacks)

    kinds = {"arrays": arrays, "dataset": dataset, "unknown": of_unknown_length, "stream": stream, "two fits": two_fits}
    return {**kinds, "in order": in_order, "stream in order": stream_in_order}


def _in_order() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(_arrays()).batch(BATCH)


def newcomer(slots: str) -> dict[str, Any]:
    """Return a newcomer's own random values for each kind of data, and its state of Keras's callbacks."""
    strategy = hopsml.tensorflow.strategy()
    import keras

    _join(CommitPort(CommitSlots.create(Path(slots)), -1, lambda *what: None))
    found: dict[str, Any] = {}

    class Draw(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1 and name not in found:
                feed = next(one for one in self.companions if isinstance(one, elastic_fit.ElasticCallback))._feed
                before, total = feed.position.position(), feed.total
                rows = [len(strategy.experimental_local_results(one[0])[0]) for one in feed.tracing_iterator()]
                assert feed.position.position() == before and feed.total == total
                found[name] = [rows, feed.fixed]
                self.model.stop_training = True

        def set_companions(self, callbacks: Any) -> None:
            self.companions = callbacks

    for name, fit in _kinds().items():
        if "stream" not in name:
            with strategy.scope():
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            fit(model, [*hopsml.tensorflow.callbacks(), Draw()])
    return {"drawn": found, "given": _given(strategy), "tuned": _tuned(strategy), "adopted": _adopted()}


def _tuned(strategy: Any) -> list[bool]:
    """Return whether TensorFlow tunes a distributed dataset while it runs, in a fixed and in an elastic group.

    Of each device it makes an iterator over another dataset, which it would tune, too.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    found, fixed, iterate = [], current(), dataset_ops.DatasetV2.__iter__
    for group in (FixedGroup(2), ElasticGroup(2)):
        set_current(dataclasses.replace(fixed, spec=RunSpec(group=group)))
        tuned = [input_data.disable_autotuning(tf.data.Dataset.range(3)).options().autotune.enabled is not False]

        def noted(dataset: Any, tuned: list[bool] = tuned) -> Any:
            tuned.append(dataset.options().autotune.enabled is not False)
            return iterate(dataset)

        dataset_ops.DatasetV2.__iter__ = noted
        iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))
        dataset_ops.DatasetV2.__iter__ = iterate
        assert len(tuned) > 1 and len(set(tuned)) == 1, tuned
        found.append(tuned[0])
    set_current(fixed)
    return found


def _adopted() -> list[bool]:
    """Return memory and content of arrays that a variable may adopt, aligned and unaligned."""
    import numpy as np
    import tensorflow as tf

    found = []
    for size, offset in ((1 << 20, 0), (1 << 20, 4), (16, 0)):
        memory = reconfiguration.allocate_buffer(4 << 20)
        array = memory[offset : offset + 4 * size].view(np.float32)
        array[:] = 3.0
        variable = tf.Variable(tf.zeros(size))
        state_variables.assign({"v": variable}, {"v": array}, adopts=True)
        same = np.asarray(variable.read_value()).ctypes.data == array.ctypes.data
        del memory, array
        gc.collect()
        variable.assign_add(tf.ones(size))
        found.append([same, bool(np.all(variable.numpy() == 4.0))])
    return found


def _given(strategy: Any) -> list[Any]:
    import keras

    def callbacks() -> list[Any]:
        stopping = keras.callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)
        return [keras.callbacks.History(), stopping, keras.callbacks.ReduceLROnPlateau("loss", mode="max", patience=9)]

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    theirs, mine = callbacks(), callbacks()
    x, y = _arrays()
    model.fit(x, y, epochs=4, verbose=0, callbacks=theirs)
    elastic_fit.restore_counters(mine, pickle.loads(pickle.dumps(elastic_fit.read_counters(theirs))))
    stopping, plateau = mine[1:]
    return [
        stopping.wait,
        plateau.wait,
        stopping.best == theirs[1].best,
        len(stopping.best_weights),
        mine[0].history == {},
    ]


def together(slots: str) -> dict[str, Any]:
    """Train two workers, or one, on unevenly divisible batches; plain gradient descent shows every difference."""
    strategy = hopsml.tensorflow.strategy()
    import keras

    _join(CommitPort(CommitSlots.create(Path(slots, str(current().rank))), -1, lambda *what: None))
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    x, y = _arrays()
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=hopsml.tensorflow.callbacks())
    return {"weights": [float(value) for array in model.get_weights() for value in array.ravel()]}


def shapes(slots: str) -> dict[str, Any]:
    """Train models with a loss per position, and with custom steps."""
    strategy = hopsml.tensorflow.strategy()
    import keras
    import numpy as np

    _join(CommitPort(CommitSlots.create(Path(slots, str(current().rank))), -1, lambda *what: None))
    random = np.random.default_rng(0)
    words = random.integers(0, 9, (SAMPLES, 7))

    class Own(keras.Sequential):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    found = {}
    for kind in (keras.Sequential, Own):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = kind([keras.Input((7,)), keras.layers.Embedding(9, 4), keras.layers.Dense(9)])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(1.0), loss)
        before = [float(value) for array in model.get_weights() for value in array.ravel()]
        model.fit(words, words, batch_size=BATCH, epochs=1, verbose=0, callbacks=hopsml.tensorflow.callbacks())
        weights = [float(value) for array in model.get_weights() for value in array.ravel()]
        found[kind.__name__] = {"weights": weights, "moved": before != weights}
    return found


def epoch_notifications(slots: str) -> dict[str, Any]:
    """Return the epochs that a ``PyDataset`` is notified of, as by Keras itself."""
    hopsml.tensorflow.strategy()
    import keras
    import numpy as np

    _join(CommitPort(CommitSlots.create(Path(slots)), -1, lambda *what: None))
    events: list[str] = []

    class Data(keras.utils.PyDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return np.ones((4, 4), np.float32), np.ones((4, 1), np.float32)

        def on_epoch_begin(self) -> None:
            events.append("begin")

        def on_epoch_end(self) -> None:
            events.append("end")

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(Data(), epochs=3, shuffle=False, verbose=0, callbacks=hopsml.tensorflow.callbacks())
    return {"events": events}


def linear(slots: str) -> dict[str, Any]:
    """Return the learning rates of a group of two with linear scaling."""
    strategy = hopsml.tensorflow.strategy()
    import keras

    _join(CommitPort(CommitSlots.create(Path(slots, str(current().rank))), -1, lambda *what: None))
    rates: list[float] = []

    class Rates(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = _arrays()
    callbacks = [*hopsml.tensorflow.callbacks(scaling="linear"), Rates()]
    model.fit(x[:16], y[:16], batch_size=4, epochs=12, verbose=0, callbacks=callbacks)
    return {"rates": rates}


def refusals(slots: str) -> dict[str, str]:
    """Return the errors for data without a restorable position."""
    strategy = hopsml.tensorflow.strategy()
    import keras
    import tensorflow as tf

    _join(CommitPort(CommitSlots.create(Path(slots)), -1, lambda *what: None))
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = _arrays()
    unseeded = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9).batch(4)
    calls: dict[str, Callable[[], Any]] = {
        "unseeded": lambda: model.fit(unseeded, verbose=0, callbacks=hopsml.tensorflow.callbacks()),
        "steps": lambda: model.fit(x, y, steps_per_epoch=2, verbose=0, callbacks=hopsml.tensorflow.callbacks()),
        "linear": lambda: model.fit(_dataset(), verbose=0, callbacks=hopsml.tensorflow.callbacks(scaling="linear")),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except ArgumentError as error:
            found[name] = str(error)
    return found
