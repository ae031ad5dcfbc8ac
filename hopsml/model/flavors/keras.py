"""Keras 3: a ``.keras`` file to go on with, and a SavedModel beside it, which is what is called."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hopsml.model.flavors import tensorflow
from hopsml.model.flavors.contract import SavedModel, UnsavableModel, version_of

_FILE = "model.keras"
keeps = tensorflow.keeps
load = tensorflow.load
limit_threads = tensorflow.limit_threads


def save(model: Any, folder: Path, example: Any) -> SavedModel:
    """Both forms. An error names the layer that cannot be saved."""
    try:
        model.save(folder / _FILE)
        saved = tensorflow.save(model, folder, example)
    except Exception as error:
        text = str(error) if isinstance(error, UnsavableModel) else f"{type(error).__name__}: {error}"
        raise UnsavableModel(
            f"{type(model).__name__} '{model.name}' cannot be saved: {_culprit(model)}{text}"
        ) from error
    return dataclasses.replace(
        saved, artifacts={**saved.artifacts, "keras": _FILE}, requirements=version_of("tensorflow", "keras", "numpy")
    )


def _culprit(model: Any) -> str:
    """Which layer has no configuration that can be written; "" where all have one."""
    from keras.saving import serialize_keras_object

    for layer in model._flatten_layers(include_self=False):
        try:
            serialize_keras_object(layer)
        except Exception:  # noqa: BLE001 whatever a layer's get_config raises
            return f"the layer '{layer.name}' ({type(layer).__name__}) has no get_config that gives its arguments; "
    return ""
