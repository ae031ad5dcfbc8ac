"""Jobs that load TensorFlow checkpoints of a State, ``fit`` and a Checkpointer, as an evaluator does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hopsml
from hopsml.errors import ArgumentError
from hopsml.training.elastic import commits


def _model(units: int = 3, *, compiled: str = "") -> Any:
    import keras

    layers = [keras.layers.Dense(units), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    if compiled:
        model.compile(compiled, "mse", metrics=["mae"])
    return model


def _trained(compiled: str = "") -> Any:
    import numpy as np

    model = _model(compiled=compiled or "adam")
    model.fit(np.ones((8, 4)), np.zeros((8, 3)), verbose=0)
    return model


def _committed(folder: Path, **values: Any) -> Path:
    """Return the folder of a checkpoint made from a commit."""
    folder.mkdir(parents=True)
    pieces = commits.encode(hopsml.elastic.State(**values)._snapshot())
    (folder / "state.hopsml").write_bytes(b"".join(bytes(piece) for piece in pieces))
    return folder


def _is_same(model: Any, other: Any) -> bool:
    import numpy as np

    return all(np.array_equal(*pair) for pair in zip(model.get_weights(), other.get_weights(), strict=True))


def loaded(place: str) -> dict[str, Any]:
    """Return, for each way to save and to load, whether the model equals the trained one; and the refused cases."""
    import keras

    trained, alone = _trained(), keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(alone.trainable_variables)
    checkpointer = hopsml.tensorflow.Checkpointer(str(Path(place, "saved")), model=trained)
    folders = {
        "fit": _committed(Path(place, "fit"), model=trained, fit=1, done=0, history={"loss": [1.0]}, rate=None),
        "saved": checkpointer.save(7, epoch=2),
    }
    same, values = {}, {}
    for name, folder in folders.items():
        for compiled in ("", "adam", "sgd"):
            model = _model(compiled=compiled)
            values[name] = hopsml.load_checkpoint(folder, model=model)
            same[f"{name} {compiled}"] = _is_same(model, trained)
    beside = _committed(Path(place, "beside"), optimizer=optimizer, model=alone)
    model = keras.models.clone_model(alone)
    hopsml.load_checkpoint(beside, model=model)
    same["behind its optimizer"] = _is_same(model, alone)
    return {"same": same, "values": values, "refused": [_refusal(folder) for folder in folders.values()]}


def _refusal(folder: Path) -> list[str]:
    found = []
    import keras

    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    for objects in ({"net": _model()}, {"model": _model(5)}, {"model": _deeper()}, {"model": unbuilt}):
        try:
            hopsml.load_checkpoint(folder, **objects)
        except ArgumentError as error:
            found.append(str(error))
        else:
            found.append("nothing")
    return found


def _deeper() -> Any:
    import keras

    return keras.Sequential([keras.Input((4,)), *_model().layers, keras.layers.Dense(2)])
