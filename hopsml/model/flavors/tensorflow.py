"""Flavor of TensorFlow: a SavedModel that is called by its serving signature, also for Keras models."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.layout import natural_key
from hopsml.core import extras
from hopsml.errors import ArgumentError
from hopsml.model.description import ModelDescription, Signature, TensorSpec
from hopsml.model.flavors.contract import LoadedModel, SavedModel, UnsavableModel, package_versions
from hopsml.training.tensorflow.checkpoints import write_saved_model
from hopsml.training.tensorflow.groups import is_leader, latest_strategy

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER = "saved_model"
_SERVING = "serving_default"
_INTERNAL = "__saved_model"  # beginning of the names of TensorFlow's own signatures


def keeps() -> bool:
    """Return True on the chief of the group, whose files are stored."""
    return is_leader(latest_strategy())


def save(model: Any, folder: Path, example: Any) -> SavedModel:
    """Write a SavedModel, whose serving signature becomes the signature.

    Args:
        model: The model.
        folder: Target folder.
        example: Ignored; the model defines its inputs.

    Raises:
        UnsavableModel: The model cannot be saved.
    """
    try:
        write_saved_model(model, folder / FOLDER)
    except Exception as error:
        raise UnsavableModel(
            f"{type(model).__name__} cannot be saved as a SavedModel: {type(error).__name__}: {error}"
        ) from error
    return SavedModel({"saved_model": FOLDER}, read_signature(folder / FOLDER), package_versions("tensorflow", "numpy"))


def read_signature(folder: Path) -> Signature | None:
    """Return the serving signature in the file of a SavedModel, without loading it; None if it has none."""
    return read_signatures(folder).get(_SERVING)


def read_signatures(folder: Path) -> dict[str, Signature]:
    """Return the signatures in the file of a SavedModel by name, without loading it."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    content = saved_model_pb2.SavedModel()
    content.ParseFromString((folder / "saved_model.pb").read_bytes())
    found = content.meta_graphs[0].signature_def

    def spec(tensor: Any) -> TensorSpec:
        name, shape = tf.dtypes.as_dtype(tensor.dtype).name, tf.TensorShape(tensor.tensor_shape)
        sizes = tuple(shape.as_list()) if shape.rank is not None else (None,)
        return TensorSpec("str" if name == "string" else name, sizes)

    def specs(tensors: Any) -> dict[str, TensorSpec]:
        return {name: spec(tensors[name]) for name in sorted(tensors, key=natural_key)}

    return {
        name: Signature(specs(one.inputs), specs(one.outputs))
        for name, one in found.items()
        if not name.startswith(_INTERNAL)
    }


def limit_threads(count: int) -> None:
    """Limit TensorFlow's threads in this process; no effect if TensorFlow has already run an operation."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # a function of the user has used it in this Python worker of Spark
        tf.config.threading.set_intra_op_parallelism_threads(count)
        tf.config.threading.set_inter_op_parallelism_threads(1)


def load(folder: Path, description: ModelDescription) -> LoadedModel:
    """Load a SavedModel for calls of its signatures.

    Raises:
        ArgumentError: TensorFlow is not installed, or the model has no serving signature.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ArgumentError(
            f"the model '{description.name}' needs TensorFlow, which is not installed here: "
            f"{extras.install_command('tensorflow')}"
        ) from error
    place = folder / description.artifacts["saved_model"]
    model = tf.saved_model.load(str(place))
    signature = description.signature or read_signature(place)
    if signature is None or _SERVING not in model.signatures:
        raise ArgumentError(
            f"version {description.version} of the model '{description.name}' has no serving signature; export a "
            "Keras model, or a tf.Module whose __call__ is a tf.function with an input_signature"
        )
    named = {name: one for name, one in read_signatures(place).items() if name != _SERVING and name in model.signatures}
    return _Servable(model, _SERVING, signature, {name: _Servable(model, name, one, {}) for name, one in named.items()})


class _Servable:
    """One signature of a loaded SavedModel; ``named`` are the others by name."""

    def __init__(self, model: Any, name: str, signature: Signature, named: Mapping[str, _Servable]) -> None:
        self._model, self.signature = model, signature  # holds a reference, because the model owns the variables
        self._call, self.named = model.signatures[name], named

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Call the signature with one batch, and return its outputs."""
        import tensorflow as tf

        found = self._call(**{name: tf.constant(array) for name, array in inputs.items()})
        return {name: found[name].numpy() for name in self.signature.outputs}
