"""Reading of tensors for TensorFlow's checkpoint files (tensor bundles), and writing of these files, separately.

One process can read the variables, and another one write what ``tf.train.load_checkpoint`` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.layout import CHIEF, PS
from hopsml.training.tensorflow.state_variables import as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ServedVariables:
    """Reader of all variables on parameter servers in one call.

    Reading each variable separately costs several calls of some milliseconds.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._owners: list[Any] = []
        self._read: Callable[[], list[Any]] | None = None

    def read(self, names: list[str], owners: list[Any], specs: list[Any]) -> list[Any]:
        """Return tensors in the order of ``specs``, through a traced function that is reused for the same variables.

        Args:
            names: names of the tensors.
            owners: objects that the tensors belong to; the function is reused only if they are the same.
            specs: specifications of the tensors.
        """
        import tensorflow as tf

        known = self._names == names and all(a is b for a, b in zip(self._owners, owners, strict=True))
        if self._read is None or not known:
            self._names, self._owners = names, owners
            self._read = tf.function(lambda: [_brought(spec) for spec in specs], autograph=False)
        return self._read()


def read(checkpoint: Any, served: ServedVariables | None = None) -> dict[str, NDArray[Any]] | None:
    """Return the tensors that ``checkpoint.write`` would write, by their names in the file.

    On CPU they are not copied. All ranks must call it if reading a variable needs every rank.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
        served: fetches all variables on parameter servers in one call.

    Returns:
        The tensors by name. None if they are not all whole arrays (the state of a dataset's iterator, a variable in
            parts): TensorFlow has to write those itself.
    """
    from tensorflow.python.training.saving.saveable_object import SaveSpec

    by_object, _, registered, _ = checkpoint._saver._gather_serialized_tensors()
    found = list(_flat(by_object))
    if registered or not all(_is_array(slice_spec, tensor) for _, _, slice_spec, tensor in found):
        return None
    tensors = {name: tensor for _, name, _, tensor in found}
    if served is not None:
        there = [(owner, name) for owner, name, _, tensor in found if _is_served(tensor)]
        names = [name for _, name in there]
        fetched = served.read(names, [owner for owner, _ in there], [tensors[name] for name in names])
        tensors.update(zip(names, fetched, strict=True))
    for name, tensor in tensors.items():
        tensors[name] = _tensor_of(tensor) if isinstance(tensor, SaveSpec) else tensor
    # None: a variable that has no value yet.
    return {name: as_array(tensor) for name, tensor in tensors.items() if tensor is not None}


def _tensor_of(spec: Any) -> Any:
    """Return the tensor of a specification, read on its device."""
    import tensorflow as tf

    with tf.device(spec.device):
        return spec.tensor


def _brought(spec: Any) -> Any:
    """Return the tensor of a specification, copied to the chief."""
    import tensorflow as tf

    tensor = _tensor_of(spec)
    with tf.device(f"/job:{CHIEF}/replica:0/task:0/device:CPU:0"):
        return tf.identity(tensor)


def _is_served(tensor: Any) -> bool:
    """Return True for a tensor on a parameter server."""
    from tensorflow.python.training.saving.saveable_object import SaveSpec

    return isinstance(tensor, SaveSpec) and f"/job:{PS}/" in str(tensor.device)


def write(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the result of ``read`` as ``prefix.index`` and ``prefix.data-00000-of-00001``."""
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(arrays), shape_and_slices=[""] * len(arrays), tensors=list(arrays.values())
    )


def _flat(by_object: Mapping[Any, Mapping[str, Any]]) -> Iterator[tuple[Any, str, str, Any]]:
    """Yield owner, name, slice and tensor (or its specification) of all entries."""
    for owner, tensors in by_object.items():
        for name, value in tensors.items():
            for slice_spec, tensor in value.items() if isinstance(value, dict) else (("", value),):
                yield owner, name, slice_spec, tensor


def _is_array(slice_spec: str, tensor: Any) -> bool:
    """Return True for a whole tensor of a type that numpy has."""
    import tensorflow as tf

    return not slice_spec.strip() and not tensor.dtype.is_quantized and tensor.dtype not in (tf.variant, tf.resource)
