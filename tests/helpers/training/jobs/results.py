"""Jobs that write a worker's results: checkpoints, reports, exports, files sent from the chief."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import hopsml
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.cluster.worker.context import CommitPort, current, set_current
from tests.helpers.training.jobs.common import digest
from tests.helpers.training.jobs.keras3 import _data, _dataset, _model


def save_and_restore() -> dict[str, Any]:
    """Save, restore into other weights, train with the callbacks, and export, with two workers."""
    strategy = hopsml.tensorflow.strategy()
    context = current()
    assert context is not None
    model = _model(strategy)
    model.fit(_dataset(33, 16), epochs=1, verbose=0)
    checkpointer = hopsml.tensorflow.Checkpointer(keep=2, model=model)
    nothing = checkpointer.restore_latest()
    for step in (10, 20, 30, 30):
        checkpointer.save(step, note=f"at {step}")
    saved = digest(model.get_weights())
    model.set_weights([weight * 0 + 1 for weight in model.get_weights()])
    spoiled = digest(model.get_weights())
    restored = checkpointer.restore_latest()
    fresh = _model(strategy)
    fresh_checkpointer = hopsml.tensorflow.Checkpointer(model=fresh)
    fresh_checkpointer.restore_latest()
    return {
        "nothing": nothing,
        "restored": restored,
        "notes": checkpointer.notes,
        "weights": [saved, spoiled, digest(model.get_weights()), digest(fresh.get_weights())],
        "iterations": int(fresh.optimizer.iterations.numpy()),
        "export": str(hopsml.tensorflow.export(model, name="digits")),
        "sent_folder": _send_folder(strategy, context.work_dir / "received"),
    }


def _send_folder(strategy: Any, folder: Path) -> list[list[Any]]:
    """Send the chief's folder of 17 MiB, so that several messages are needed, with an empty file."""
    from hopsml.training.tensorflow.groups import broadcast_folder

    context = current()
    assert context is not None
    if context.is_chief:
        (folder / "below").mkdir(parents=True)
        (folder / "large").write_bytes(bytes(range(256)) * (17 * 4096) + b"odd")
        (folder / "below" / "empty").write_bytes(b"")
    assert broadcast_folder(strategy, folder)
    assert not broadcast_folder(strategy, folder / "missing")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [[str(path.relative_to(folder)), digest([list(path.read_bytes())[::997]])] for path in files]


def fit_with_callbacks(epochs: int, every: int | str, stop_at: int | None = None) -> dict[str, Any]:
    """Run ``fit`` with both callbacks; it ends after the step ``stop_at``."""
    import keras

    strategy = hopsml.tensorflow.strategy()
    model = _model(strategy)
    begun: list[int] = []

    def stop(batch: int, logs: Any) -> None:
        if stop_at is not None and int(model.optimizer.iterations.numpy()) >= stop_at:
            model.stop_training = True

    history = model.fit(
        _dataset(48, 16),
        epochs=epochs,
        verbose=0,
        callbacks=[
            hopsml.tensorflow.CheckpointCallback(every=every),
            hopsml.tensorflow.ReportCallback(interval_s=0),
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: begun.append(epoch), on_train_batch_end=stop
            ),
        ],
    )
    return {
        "begun": begun,
        "iterations": int(model.optimizer.iterations.numpy()),
        "weights": digest(model.get_weights()),
        "losses": history.history["loss"][-2:],
    }


def fit_two_optimizers(epochs: int) -> dict[str, Any]:
    """Run ``fit`` of a model that trains its two halves by separate optimizers, like a GAN."""
    import keras
    import numpy as np
    import tensorflow as tf

    class Pair(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.maker, self.judge = keras.layers.Dense(4), keras.layers.Dense(1)

        def compile_pair(self) -> None:
            super().compile()
            self.maker_optimizer, self.judge_optimizer = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)

        def call(self, rows: Any) -> Any:
            return self.judge(self.maker(rows))

        def train_step(self, rows: Any) -> dict[str, Any]:
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_mean(self(rows) ** 2)
            for part, optimizer in ((self.maker, self.maker_optimizer), (self.judge, self.judge_optimizer)):
                variables = part.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    strategy = hopsml.tensorflow.strategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = Pair()
        model.build((None, 4))
        model.compile_pair()
    rows = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    begun: list[int] = []
    model.fit(
        rows,
        batch_size=8,
        shuffle=False,
        epochs=epochs,
        verbose=0,
        callbacks=[
            hopsml.tensorflow.CheckpointCallback(every=2),
            keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch)),
        ],
    )
    counts = [int(one.iterations.numpy()) for one in (model.maker_optimizer, model.judge_optimizer)]
    return {"begun": begun, "counts": counts, "weights": digest(model.get_weights())}


class BrokenOff(Exception):
    """Exception that simulates the death of the process."""


def several_fits(broken_off: bool = False, reuse: bool = False, epochs: int = 3, slots: str = "") -> dict[str, Any]:
    """Fit three models in sequence; the first stops after two epochs, the second may be interrupted after one.

    ``reuse``: one list of callbacks for all. ``slots``: for the commits of an elastic group.
    """
    import keras

    if slots:
        port = CommitPort(CommitSlots.create(Path(slots)), -1, lambda *what: None)
        set_current(dataclasses.replace(current(), commits=port))  # type: ignore[type-var]

    strategy = hopsml.tensorflow.strategy()
    kept = hopsml.tensorflow.callbacks()
    begun: list[list[int]] = []
    histories: list[int] = []
    models = []

    def count(epoch: int, logs: Any) -> None:
        begun[-1].append(epoch)
        if broken_off and len(begun) == 2 and epoch == 1:
            raise BrokenOff

    def stop(epoch: int, logs: Any) -> None:
        models[-1].stop_training = len(begun) == 1 and epoch == 1

    for _ in range(3):
        models.append(_model(strategy))
        begun.append([])
        ours = kept if reuse else hopsml.tensorflow.callbacks()
        theirs = keras.callbacks.LambdaCallback(on_epoch_begin=count, on_epoch_end=stop)
        try:
            history = models[-1].fit(_dataset(32, 16), epochs=epochs, verbose=0, callbacks=[*ours, theirs])
        except BrokenOff:
            break
        histories.append(len(history.history["loss"]))
    return {"begun": begun, "histories": histories, "weights": [digest(model.get_weights()) for model in models]}


def save_for_ever(directory: str) -> dict[str, Any]:
    """Save 24 MB repeatedly in one worker until it is killed."""
    import tensorflow as tf

    variable = tf.Variable(tf.zeros((6 * 2**20,)))
    checkpointer = hopsml.tensorflow.Checkpointer(directory, variable=variable)
    step = 0
    while True:
        step += 1
        variable.assign_add(tf.ones_like(variable))
        checkpointer.save(step)


def restore_number(directory: str) -> dict[str, Any]:
    """Restore the newest checkpoint of ``save_for_ever``, and return its step and values."""
    import tensorflow as tf

    variable = tf.Variable(tf.zeros((6 * 2**20,)))
    checkpointer = hopsml.tensorflow.Checkpointer(directory, variable=variable)
    step = checkpointer.restore_latest()
    values = {float(tf.reduce_min(variable)), float(tf.reduce_max(variable))}
    checkpointer.save(step + 1)
    return {"step": step, "values": sorted(values)}


def read_alone(directory: str, export: str) -> dict[str, Any]:
    """Check without a strategy that an export predicts, and restore a checkpoint into other objects."""
    return {"error": _restore_other_objects(directory), "export": _predict(export)}


def _restore_other_objects(directory: str) -> str:
    import tensorflow as tf

    hopsml.tensorflow.Checkpointer(directory, one=tf.Variable(1.0)).save(1)
    try:
        hopsml.tensorflow.Checkpointer(directory, other=tf.Variable(1.0)).restore_latest()
    except hopsml.errors.ArgumentError as error:
        return str(error)
    return ""


def _predict(path: str) -> dict[str, Any]:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    outputs = loaded.serve(tf.constant(_data(5)[0]))
    return {"shape": outputs.shape.as_list(), "finite": bool(tf.reduce_all(tf.math.is_finite(outputs)))}
