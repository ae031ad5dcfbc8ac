"""Features of Keras 3, as small trainings on the same global batches."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hopsml
from hopsml import experiment
from tools.features.table import Feature, Values

IMPLEMENTATIONS = ("hopsml", "tensorflow")
ROWS, WIDTH, BATCH = 24, 3, 8
_NEEDS_HOPSMLS = "implementation='hopsml'"  # the remedy that errors of merge_call name


def launch(play: Callable[..., Any], args: dict[str, Any], workers: int, implementation: str) -> Any:
    """Run ``play`` on ``workers`` workers, and return the chief's value."""
    options: dict[str, Any] = {"implementation": implementation or "hopsml"}
    return experiment.collective_all_reduce(
        play, args=args, num_workers=workers, progress=False, name="features of Keras", **options
    ).value


# ------------------------------------------------------------------------------------------ parts of trainings


@functools.cache
def _strategy() -> Any:
    return hopsml.tensorflow.strategy()


def begin() -> None:
    """Build one strategy for all cases of the process, before any other use of TensorFlow."""
    _strategy()


def _in_group() -> bool:
    return hopsml.distributed.world_size() > 1


def _arrays(rows: int = ROWS) -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(3).normal(size=(rows, WIDTH)).astype("float32")
    return x, (x.sum(1, keepdims=True) * 3 + 5).astype("float32")


def _labelled(classes: int = 3) -> tuple[Any, Any]:
    x, _ = _arrays()
    return x, x.argmax(1) % classes


def _words() -> tuple[Any, Any]:
    """Return rows of word ids; the first ids occur several times in each batch, the last ones never."""
    import numpy as np

    x = np.random.default_rng(4).integers(0, 6, size=(ROWS, 4))
    return x, x.sum(1, keepdims=True).astype("float32")


def _dense() -> Any:
    import keras

    return keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])


def _classifier() -> Any:
    import keras

    return keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(3, "softmax")])


def _embedding() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [layers.Input((4,), dtype="int32"), layers.Embedding(9, 3), layers.Flatten(), layers.Dense(1)]
    )


def _sgd(**options: Any) -> Callable[[], Any]:
    return _optimizer("SGD", learning_rate=0.05, **options)


def _optimizer(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        return getattr(keras.optimizers, name)(**options)

    return make


def _compiled(build: Callable[[], Any], optimizer: Callable[[], Any], loss: Any = "mse", **options: Any) -> Any:
    import keras

    keras.utils.set_random_seed(7)
    with _strategy().scope():
        model = build()
        model.compile(optimizer(), loss() if callable(loss) else loss, **options)
    return model


def _fit(
    build: Callable[[], Any] = _dense,
    optimizer: Callable[[], Any] | None = None,
    data: Callable[[], Any] = _arrays,
    *,
    loss: Any = "mse",
    compiled: dict[str, Any] | None = None,
    **options: Any,
) -> Values:
    """Train by ``fit``, two epochs unless ``options`` set their number; return weights, history and number of updates."""
    model = _compiled(build, optimizer or _sgd(), loss, **(compiled or {}))
    return _fitted(model, data(), **options)


def _fitted(model: Any, data: Any, **options: Any) -> Values:
    given = data if isinstance(data, tuple) else (data,)
    arrays = isinstance(data, tuple)
    options = {"epochs": 2, "verbose": 0, **({"batch_size": BATCH, "shuffle": False} if arrays else {}), **options}
    history = model.fit(*given, **options).history
    return {"weights": _weights(model), "history": _numbers(history), "steps": int(model.optimizer.iterations.numpy())}


def _weights(model: Any) -> list[Any]:
    return [one.tolist() for one in model.get_weights()]


def _numbers(values: Any) -> Any:
    import numpy as np

    return {name: [np.asarray(one).tolist() for one in column] for name, column in values.items()}


Play = Callable[[], Values]


def _fits(*arguments: Any, **options: Any) -> Play:
    return functools.partial(_fit, *arguments, **options)


# ------------------------------------------------------------------------------------------ schedules, averages, layers


def _schedule(name: str, *arguments: Any, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        schedule = getattr(keras.optimizers.schedules, name)(*arguments, **options)
        return keras.optimizers.SGD(schedule)

    return make


def _layers(*make: Callable[[Any], Any], width: tuple[int, ...] = (WIDTH,)) -> Callable[[], Any]:
    """Return a sequential model of the layers that these functions create from ``keras.layers``, with one output."""

    def build() -> Any:
        import keras

        return keras.Sequential(
            [keras.layers.Input(width), *(one(keras.layers) for one in make), keras.layers.Dense(1)]
        )

    return build


def _images() -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(5).normal(size=(ROWS, 6, 6, 2)).astype("float32")
    return x, x.sum((1, 2, 3))[:, None]


def _sequences() -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(5).normal(size=(ROWS, 5, 2)).astype("float32")
    return x, x.sum((1, 2))[:, None]


def _attention() -> Any:
    import keras

    given = keras.Input((5, 2))
    attended = keras.layers.MultiHeadAttention(2, 4)(given, given)
    return keras.Model(given, keras.layers.Dense(1)(keras.layers.Flatten()(attended)))


def _regularised() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((WIDTH,)),
            keras.layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1"),
            keras.layers.Dense(1, kernel_constraint=keras.constraints.MaxNorm(0.5)),
        ]
    )


def _with_add_loss() -> Any:
    import keras

    class Penalty(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            self.add_loss(keras.ops.mean(inputs**2) * 0.1)
            return inputs

    return keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(4), Penalty(), keras.layers.Dense(1)])


def _two_outputs() -> Any:
    import keras

    given = keras.Input((WIDTH,))
    inner = keras.layers.Dense(4, "tanh")(given)
    return keras.Model(given, [keras.layers.Dense(1, name="a")(inner), keras.layers.Dense(1, name="b")(inner)])


def _for_two_outputs() -> tuple[Any, Any]:
    x, y = _arrays()
    return x, [y, -y]


def _two_inputs() -> Any:
    import keras

    first, second = keras.Input((WIDTH,), name="first"), keras.Input((1,), name="second")
    return keras.Model(
        {"first": first, "second": second}, keras.layers.Dense(1)(keras.layers.Concatenate()([first, second]))
    )


def _for_two_inputs() -> tuple[Any, Any]:
    x, y = _arrays()
    return {"first": x, "second": y * 0.1}, y


# ------------------------------------------------------------------------------------------ data


def _batches(rows: int = ROWS, batch: int = BATCH) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(_arrays(rows)).batch(batch)


def _shuffled_batches() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(_arrays()).shuffle(ROWS, seed=5).batch(BATCH)


def _generator(batches: int = 6) -> Iterator[tuple[Any, Any]]:
    x, y = _arrays(batches * BATCH)
    for number in range(batches):
        chosen = slice(number * BATCH, (number + 1) * BATCH)
        yield x[chosen], y[chosen]


def _stream() -> Any:
    """Return a dataset over a source that can be read once."""
    import tensorflow as tf

    source = _generator()
    kind = tf.TensorSpec([None, WIDTH], tf.float32), tf.TensorSpec([None, 1], tf.float32)
    return tf.data.Dataset.from_generator(lambda: source, output_signature=kind)


def _py_dataset(**options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        x, y = _arrays()

        class Rows(keras.utils.PyDataset):  # type: ignore[misc]
            def __len__(self) -> int:
                return ROWS // BATCH

            def __getitem__(self, number: int) -> tuple[Any, Any]:
                chosen = slice(number * BATCH, (number + 1) * BATCH)
                return x[chosen], y[chosen]

        return Rows(**options)

    return make


def _rows_seen(options: dict[str, Any]) -> Values:
    """Return the ids of the rows used by all workers in three epochs, with a different seed on each worker."""
    import keras
    import numpy as np
    import tensorflow as tf

    seen: list[int] = []

    class Rows(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, number: int) -> tuple[Any, Any]:
            return np.arange(number * 4.0, number * 4 + 4, dtype="float32")[:, None], np.zeros((4, 1), "float32")

    class Noting(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            noted = tf.numpy_function(lambda rows: seen.extend(rows.ravel().astype(int).tolist()), [data[0]], [])
            with tf.control_dependencies([noted] if noted is not None else []):
                return super().train_step(data)

    def build() -> Any:
        return Noting([keras.layers.Input((1,)), keras.layers.Dense(1)])

    model = _compiled(build, _optimizer("SGD", learning_rate=0.0001))
    keras.utils.set_random_seed(7 + hopsml.distributed.rank())
    epochs = []
    for _ in range(3):
        model.fit(Rows(**options), epochs=1, verbose=0)
        epochs.append(sorted(row for share in hopsml.distributed.exchange(seen) for row in share))
        seen.clear()
    return {"rows": epochs}


def _torch_loader() -> Any:
    import torch

    x, y = _arrays()
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return torch.utils.data.DataLoader(rows, batch_size=BATCH)


def _frame() -> tuple[Any, Any]:
    import pandas as pd

    x, y = _arrays()
    return pd.DataFrame(x, columns=list("abc")), pd.Series(y[:, 0])


def _tensors() -> tuple[Any, Any]:
    import tensorflow as tf

    x, y = _arrays()
    return tf.constant(x), tf.constant(y)


def _weighted() -> tuple[Any, ...]:
    import numpy as np

    x, y = _arrays()
    return x, y, np.linspace(0.1, 2.0, ROWS).astype("float32")


def _fit_weighted() -> Values:
    x, y, weights = _weighted()
    return _fit(data=lambda: (x, y), sample_weight=weights, compiled={"weighted_metrics": ["mae"]})


def _evaluated() -> Values:
    model = _compiled(_dense, _sgd(), metrics=["mae"])
    x, y = _arrays(22)
    given = {"arrays": model.evaluate(x, y, batch_size=BATCH, verbose=0)}
    given["dataset"] = model.evaluate(_batches(), verbose=0)
    given["generator"] = model.evaluate(_generator(3), steps=3, verbose=0)
    given["two more"] = model.evaluate(_py_dataset(workers=2)(), verbose=0)
    return given


def _predicted() -> Values:
    model = _compiled(_dense, _sgd())
    x, _ = _arrays(22)
    return {
        "arrays": model.predict(x, batch_size=BATCH, verbose=0).tolist(),
        "dataset": model.predict(_batches(), verbose=0).tolist(),
        "generator": model.predict(((x,) for x, _ in _generator(3)), steps=3, verbose=0).tolist(),
        "other": model.predict(_py_dataset(workers=2)(), verbose=0).tolist(),
    }


def _on_batches() -> Values:
    """Call ``train_on_batch`` and similar methods with each worker's share, as Keras does not divide their batches."""
    model = _compiled(_dense, _sgd())
    x, y = _arrays()
    rank, size = hopsml.distributed.rank(), hopsml.distributed.world_size()
    for number in range(3):
        chosen = slice(number * BATCH + rank, (number + 1) * BATCH, size)
        model.train_on_batch(x[chosen], y[chosen])
    return {"weights": _weights(model)}


# ------------------------------------------------------------------------------------------ custom steps


def _own_step() -> Any:
    import keras
    import tensorflow as tf

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(1)
            self.seen = keras.metrics.Mean("loss")

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.seen.update_state(keras.ops.mean((self(x) - y) ** 2))
            return {"loss": self.seen.result()}

    return Own()


def _with_two_optimizers() -> Values:
    import keras
    import tensorflow as tf

    class Two(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = keras.layers.Dense(3), keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.b(self.a(inputs))

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            for layer, optimizer in ((self.a, self.second), (self.b, self.optimizer)):
                found = tape.gradient(loss, layer.trainable_variables)
                optimizer.apply_gradients(zip(found, layer.trainable_variables, strict=True))
            return {"loss": loss}

    def build() -> Any:
        model = Two()
        model.second = keras.optimizers.Adam(0.01, clipnorm=0.5)
        return model

    return {"weights": _fit(build, _sgd())["weights"]}


def _without_call() -> Values:
    """Train a GAN as in Keras's guides: no ``call``, sub-models, two optimizers, a custom ``compile``."""
    import keras
    import tensorflow as tf

    class Gan(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.maker = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(WIDTH)])
            self.critic = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
            self.loss_tracker = keras.metrics.Mean("d_loss")

        @property
        def metrics(self) -> list[Any]:
            return [self.loss_tracker]

        def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
            super().compile()
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

        def train_step(self, data: Any) -> Any:
            real = data[0] if isinstance(data, tuple) else data
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            for sub, optimizer in ((self.critic, self.d_optimizer), (self.maker, self.g_optimizer)):
                with tf.GradientTape() as tape:
                    fake = self.critic(self.maker(real[:, :2]))
                    loss = tf.reduce_mean((fake - self.critic(real) - 1.0) ** 2) / replicas
                found = tape.gradient(loss, sub.trainable_weights)
                optimizer.apply_gradients(zip(found, sub.trainable_weights, strict=True))
            self.loss_tracker.update_state(loss * replicas)
            return {"d_loss": self.loss_tracker.result()}

    keras.utils.set_random_seed(7)
    with _strategy().scope():
        model = Gan()
        model.compile(keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.02))
    x, _ = _arrays()
    history = model.fit(x, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    return {"weights": [_weights(model.maker), _weights(model.critic)], "history": _numbers(history)}


def _of_latents() -> Values:
    """Train a VAE whose ``call`` takes latents, not the data."""
    import keras
    import tensorflow as tf

    class Vae(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(2)])
            self.decoder = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(WIDTH)])
            self.seen = keras.metrics.Mean("loss")

        def call(self, latents: Any) -> Any:
            return self.decoder(latents)

        def train_step(self, data: Any) -> Any:
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.decoder(self.encoder(data)) - data) ** 2) / replicas
            found = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(found, self.trainable_weights, strict=True))
            self.seen.update_state(loss * replicas)
            return {"loss": self.seen.result()}

    x, _ = _arrays()
    model = _compiled(Vae, _sgd(), loss=None)
    return _fitted(model, (x,))


def _own_loop() -> Values:
    """Train by ``strategy.run`` in a custom function, over a distributed dataset."""
    import tensorflow as tf

    strategy, model = _strategy(), _compiled(_dense, _sgd(momentum=0.9, clipnorm=0.3))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - y) ** 2) / BATCH
        found = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def run(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)

    losses = [float(run(batch)) for _ in range(2) for batch in strategy.experimental_distribute_dataset(_batches())]
    return {"losses": losses, "weights": _weights(model)}


def _own_loss() -> Any:
    import keras

    class Own(keras.Sequential):  # type: ignore[misc]
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            return super().compute_loss(x, y, y_pred, sample_weight, training) * 2.0

    return Own([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])


def _thawed() -> Values:
    """Train with a layer that is frozen in one ``fit`` and trained in the next."""
    model = _compiled(_dense, _sgd())
    model.layers[0].trainable = False
    with _strategy().scope():
        model.compile("sgd", "mse")
    first = _fitted(model, _arrays())
    model.layers[0].trainable = True
    with _strategy().scope():
        model.compile("adam", "mse")
    return {"frozen": first, "thawed": _fitted(model, _arrays())}


def _saved_and_loaded() -> Values:
    import keras

    model = _compiled(_dense, _optimizer("Adam"))
    before = _fitted(model, _arrays())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        with _strategy().scope():
            again = keras.models.load_model(path)
    return {"before": before, "after": _fitted(again, _arrays())}


def _adapted() -> Values:
    import keras

    x, y = _arrays()

    def build() -> Any:
        normal = keras.layers.Normalization()
        normal.adapt(x)
        return keras.Sequential([keras.layers.Input((WIDTH,)), normal, keras.layers.Dense(1)])

    return _fit(build, data=lambda: (x, y))


# ------------------------------------------------------------------------------------------ callbacks


def _with_callbacks(*make: Callable[[Any], Any], **options: Any) -> Play:
    """Return a case that trains by ``fit`` with the callbacks that these functions create from ``keras.callbacks``."""

    def run() -> Values:
        import keras

        return _fit(callbacks=[one(keras.callbacks) for one in make], validation_data=_arrays(10), **options)

    return run


def _best_of_checkpoints() -> Values:
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "best.weights.h5"))
        saver = keras.callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True, monitor="loss")
        return _fit(callbacks=[saver], epochs=4)


def _backed_up() -> Values:
    import keras

    with tempfile.TemporaryDirectory() as folder:
        return _fit(callbacks=[keras.callbacks.BackupAndRestore(folder)], epochs=3)


def _batch_logs() -> Values:
    """Return the logs that callbacks receive after each batch."""
    import keras

    seen: list[float] = []
    noted = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(float(logs["loss"])))
    return {**_fit(callbacks=[noted]), "seen": seen}


def _of_hopsml() -> Values:
    return _fit(callbacks=hopsml.tensorflow.callbacks())


def _stopped_early() -> Values:
    import keras

    stopper = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True, min_delta=10.0)
    return _fit(callbacks=[stopper], validation_data=_arrays(10), epochs=8)


# ------------------------------------------------------------------------------------------ settings of the strategy


def _under_settings(
    batches: int = 1, optimizer: Callable[[], Any] | None = None, build: Any = None, **settings: Any
) -> Play:
    """Return a case of ``fit`` under a strategy with settings; one process uses ``batches`` batches as one."""

    def run() -> Values:
        import keras

        strategy = hopsml.tensorflow.strategy(**settings) if _in_group() else _strategy()
        keras.utils.set_random_seed(7)
        with strategy.scope():
            model = (build or _dense)()
            model.compile((optimizer or _sgd())(), "mse")
        x, y = _words() if build is _embedding else _arrays()
        batch = BATCH // 2 if _in_group() else BATCH // 2 * batches
        model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        return {"weights": _weights(model), "steps": int(model.optimizer.iterations.numpy())}

    return run


def _mixed(policy: str, optimizer: Callable[[], Any]) -> Play:
    def run() -> Values:
        import keras

        keras.config.set_dtype_policy(policy)
        try:
            return _fit(_dense, optimizer)
        finally:
            keras.config.set_dtype_policy("float32")

    return run


def _overflowing() -> Values:
    """Train with a step whose gradients overflow on one worker, which all workers must skip."""
    x, y = _arrays()
    x = x.copy()
    x[1] = 3e38
    return _fit(optimizer=_scaled("SGD", learning_rate=0.01), data=lambda: (x, y))


def _scaled(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        inner = getattr(keras.optimizers, name)(**options)
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0, dynamic_growth_steps=2)

    return make


def _losses(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        return getattr(keras.losses, name)(**options)

    return make


def _metrics(
    *make: Callable[[Any], Any], build: Any = _classifier, loss: str = "sparse_categorical_crossentropy"
) -> Play:
    def run() -> Values:
        import keras

        with _strategy().scope():
            metrics = [one(keras.metrics) for one in make]
        data = _labelled if build is _classifier else _arrays
        return _fit(build, data=data, loss=loss, compiled={"metrics": metrics}, validation_split=0.25)

    return run


def _own_metric() -> Values:
    import keras

    class Largest(keras.metrics.Metric):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="total")
            self.total = self.add_variable((), initializer="zeros", name="total")

        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(keras.ops.sum(keras.ops.abs(y)))

        def result(self) -> Any:
            return self.total

    with _strategy().scope():
        metric = Largest()
    return _fit(compiled={"metrics": [metric]})


_CLIPS = {"clipvalue": 0.2, "clipnorm": 0.2, "global_clipnorm": 0.2}


def _clipping() -> Iterator[Feature]:
    for name, value in _CLIPS.items():
        clip = {name: value}
        adam = _optimizer("Adam", learning_rate=0.05, **clip)
        yield Feature(f"SGD with {name}", "clipping", _fits(optimizer=_sgd(**clip)))
        yield Feature(
            f"Adam with {name}, three workers",
            "clipping",
            _fits(optimizer=adam, data=lambda: _arrays(27), batch_size=9),
            workers=3,
        )
        yield Feature(f"sparse gradients with {name}", "clipping", _fits(_embedding, _sgd(**clip), _words))
        yield Feature(
            f"gradient_accumulation_steps=3 with {name}",
            "accumulation",
            _fits(optimizer=_sgd(gradient_accumulation_steps=3, **clip)),
            implementations=("hopsml",),
        )
        yield Feature(
            f"strategy(accumulate=2) with {name}",
            "settings of the strategy",
            _under_settings(2, _sgd(**clip), accumulate=2),
            implementations=("hopsml",),
        )
        yield Feature(
            f"strategy(accumulate=2), sparse, with {name}",
            "settings of the strategy",
            _under_settings(2, _sgd(**clip), _embedding, accumulate=2),
            implementations=("hopsml",),
        )
        yield Feature(
            f"LossScaleOptimizer with {name}",
            "loss scaling",
            _fits(optimizer=_scaled("SGD", learning_rate=0.05, **clip)),
        )
        yield Feature(
            f"strategy(compression='fp16') with {name}",
            "settings of the strategy",
            _under_settings(1, _sgd(**clip), compression="fp16"),
            implementations=("hopsml",),
            relative=1e-2,
            absolute=1e-3,
        )


def _optimizers() -> Iterator[Feature]:
    kinds: dict[str, dict[str, Any]] = {
        "SGD": {}, "Adam": {"amsgrad": True}, "AdamW": {"weight_decay": 0.1}, "Adamax": {}, "Nadam": {},
        "RMSprop": {"centered": True, "momentum": 0.5}, "Adagrad": {}, "Adadelta": {}, "Ftrl": {},
        "Lion": {"learning_rate": 0.001},
        "Lamb": {}, "Adafactor": {}, "Muon": {"learning_rate": 0.01},
    }  # fmt: skip
    for name, options in kinds.items():
        settings: dict[str, Any] = {"learning_rate": 0.05, **options}
        yield Feature(name, "optimizers", _fits(optimizer=_optimizer(name, **settings)))
        if name in ("SGD", "Adam", "Adagrad", "Ftrl", "Nadam"):
            yield Feature(
                f"{name}, sparse", "sparse gradients", _fits(_embedding, _optimizer(name, **settings), _words)
            )
    yield Feature("SGD with Nesterov momentum", "optimizers", _fits(optimizer=_sgd(momentum=0.9, nesterov=True)))
    yield Feature("SGD with weight decay", "optimizers", _fits(optimizer=_sgd(weight_decay=0.1)))
    yield Feature("loss_scale_factor", "loss scaling", _fits(optimizer=_sgd(loss_scale_factor=128.0)))
    yield Feature("LossScaleOptimizer", "loss scaling", _fits(optimizer=_scaled("Adam", learning_rate=0.05)))
    yield Feature("an overflow with one worker", "loss scaling", _overflowing)
    yield Feature("mixed bfloat16", "loss scaling", _mixed("mixed_bfloat16", _sgd()), relative=0.05, absolute=0.05)
    yield Feature("mixed float16", "loss scaling", _mixed("mixed_float16", _sgd()), relative=0.02, absolute=0.02)


def _accumulation() -> Iterator[Feature]:
    of_hopsml: dict[str, Any] = {"implementations": ("hopsml",)}
    tensorflow_only: dict[str, Any] = {
        "expected": "refused",
        "reason": _NEEDS_HOPSMLS,
        "implementations": ("tensorflow",),
    }
    plays: dict[str, tuple[str, Play]] = {
        "gradient_accumulation_steps=2": ("accumulation", _fits(optimizer=_sgd(gradient_accumulation_steps=2))),
        "gradient_accumulation_steps=2, sparse": (
            "accumulation",
            _fits(_embedding, _sgd(gradient_accumulation_steps=2), _words),
        ),
        "gradient_accumulation_steps=2 with Adam and weight decay": (
            "accumulation",
            _fits(optimizer=_optimizer("AdamW", learning_rate=0.05, gradient_accumulation_steps=2)),
        ),
        "gradient_accumulation_steps=2 with an average of weights": (
            "accumulation",
            _fits(optimizer=_sgd(gradient_accumulation_steps=2, use_ema=True)),
        ),
        "ema_overwrite_frequency=2": (
            "averages of weights",
            _fits(optimizer=_sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)),
        ),
        "apply_gradients in tf.cond": ("custom steps", _applied_in_condition),
    }
    for name, (group, run) in plays.items():
        yield Feature(name, group, run, **of_hopsml)
        yield Feature(f"{name}, TensorFlow's collectives", group, run, **tensorflow_only)
    yield Feature("use_ema", "averages of weights", _fits(optimizer=_sgd(use_ema=True, ema_momentum=0.5)))


def _applied_in_condition() -> Values:
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x))
            found = tape.gradient(loss, self.trainable_variables)
            self.optimizer.build(self.trainable_variables)

            def apply() -> Any:
                self.optimizer.apply_gradients(zip(found, self.trainable_variables, strict=True))
                return tf.constant(True)

            tf.cond(self.optimizer.iterations < 4, apply, lambda: tf.constant(False))
            return {"loss": loss}

    def build() -> Any:
        return Own([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])

    found = _fit(build, _sgd())
    return {"weights": found["weights"], "steps": found["steps"]}


def _schedules() -> Iterator[Feature]:
    for name, arguments in {
        "ExponentialDecay": (0.1, 2, 0.5), "CosineDecay": (0.1, 5), "CosineDecayRestarts": (0.1, 2),
        "PolynomialDecay": (0.1, 4, 0.01),
        "PiecewiseConstantDecay": ([2, 4], [0.1, 0.05, 0.01]), "InverseTimeDecay": (0.1, 2, 0.5),
    }.items():  # fmt: skip
        yield Feature(name, "schedules", _fits(optimizer=_schedule(name, *arguments)))
    yield Feature(
        "LearningRateScheduler",
        "schedules",
        _with_callbacks(lambda c: c.LearningRateScheduler(lambda n: 0.1 / (n + 1))),
    )
    yield Feature(
        "ReduceLROnPlateau",
        "schedules",
        _with_callbacks(lambda c: c.ReduceLROnPlateau("val_loss", 0.5, patience=1, min_delta=50.0), epochs=5),
    )


def _sources() -> Iterator[Feature]:
    fits: dict[str, Play] = {
        "arrays": _fits(),
        "arrays whose last batch is smaller": _fits(data=lambda: _arrays(22)),
        "arrays, all rows in one shuffled batch": _fits(batch_size=ROWS, shuffle=True),
        "tensors": _fits(data=_tensors),
        "pandas": _fits(data=_frame),
        "inputs by name": _fits(_two_inputs, data=_for_two_inputs),
        "several outputs and loss weights": _fits(
            _two_outputs, data=_for_two_outputs, loss=["mse", "mae"], compiled={"loss_weights": [0.3, 0.7]}
        ),
        "sample_weight": _fit_weighted,
        "class_weight": _fits(
            _classifier, data=_labelled, loss="sparse_categorical_crossentropy", class_weight={0: 1.0, 1: 3.0, 2: 0.2}
        ),
        "tf.data": _fits(data=_batches),
        "tf.data whose last batch is smaller": _fits(data=lambda: _batches(22)),
        "tf.data, shuffled with a seed": _fits(data=_shuffled_batches),
        "tf.data that repeats, with steps_per_epoch": _fits(data=lambda: _batches().repeat(), steps_per_epoch=2, epochs=3),
        "a generator": _fits(data=_generator, steps_per_epoch=3),
        "a generator, one epoch without steps": _fits(data=_generator, epochs=1),
        "tf.data over a stream": _fits(data=_stream, steps_per_epoch=3),
        "PyDataset": _fits(data=_py_dataset(), shuffle=False),
        "PyDataset with workers": _fits(data=_py_dataset(workers=2), epochs=3, shuffle=False),
        "PyDataset with processes": _fits(data=_py_dataset(workers=2, use_multiprocessing=True), shuffle=False),
        "PyDataset, shuffled: every row once an epoch": functools.partial(_rows_seen, {}),
        "PyDataset with workers, shuffled: every row once an epoch": functools.partial(_rows_seen, {"workers": 2}),
        "torch's DataLoader": _fits(data=_torch_loader),
        "validation_split": _fits(validation_split=0.25),
        "validation_data, a dataset": lambda: _fit(validation_data=_batches(10, 4)),
        "validation_data, a generator": lambda: _fit(
            data=_generator, steps_per_epoch=3, validation_data=_generator(4), validation_steps=2
        ),
        "validation_freq": lambda: _fit(validation_data=_arrays(10), validation_freq=2, epochs=4),
        "steps_per_execution": _fits(compiled={"steps_per_execution": 2}),
        "initial_epoch": _fits(initial_epoch=1, epochs=3),
        "evaluate": _evaluated,
        "predict": _predicted,
        "train_on_batch": _on_batches,
    }  # fmt: skip
    for name, run in fits.items():
        yield Feature(name, "data", run)


def _models() -> Iterator[Feature]:
    layers: dict[str, Play] = {
        "synchronised batch normalisation": _fits(_layers(lambda k: k.BatchNormalization(synchronized=True))),
        "layer normalisation": _fits(_layers(lambda k: k.LayerNormalization())),
        "Normalization, adapted": _adapted,
        "Conv2D": _fits(_layers(lambda k: k.Conv2D(2, 3), lambda k: k.Flatten(), width=(6, 6, 2)), data=_images),
        "GroupNormalization": _fits(
            _layers(lambda k: k.Conv2D(4, 3), lambda k: k.GroupNormalization(2), lambda k: k.Flatten(), width=(6, 6, 2)),
            data=_images,
        ),
        "LSTM": _fits(_layers(lambda k: k.LSTM(3), width=(5, 2)), data=_sequences),
        "GRU": _fits(_layers(lambda k: k.GRU(3), width=(5, 2)), data=_sequences),
        "attention": _fits(_attention, data=_sequences),
        "spectral normalisation": _fits(_layers(lambda k: k.SpectralNormalization(k.Dense(4)))),
        "regularisers and constraints": _fits(_regularised),
        "add_loss in a layer": _fits(_with_add_loss),
        "a layer frozen, then thawed": _thawed,
        "saved, loaded, trained on": _saved_and_loaded,
    }  # fmt: skip
    for name, run in layers.items():
        yield Feature(name, "models and layers", run)
    steps: dict[str, Play] = {
        "train_step": _fits(_own_step),
        "two optimizers": _with_two_optimizers,
        "a model without call (GAN)": _without_call,
        "a call that takes latents (VAE)": _of_latents,
        "compute_loss": _fits(_own_loss),
        "a loop over strategy.run": _own_loop,
        "run_eagerly": _fits(compiled={"run_eagerly": True}),
    }
    for name, run in steps.items():
        yield Feature(name, "custom steps", run)
    compiled = _fits(compiled={"jit_compile": True})
    yield Feature(
        "jit_compile", "custom steps", compiled, "refused", "leave jit_compile out", implementations=("hopsml",)
    )


def _others() -> Iterator[Feature]:
    callbacks: dict[str, Play] = {
        "EarlyStopping with the best weights": _stopped_early,
        "ModelCheckpoint": _best_of_checkpoints,
        "BackupAndRestore": _backed_up,
        "TerminateOnNaN": _with_callbacks(lambda c: c.TerminateOnNaN()),
        "SwapEMAWeights": _with_callbacks(lambda c: c.SwapEMAWeights(swap_on_epoch=True), optimizer=_sgd(use_ema=True)),
        "logs of each batch": _batch_logs,
        "hopsml.tensorflow.callbacks()": _of_hopsml,
    }
    for name, run in callbacks.items():
        yield Feature(name, "callbacks", run)
    losses: dict[str, Play] = {
        "reduction sum": _fits(
            optimizer=_optimizer("SGD", learning_rate=0.005), loss=_losses("MeanSquaredError", reduction="sum")
        ),
        "mean_with_sample_weight": _fits(loss=_losses("MeanSquaredError", reduction="mean_with_sample_weight")),
        "Huber": _fits(loss=_losses("Huber", delta=0.5)),
        "a function": _fits(loss=lambda: lambda y, p: (y - p) ** 4 * 0.01),
        "label smoothing": _fits(
            _classifier,
            data=lambda: (_labelled()[0], __import__("numpy").eye(3, dtype="float32")[_labelled()[1]]),
            loss=_losses("CategoricalCrossentropy", label_smoothing=0.1),
        ),
    }  # fmt: skip
    for name, run in losses.items():
        yield Feature(name, "losses", run)
    metrics: dict[str, Play] = {
        "accuracy and top-k": _metrics(
            lambda m: m.SparseCategoricalAccuracy(), lambda m: m.SparseTopKCategoricalAccuracy(2)
        ),
        "AUC": _fits(
            _layers(lambda k: k.Dense(1, "sigmoid")), data=lambda: (_arrays()[0], (_arrays()[1] > 5).astype("float32")),
            compiled={"metrics": ["auc", "precision", "recall"]},
        ),
        "MeanIoU": _metrics(lambda m: m.MeanIoU(3, sparse_y_pred=False)),
        "R2Score and RMSE": _metrics(
            lambda m: m.R2Score(), lambda m: m.RootMeanSquaredError(), lambda m: m.MeanAbsoluteError(),
            build=_dense, loss="mse",
        ),
        "a custom metric": _own_metric,
    }  # fmt: skip
    for name, run in metrics.items():
        yield Feature(name, "metrics", run)
    yield Feature(
        "strategy(double_buffering=True), one step",
        "settings of the strategy",
        _one_step_later,
        implementations=("hopsml",),
    )
    yield Feature(
        "strategy(accumulate=2)",
        "settings of the strategy",
        _under_settings(2, accumulate=2),
        implementations=("hopsml",),
    )


def _one_step_later() -> Values:
    """Train one step, whose gradients ``fit`` applies at its end, as without double buffering."""
    import keras

    strategy = hopsml.tensorflow.strategy(double_buffering=True) if _in_group() else _strategy()
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = _dense()
        model.compile(keras.optimizers.SGD(0.05, clipnorm=0.2), "mse")
    x, y = _arrays()
    model.fit(x, y, batch_size=ROWS, epochs=1, verbose=0)
    return {"weights": _weights(model)}


FEATURES: list[Feature] = [
    *_optimizers(), *_clipping(), *_accumulation(), *_schedules(), *_sources(), *_models(), *_others(),
    Feature(
        "dropout", "models and layers", _fits(), expected="by design",
        reason="each worker draws the random numbers for its own rows",
    ),
    Feature(
        "batch normalisation, not synchronised", "models and layers", _fits(), expected="by design",
        reason="each worker normalises by the mean and variance of its share; give it synchronized=True",
    ),
]  # fmt: skip
