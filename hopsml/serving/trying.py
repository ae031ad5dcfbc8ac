"""What a server needs to know of a loaded model before it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopsml.model.description import Signature, TensorSpec
    from hopsml.model.flavors.contract import LoadedModel

Arrays = dict[str, "NDArray[Any]"]
_ABOUT_INPUTS = ("InvalidArgumentError", "InvalidArgument")  # TensorFlow's, ONNX Runtime's


def takes_batches(signature: Signature) -> bool:
    """Whether rows of several requests may be handed over in one call: the first dimension is free everywhere."""
    shapes = [tensor.shape for tensor in (*signature.inputs.values(), *signature.outputs.values())]
    return bool(signature.inputs) and all(shape and shape[0] is None for shape in shapes)


class IncompleteOutputs(Exception):
    """The model does not give what its signature names."""


def try_out(model: LoadedModel) -> str:
    """Call a model with a row, and with two where it takes batches: its first calls take longer than all others.

    Returns why it could not be called so, "" where it was: zeros may be nothing that it takes, such as a category that an
    encoder has not seen. Raises IncompleteOutputs, and what the model raises for a reason of its own.
    """
    row = trial_row(model.signature)
    try:
        outputs = model.predict(row)
        if takes_batches(model.signature):
            model.predict({name: array.repeat(2, axis=0) for name, array in row.items()})
    except Exception as error:
        if isinstance(error, ValueError) or type(error).__name__ in _ABOUT_INPUTS:
            return f"{type(error).__name__}: {error}"
        raise
    missing = sorted(model.signature.outputs.keys() - outputs.keys())
    if missing:
        raise IncompleteOutputs(f"the model gives no output '{missing[0]}', which its signature names")
    return ""


def trial_row(signature: Signature) -> Arrays:
    """Zeros, or empty texts, for each input; every free size is 1."""
    import numpy as np

    def row(tensor: TensorSpec) -> NDArray[Any]:
        shape = [size or 1 for size in tensor.shape]
        return np.full(shape, "", object) if tensor.dtype == "str" else np.zeros(shape, tensor.dtype)

    return {name: row(tensor) for name, tensor in signature.inputs.items()}
