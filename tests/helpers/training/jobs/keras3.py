"""Jobs with Keras 3: fit, evaluate, predict, custom loops, mixed precision, callbacks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hopsml
from hopsml.cluster.worker.context import current
from tests.helpers.training.jobs.common import collectives_of, digest
from tests.helpers.training.jobs.own_group import strategy_of

SAMPLES, FEATURES, CLASSES = 37, 6, 3


def training(parts: list[str], plain: bool = False) -> dict[str, Any]:
    """Run the checks without files. ``plain``: the user's own strategy, repaired by the import hook only."""
    return under(_strategy(plain), parts)


def under(strategy: Any, parts: list[str]) -> dict[str, Any]:
    """Run the checks under an existing strategy."""
    jobs = {
        "fit": _fit,
        "uneven": _uneven,
        "several_steps": _several_steps,
        "custom_loop": _custom_loop,
        "collectives": _collectives,
        "arrays": _arrays,
        "orders": _orders,
        "read_once": _read_once,
        "without_call": _without_call,
        "files": _files,
    }
    return {part: jobs[part](strategy) for part in parts}


def _read_once(strategy: Any) -> dict[str, Any]:
    """Return the rows that fit() reads from sources that can be read once, and from a shuffled ``PyDataset``."""
    import random
    import warnings

    import keras
    import numpy as np
    import tensorflow as tf

    seen: list[int] = []

    class Noting(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            tf.numpy_function(lambda rows: seen.extend(rows.ravel().astype(int).tolist()), [data[0]], [])
            return super().train_step(data)

    x = np.arange(48, dtype="float32")[:, None]
    memory = np.zeros(48 * 4 + 64, np.uint8)  # so that TensorFlow shares it
    begin = -memory.ctypes.data % 64
    y = memory[begin : begin + 48 * 4].view(np.float32)[:, None]

    def batches() -> Any:
        return ((x[at : at + 8], y[at : at + 8]) for at in range(0, 48, 8))

    def stream() -> Any:
        source = batches()
        kinds = (tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1]))
        return tf.data.Dataset.from_generator(lambda: source, output_signature=kinds)

    class Rows(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> Any:
            return x[number * 8 : number * 8 + 8], y[number * 8 : number * 8 + 8]

    found: dict[str, Any] = {}
    warned: dict[str, list[str]] = {}
    random.seed(os.getpid())  # each worker's own
    for name, data, options in (
        ("generator", batches(), {"steps_per_epoch": 3, "epochs": 2}),
        ("stream", stream(), {"steps_per_epoch": 3, "epochs": 2}),
        ("threads", Rows(workers=2), {"epochs": 1}),
        ("shuffled", Rows(), {"epochs": 1}),
        ("unknown length", stream(), {"epochs": 1}),
    ):
        with strategy.scope():
            model = Noting([keras.layers.Input((1,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(1e-4), "mse", jit_compile=False)
        seen.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(data, verbose=0, **options)
        found[name] = list(seen)
        warned[name] = [str(one.message) for one in caught if "ran out of data" in str(one.message)]
    return {**found, "targets": bool((y == 0).all()), "warned": warned}


def _without_call(strategy: Any) -> list[Any]:
    """Return weights of a model with sub-models, a custom step and no ``call``; each worker initialises it randomly."""
    import keras
    import numpy as np
    import tensorflow as tf

    class Gan(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.maker = keras.Sequential([keras.layers.Dense(3)])  # is built by the step
            self.seen = keras.metrics.Mean("seen")

        def train_step(self, real: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.maker(real[:, :2]) - real) ** 2) / strategy.num_replicas_in_sync
            gradients = tape.gradient(loss, self.maker.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.maker.trainable_variables, strict=True))
            self.seen.update_state(loss)
            return {"seen": self.seen.result()}

    keras.utils.set_random_seed(os.getpid())
    with strategy.scope():
        model = Gan()
        model.compile(keras.optimizers.SGD(0.1))
    model.fit(np.random.default_rng(1).normal(size=(16, 3)).astype("float32"), batch_size=8, epochs=2, verbose=0)
    return [one.tolist() for one in model.maker.get_weights()]


def _strategy(plain: bool) -> Any:
    if not plain:
        return hopsml.tensorflow.strategy()
    from hopsml.training.tensorflow.setup import install_import_hook

    install_import_hook(current())
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()


def _data(samples: int = SAMPLES) -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(3)
    x = random.normal(size=(samples, FEATURES)).astype("float32")
    return x, (x @ random.normal(size=(FEATURES, CLASSES))).argmax(1)


def _dataset(samples: int, batch: int, shuffle: bool = True) -> Any:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(_data(samples))
    dataset = dataset.shuffle(samples, seed=5) if shuffle else dataset
    return dataset.batch(batch)


def _model(strategy: Any, normalise: bool = True, **compile_options: Any) -> Any:
    import keras

    keras.utils.set_random_seed(11)
    with strategy.scope():
        layers = [keras.layers.Input((FEATURES,)), keras.layers.Dense(8, activation="relu")]
        layers += [keras.layers.BatchNormalization()] if normalise else []
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES)])
        model.compile(
            optimizer=keras.optimizers.Adam(0.02),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **compile_options,
        )
    return model


def _fit(strategy: Any) -> dict[str, Any]:
    """Fit; without batch normalisation the curve at one global batch does not depend on the number of workers."""
    model = _model(strategy, normalise=False)
    history = model.fit(_dataset(48, 16), epochs=3, validation_data=_dataset(SAMPLES, 16), verbose=0)
    return {"history": history.history, "weights": digest(model.get_weights())}


def _uneven(strategy: Any) -> dict[str, Any]:
    """Fit 33 samples in batches of 16: the last batch is one sample, so that one of two workers has none."""
    import numpy as np

    model = _model(strategy)
    model.fit(_dataset(33, 16), epochs=2, verbose=0)
    x, y = _data(33)
    loss, accuracy = model.evaluate(_dataset(33, 16, shuffle=False), verbose=0)
    predicted = model.predict(x, batch_size=16, verbose=0)
    direct = np.asarray(model(x, training=False))
    logits = direct - direct.max(1, keepdims=True)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(33), y]
    return {
        "weights": digest(model.get_weights()),
        "finite": bool(all(np.isfinite(weight).all() for weight in model.get_weights())),
        "loss": [loss, float(losses.mean())],
        "accuracy": [accuracy, float((direct.argmax(1) == y).mean())],
        "predict_error": float(np.abs(predicted - direct).max()),
        "predict_shape": list(predicted.shape),
    }


def _several_steps(strategy: Any) -> dict[str, Any]:
    model = _model(strategy, steps_per_execution=3)
    history = model.fit(_dataset(96, 16), epochs=2, verbose=0)
    return {"losses": history.history["loss"], "weights": digest(model.get_weights())}


def _custom_loop(strategy: Any) -> dict[str, Any]:
    """Train twice: the model called in the step itself, and in a separate tf.function."""
    import keras
    import tensorflow as tf

    results = {}
    for name in ("direct", "nested"):
        model = _model(strategy)
        forward = model if name == "direct" else tf.function(lambda x, model=model: model(x, training=True))

        def step(batch: Any, model: Any = model, forward: Any = forward) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                logits = forward(x) if forward is not model else model(x, training=True)
                losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=16)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        run = tf.function(lambda batch, step=step: strategy.run(step, args=(batch,)))
        losses = [
            float(strategy.reduce("SUM", run(batch), axis=None))
            for _ in range(3)
            for batch in strategy.experimental_distribute_dataset(_dataset(48, 16))
        ]
        results[name] = {
            "losses": losses,
            "weights": digest(model.get_weights()),
            "moving_mean": [float(v) for v in model.layers[1].moving_mean.numpy()],
        }
    return results


def _collectives(strategy: Any) -> dict[str, int]:
    """Count the collectives of one training step: gradients, statistics and logs, one each."""
    model = _model(strategy)
    return collectives_of(lambda: model.fit(_dataset(16, 16), epochs=1, verbose=0))


def _arrays(strategy: Any) -> dict[str, Any]:
    """Return this worker's share of one epoch of a shuffled array; no seed is set."""
    import numpy as np
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TFEpochIterator
    from tensorflow.python.eager import context

    tf.random.set_seed(None)
    iterator = TFEpochIterator(
        x=np.arange(40), batch_size=8, shuffle=True, distribute_strategy=strategy, steps_per_epoch=None
    )
    iterator.reset()
    mine: list[int] = []
    with iterator.catch_stop_iteration():
        for _, _, batches in iterator:
            local = strategy.experimental_local_results(next(batches))[0]
            mine += tf.nest.flatten(local)[0].numpy().tolist()
    return {"share": mine, "seed": context.global_seed()}


def _orders(strategy: Any) -> dict[str, Any]:
    """Return this worker's samples by epoch of an array shuffled by ``fit``: without a seed, then with one."""
    import keras
    import numpy as np
    import tensorflow as tf

    orders: list[list[list[int]]] = []

    class Recording(keras.Sequential):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            tf.numpy_function(lambda x: orders[-1][-1].extend(x[:, 0].astype(int).tolist()), [data[0]], [])
            return super().train_step(data)

    before_epoch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: orders[-1].append([]))
    for seed in (None, None, 5):
        with strategy.scope():
            model = Recording([keras.layers.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=False)
        tf.random.set_seed(seed)
        orders.append([])
        x = np.arange(40, dtype="float32")[:, None]
        model.fit(x, x * 0, batch_size=8, epochs=3, verbose=0, callbacks=[before_epoch])
    return {"orders": orders}


def _files(strategy: Any) -> dict[str, Any]:
    """Return the differences between Keras's files and ours, of a trained model and of one with many features."""
    import keras
    import numpy as np

    from hopsml.training.tensorflow.keras import saving
    from tests.helpers import keras_content

    @keras.saving.register_keras_serializable("tests")
    class Own(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def save_own_variables(self, store: Any) -> None:
            store["scalar"], store["seven"], store["one/two"] = 3.5, np.arange(7, dtype="int8"), np.zeros((0, 2))

        def load_own_variables(self, store: Any) -> None:
            assert store["scalar"] == 3.5

        def call(self, inputs: Any) -> Any:
            return inputs

    trained = _model(strategy)
    trained.fit(_dataset(33, 16), epochs=1, verbose=0)
    words = keras.Input((1,), dtype="string")
    lookup = keras.layers.StringLookup()
    lookup.adapt(np.array(["ä", "b", "b"]))
    half = keras.layers.Dense(2, dtype="bfloat16")(Own()(keras.layers.Embedding(9, 3)(lookup(words))))
    sorts = keras.Model(words, keras.layers.Dropout(0.5, seed=1)(half))
    differ, found = [], 0
    for model in (trained, sorts):
        for name in ("model.keras", "model.weights.h5"):
            theirs, ours = (current().work_dir / f"{whose}-{name}" for whose in ("theirs", "ours"))  # type: ignore[union-attr]
            (model.save if name == "model.keras" else model.save_weights)(theirs)
            saving.write_model(str(ours), saving.read_model(model, name == "model.keras"))
            expected, got = keras_content.of(theirs), keras_content.of(ours)
            differ += [key for key in expected.keys() | got.keys() if expected.get(key) != got.get(key)]
            found += len(got)
    loaded = keras.models.load_model(ours.with_name("ours-model.keras"))
    same = digest(loaded.get_weights()) == digest(sorts.get_weights())
    return {"differ": differ, "found": found, "same": same, "word": int(loaded.layers[1](np.array(["ä"]))[0])}


def size_of_shuffled() -> dict[str, Any]:
    """Return the size in bytes of the graphs of a dataset of shuffled arrays of a megabyte."""
    import numpy as np
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    from hopsml.training.tensorflow.fit import input_data

    x = np.ones((1 << 10, 1 << 8), "float32")
    waiting, sizes = [input_data.shuffled_dataset(ArrayDataAdapter(x, batch_size=8, shuffle=True))], [0]
    while waiting:
        one = waiting.pop()
        waiting.extend(one._inputs())
        sizes += [function.function.graph.as_graph_def().ByteSize() for function in one._functions()]
    return {"largest": max(sizes), "functions": len(sizes) - 1}


def mixed_precision() -> dict[str, Any]:
    """Run ``overflow`` under a strategy."""
    return overflow(hopsml.tensorflow.strategy())


def overflow(strategy: Any) -> dict[str, Any]:
    """Overflow a gradient on one rank with float16 and a loss scale: all ranks must skip that step."""
    import keras
    import numpy as np
    import tensorflow as tf

    keras.mixed_precision.set_global_policy("mixed_float16")
    model = _model(strategy)
    keras.mixed_precision.set_global_policy("float32")
    scales, weights = [], []
    x, y = _data(16)
    half = slice(0, 8) if strategy.cluster_resolver.task_id == 0 else slice(8, 16)
    for spoiled in (False, True, False):
        mine = x[half].copy()
        if spoiled and strategy.cluster_resolver.task_id == 1:
            mine[0, 0] = np.inf
        dataset = tf.data.Dataset.from_tensors((mine, y[half]))
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        model.fit(dataset.with_options(options), epochs=1, verbose=0)
        scales.append(float(model.optimizer.dynamic_scale.numpy()))
        weights.append(digest(model.trainable_variables))
    return {"scales": scales, "weights": weights}


def callbacks(epochs: int, kind: str = "tensorflow") -> dict[str, Any]:
    """Run Keras's callbacks with equal paths on every rank; only the chief saves the model at the end."""
    import keras

    strategy = strategy_of(kind)
    shared = Path(current().run_url) / "shared"  # type: ignore[union-attr]
    own = str(current().work_dir / "own" / "{epoch}.weights.h5")  # type: ignore[union-attr]
    model = _model(strategy)
    seen: list[int] = []
    model.fit(
        _dataset(48, 16),
        epochs=epochs,
        verbose=0,
        callbacks=[
            keras.callbacks.BackupAndRestore(str(shared / "backup"), delete_checkpoint=False),
            keras.callbacks.ModelCheckpoint(str(shared / "best-{epoch}.keras")),
            keras.callbacks.ModelCheckpoint(own, save_weights_only=True),
            keras.callbacks.TensorBoard(str(shared / "board")),
            keras.callbacks.CSVLogger(str(shared / "log.csv")),
            keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch)),
        ],
    )
    if current().is_chief:  # type: ignore[union-attr]
        model.save(shared / "model.keras")
    model.load_weights(own.format(epoch=epochs))  # in the worker's folder: on each rank
    weights, further = digest(model.get_weights()), list[int]()
    again = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: further.append(epoch))
    model.fit(_dataset(48, 16), epochs=1, verbose=0, callbacks=[again])
    return {"epochs": seen, "weights": weights, "further": further, "pid": os.getpid()}
