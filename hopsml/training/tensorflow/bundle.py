"""TensorFlow's checkpoint files (a tensor bundle), apart from the objects in them: what they would hold, and writing that.

So one process can read the variables, and another one write what ``tf.train.load_checkpoint`` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hopsml.training.tensorflow.state_variables import as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read(checkpoint: Any) -> dict[str, NDArray[Any]] | None:
    """The tensors that ``checkpoint.write`` would write, by their names in the file; on CPU they are not copied.

    None where they are not all whole arrays (the state of a dataset's iterator, a variable in parts): TensorFlow has to
    write those itself. What parameter servers hold is fetched. On all ranks, where reading a variable needs every rank.
    """
    import tensorflow as tf
    from tensorflow.python.training.saving.saveable_object import SaveSpec

    by_object, _, registered, _ = checkpoint._saver._gather_serialized_tensors()
    found = list(_flat(by_object))
    if registered or not all(_is_array(slice_spec, tensor) for _, slice_spec, tensor in found):
        return None
    arrays = {}
    for name, _, tensor in found:
        if isinstance(tensor, SaveSpec):
            with tf.device(tensor.device):
                tensor = tensor.tensor
        if tensor is not None:  # else a variable that has no value yet
            arrays[name] = as_array(tensor)
    return arrays


def write(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write what ``read`` has found as ``prefix.index`` and ``prefix.data-00000-of-00001``."""
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(arrays), shape_and_slices=[""] * len(arrays), tensors=list(arrays.values())
    )


def _flat(by_object: Mapping[Any, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Name, slice and tensor (or what gives it) of all."""
    for tensors in by_object.values():
        for name, value in tensors.items():
            for slice_spec, tensor in value.items() if isinstance(value, dict) else (("", value),):
                yield name, slice_spec, tensor


def _is_array(slice_spec: str, tensor: Any) -> bool:
    import tensorflow as tf

    return not slice_spec.strip() and not tensor.dtype.is_quantized and tensor.dtype not in (tf.variant, tf.resource)
