"""Jobs with tf_keras (TF_USE_LEGACY_KERAS=1), written as its users write them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import hopsml
from hopsml.cluster.worker.context import current, set_current
from tests.helpers.training.jobs.common import collectives_of, digest
from tests.helpers.training.jobs.keras3 import CLASSES, FEATURES, _data, _dataset
from tests.helpers.training.jobs.own_group import strategy_of


def training(own: str, kind: str = "tensorflow") -> dict[str, Any]:
    """Run fit with both kinds of callbacks, resume, evaluate, predict, and count the merged collectives of a step."""
    strategy = strategy_of(kind)
    import numpy as np
    import tensorflow as tf

    model = _model(strategy)
    callback = hopsml.tensorflow.CheckpointCallback()
    history = model.fit(
        _dataset(33, 16),
        epochs=2,
        verbose=0,
        callbacks=[callback, hopsml.tensorflow.ReportCallback(interval_s=0)],
    )
    set_current(dataclasses.replace(current(), run_id="again"))  # type: ignore[type-var]  # as for another function
    again = _model(strategy)
    resumed = hopsml.tensorflow.CheckpointCallback()
    epoch = resumed.restore(again)
    restored = digest(again.get_weights())
    saving = tf.keras.callbacks.ModelCheckpoint(f"{own}/saved/model.weights.h5", save_weights_only=True)
    drawing = tf.keras.callbacks.TensorBoard(f"{own}/events")
    callbacks = [resumed, saving, drawing]
    more = again.fit(_dataset(33, 16), epochs=3, initial_epoch=epoch, verbose=0, callbacks=callbacks)
    x, y = _data(32)
    loss, accuracy = again.evaluate(_dataset(32, 16, shuffle=False), verbose=0)
    predicted = again.predict(_dataset(32, 16, shuffle=False).map(lambda x, y: x), verbose=0)
    direct = np.asarray(again(x, training=False))
    return {
        "losses": history.history["loss"],
        "weights": [digest(model.get_weights()), restored, digest(again.get_weights())],
        "epochs": [epoch, len(more.history["loss"]), int(again.optimizer.iterations.numpy())],
        "accuracy": [accuracy, float((direct.argmax(1) == y).mean())],
        "loss_is_finite": bool(np.isfinite(loss)),
        "predict_error": float(np.abs(predicted - direct[: len(predicted)]).max()),
        "predicted": len(predicted),
        "collectives": collectives_of(lambda: _model(strategy).fit(_dataset(16, 16), verbose=0)),
    }


def callbacks_without_a_keras_setting() -> dict[str, Any]:
    """Run ``hopsml.tensorflow.callbacks()`` for models of both Keras versions without a setting for ``tf.keras``."""
    import keras
    import numpy as np
    import tf_keras

    events = Path(current().events_dir)  # type: ignore[union-attr]
    found = {}
    for name, module in (("keras", keras), ("tf_keras", tf_keras)):
        before = set(events.rglob("*tfevents*"))
        model = module.Sequential([module.layers.Dense(1)])
        model.compile("sgd", "mse")
        callbacks = hopsml.tensorflow.callbacks()
        history = model.fit(np.ones((8, 2)), np.ones(8), epochs=2, verbose=0, callbacks=callbacks)
        found[name] = [len(history.history["loss"]), len(set(events.rglob("*tfevents*")) - before)]
    return found


def _model(strategy: Any) -> Any:
    import tensorflow as tf

    assert tf.keras.Model.__module__.startswith("tf_keras"), tf.keras.Model.__module__
    tf.keras.utils.set_random_seed(11)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(8, activation="relu", input_shape=(FEATURES,)),
                tf.keras.layers.BatchNormalization(),
                tf.keras.layers.Dense(CLASSES),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(0.02),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model
