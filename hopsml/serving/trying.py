"""Checks of a loaded model before it answers requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopsml.model.description import Signature, TensorSpec
    from hopsml.model.flavors.contract import LoadedModel

Arrays = dict[str, "NDArray[Any]"]
_ABOUT_INPUTS = ("InvalidArgumentError", "InvalidArgument")  # of TensorFlow and of ONNX Runtime


def takes_batches(signature: Signature) -> bool:
    """Return True if rows of several requests can be computed in one call.

    The first dimension of all inputs and outputs must be variable.
    """
    shapes = [tensor.shape for tensor in (*signature.inputs.values(), *signature.outputs.values())]
    return bool(signature.inputs) and all(shape and shape[0] is None for shape in shapes)


class IncompleteOutputs(Exception):
    """Error for a model that does not return all outputs of its signature."""


def try_out(model: LoadedModel) -> str:
    """Call a model with one row, and with two if it accepts batches, because first calls are slow.

    Returns:
        The reason for which the model does not accept the row; "" if it does. Zeros may be invalid, such as a category
        that an encoder has not seen.

    Raises:
        IncompleteOutputs: An output of the signature is missing.
        Exception: Errors of the model that are not caused by the row.
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
    """Return zeros, or empty texts, for each input, with size 1 for variable dimensions."""
    import numpy as np

    def row(tensor: TensorSpec) -> NDArray[Any]:
        shape = [size or 1 for size in tensor.shape]
        return np.full(shape, "", object) if tensor.dtype == "str" else np.zeros(shape, tensor.dtype)

    return {name: row(tensor) for name, tensor in signature.inputs.items()}
