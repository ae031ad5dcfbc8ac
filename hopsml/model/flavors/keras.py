"""Flavor of Keras 3: a ``.keras`` file for further training, and a SavedModel for inference."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hopsml.model.flavors import tensorflow
from hopsml.model.flavors.contract import SavedModel, UnsavableModel, package_versions

_FILE = "model.keras"
keeps = tensorflow.keeps
load = tensorflow.load
limit_threads = tensorflow.limit_threads


def save(model: Any, folder: Path, example: Any) -> SavedModel:
    """Write both forms of the model; an error names the layer that cannot be saved.

    Args:
        model: The Keras model.
        folder: Target folder.
        example: Ignored; the model defines its inputs.

    Raises:
        UnsavableModel: The model cannot be saved.
    """
    try:
        model.save(folder / _FILE)
        saved = tensorflow.save(model, folder, example)
    except Exception as error:
        text = str(error) if isinstance(error, UnsavableModel) else f"{type(error).__name__}: {error}"
        raise UnsavableModel(
            f"{type(model).__name__} '{model.name}' cannot be saved: {_culprit(model)}{text}"
        ) from error
    return dataclasses.replace(
        saved,
        artifacts={**saved.artifacts, "keras": _FILE},
        requirements=package_versions("tensorflow", "keras", "numpy"),
    )


def _culprit(model: Any) -> str:
    """Return the text that names the layer whose configuration cannot be serialized; "" if there is none."""
    from keras.saving import serialize_keras_object

    for layer in model._flatten_layers(include_self=False):
        try:
            serialize_keras_object(layer)
        except Exception:  # noqa: BLE001 any exception of a layer's get_config
            return f"the layer '{layer.name}' ({type(layer).__name__}) has no get_config() that returns its arguments; "
    return ""
