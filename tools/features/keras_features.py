"""Features of Keras 3, as small trainings on the same global batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import hopsml
from hopsml import experiment
from tools.features.table import Feature, Values

IMPLEMENTATIONS = ("hopsml", "tensorflow")


def launch(play: Callable[..., Any], args: dict[str, Any], workers: int, implementation: str) -> Any:
    """Run ``play`` on so many workers, and return the chief's value."""
    options: dict[str, Any] = {"implementation": implementation} if workers > 1 else {}
    return experiment.collective_all_reduce(
        play, args=args, num_workers=workers, progress=False, name="features of Keras", **options
    ).value


@functools.cache
def _strategy() -> Any:
    return hopsml.tensorflow.strategy()


def _data(rows: int = 24, features: int = 3) -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(3)
    x = random.normal(size=(rows, features)).astype("float32")
    return x, (x.sum(1, keepdims=True) * 3 + 5).astype("float32")


def _fit(optimizer: Callable[[], Any], **options: Any) -> Values:
    """A dense layer behind an arrays' ``fit`` of two epochs: its weights and losses."""
    import keras

    keras.utils.set_random_seed(7)
    with _strategy().scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer(), "mse")
    history = model.fit(*_data(), batch_size=8, epochs=2, shuffle=False, verbose=0, **options).history
    return {"weights": [one.tolist() for one in model.get_weights()], "history": history}


def _clipped_by_value() -> Values:
    import keras

    return _fit(lambda: keras.optimizers.SGD(0.1, clipvalue=0.2))


FEATURES = [
    Feature("SGD with clipvalue", "clipping", _clipped_by_value),
]
