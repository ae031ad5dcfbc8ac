"""Network for digits as a user writes it; a single machine does not need the lines marked with +."""

from __future__ import annotations

from typing import Any

import hopsml  # +
from tests.helpers.training.jobs.common import digest


def build_model() -> Any:
    """Return a small convolutional network for 8 x 8 images."""
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(epochs: int = 12, batch_size: int = 128) -> dict[str, Any]:
    """Train; ``batch_size`` is the global one: fit divides it among the workers."""
    strategy = hopsml.tensorflow.strategy()  # +
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
    x, x_test, y, y_test = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    keras.utils.set_random_seed(0)
    with strategy.scope():  # +
        model = build_model()
    history = model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, batch_size=batch_size, verbose=0)
    return {
        "accuracy": accuracy,
        "losses": history.history["loss"],
        "weights": digest(model.get_weights()),
        "workers": strategy.num_replicas_in_sync,
    }
