"""What a server needs to know of a loaded model before it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopsml.model.description import Signature, TensorSpec
    from hopsml.model.flavors.contract import LoadedModel

Arrays = dict[str, "NDArray[Any]"]


def takes_batches(signature: Signature) -> bool:
    """Whether rows of several requests may be handed over in one call: the first dimension is free everywhere."""
    shapes = [tensor.shape for tensor in (*signature.inputs.values(), *signature.outputs.values())]
    return bool(signature.inputs) and all(shape and shape[0] is None for shape in shapes)


def try_out(model: LoadedModel) -> None:
    """Call a model with a row, and with two where it takes batches: its first calls take longer than all others.

    Raises what the model raises, and ValueError where it does not give what its signature names.
    """
    row = trial_row(model.signature)
    outputs = model.predict(row)
    missing = sorted(model.signature.outputs.keys() - outputs.keys())
    if missing:
        raise ValueError(f"the model gives no output '{missing[0]}', which its signature names")
    if takes_batches(model.signature):
        model.predict({name: array.repeat(2, axis=0) for name, array in row.items()})


def trial_row(signature: Signature) -> Arrays:
    """Zeros, or empty texts, for each input; every free size is 1."""
    import numpy as np

    def row(tensor: TensorSpec) -> NDArray[Any]:
        shape = [size or 1 for size in tensor.shape]
        return np.full(shape, "", object) if tensor.dtype == "str" else np.zeros(shape, tensor.dtype)

    return {name: row(tensor) for name, tensor in signature.inputs.items()}
