"""Jobs that read a data set by TensorFlow."""

from __future__ import annotations

from typing import Any

import hopsml
from tests.helpers.training.jobs.common import digest
from tests.helpers.training.jobs.own_group import strategy_of


def read_and_fit(path: str, kind: str) -> dict[str, Any]:
    """Return this worker's rows of two iterations, and the final weights of ``fit``."""
    import keras
    import numpy as np

    strategy = strategy_of(kind)
    rows = hopsml.data.parquet(path).batch(16).shuffle(seed=1, window=20)
    data = rows.tensorflow(["id", "text"])
    iterations = []
    for _ in range(2):
        parts = [strategy.experimental_local_results(batch["id"])[0].numpy() for batch in data]
        iterations.append(np.concatenate(parts).tolist())
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-6), "mse")
    history = model.fit(
        rows.tensorflow("features", "label", "weight"),
        epochs=2,
        verbose=0,
        validation_data=rows.tensorflow("features", "label"),
    )
    return {
        "iterations": iterations,
        "losses": len(history.history["val_loss"]),
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": digest(model.get_weights()),
        "finite": all(bool(np.isfinite(one).all()) for one in (*model.get_weights(), history.history["val_loss"])),
    }


def refusals(path: str, none: str) -> dict[str, list[str]]:
    """Return the errors for a missing column, and for data without rows."""
    said = []
    for given, columns in ((path, ("features", "nothing")), (none, ())):
        try:
            hopsml.data.parquet(given).batch(4).tensorflow(*columns)
        except hopsml.errors.ArgumentError as error:
            said.append(str(error))
    return {"said": said}
