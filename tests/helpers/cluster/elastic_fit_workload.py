"""Training of ``elastic_workload.py`` by ``fit`` of Keras 3: same samples, same order, so the same weight."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.helpers.cluster.elastic_workload import (
    BATCH,
    EPOCHS,
    N_SAMPLES,
    PATIENT_FROM,
    announce,
    announce_place,
    wait_for,
)

STEPS = EPOCHS * -(-N_SAMPLES // BATCH)
ENVIRONMENT = {"HOPSML_SEED": "3"}


def train(folder: str, commit: int | None = 2, step_s: float = 0.01, patience_s: float = 0.0) -> dict[str, Any]:
    """Train like ``elastic_workload.train``; the samples seen are part of the model."""
    import numpy as np

    import hopsml

    place = Path(folder)
    context = announce_place(place)
    strategy = hopsml.tensorflow.strategy()
    import keras
    import tensorflow as tf

    class Sums(keras.Model):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.weight = self.add_weight(shape=(), initializer="zeros", dtype="float64")
            self.steps = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False)
            self.seen = self.add_weight(shape=(STEPS, N_SAMPLES), initializer="zeros", dtype="int32", trainable=False)
            self.worlds = self.add_weight(shape=(STEPS,), initializer="zeros", dtype="int32", trainable=False)

        def call(self, ids: Any) -> Any:
            return self.weight * tf.ones_like(ids, tf.float64)

        def train_step(self, ids: Any) -> dict[str, Any]:
            replica = tf.distribute.get_replica_context()
            counts = tf.math.bincount(tf.cast(ids, tf.int32), minlength=N_SAMPLES, maxlength=N_SAMPLES, dtype=tf.int32)
            counts = replica.all_reduce("SUM", counts)
            sines = np.sin(np.arange(N_SAMPLES)) * tf.cast(counts, tf.float64)
            row = tf.one_hot(self.steps.value, STEPS, dtype=tf.int32)
            self.seen.assign_add(row[:, None] * counts[None, :])
            self.worlds.assign_add(row * replica.num_replicas_in_sync)
            self.weight.assign(0.99 * self.weight + tf.reduce_sum(sines))
            self.steps.assign_add(1)
            return {"weight": tf.cast(self.weight.value, tf.float32)}

    air: list[bytearray] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            nonlocal context
            context = announce_place(place, context)
            step = int(self.model.steps.numpy())
            announce(place / f"{context.generation}-{step}-{context.rank}.npy", "")
            if (balloon := place / f"balloon-{os.getpid()}").exists():
                air.append(bytearray(b"x") * (int(balloon.read_text()) << 20))
            if not (place / "hurry").exists():
                time.sleep(step_s)
            if patience_s and step >= PATIENT_FROM:
                wait_for(place / "disturbed", patience_s)
            announce(place / f"step-{context.rank}", str(step))

    with strategy.scope():
        model = Sums()
        model.build((None,))
        model.compile(optimizer="sgd")
    callbacks = [Watch(), *hopsml.tensorflow.callbacks(checkpoint_every_steps=commit or "epoch")]
    history = model.fit(np.arange(N_SAMPLES), batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return {
        "weight": float(model.weight.numpy()),
        "seen": [np.repeat(np.arange(N_SAMPLES), row).tolist() for row in model.seen.numpy()],
        "worlds": model.worlds.numpy().tolist(),
        "generation": context.generation,
        "world_size": context.world_size,
        "epochs": len(history.history["weight"]),
    }
