"""Training of a small convolutional network on digits, exported three times: DIGITS_MODEL FOLDER PROJECT.

FOLDER receives ``saved_model``, to be loaded by hand; the registry of the project receives the versions 1 to 3 of
"digits".
"""

from __future__ import annotations

import os
import sys
from typing import Any


def trained() -> Any:
    """Return a trained network of two convolutions and two dense layers, 8 x 8 pixels to ten classes."""
    import keras
    from sklearn.datasets import load_digits

    digits = load_digits()
    model = keras.Sequential(
        [
            keras.Input((64,), name="pixels"),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax", name="classes"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(digits.data / 16, digits.target, epochs=2, verbose=0)
    return model


def main(folder: str, project: str) -> None:
    """Train the network, save it in ``folder``, and export three versions to the registry of ``project``."""
    from hopsml import model as registry

    os.environ["HOPSML_PROJECT_URL"] = project
    made = trained()
    made.export(f"{folder}/saved_model", verbose=False)
    for number in (1, 2, 3):
        registry.export(made, "digits", metrics={"number": number})


if __name__ == "__main__":
    main(*sys.argv[1:])
