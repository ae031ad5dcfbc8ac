"""TensorFlow's checkpoint files (a tensor bundle), apart from the objects in them: what they would hold, and writing that.

So one process can read the variables, and another one write what ``tf.train.load_checkpoint`` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.layout import CHIEF, PS
from hopsml.training.tensorflow.state_variables import as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ServedVariables:
    """Reads what lies on parameter servers by one call: by itself each variable costs several, of some milliseconds."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._owners: list[Any] = []
        self._read: Callable[[], list[Any]] | None = None

    def read(self, names: list[str], owners: list[Any], specs: list[Any]) -> list[Any]:
        """Tensors in the order of ``specs``; ``owners``, whose they are, tell whether the last function still holds."""
        import tensorflow as tf

        known = self._names == names and all(a is b for a, b in zip(self._owners, owners, strict=True))
        if self._read is None or not known:
            self._names, self._owners = names, owners
            self._read = tf.function(lambda: [_brought(spec) for spec in specs], autograph=False)
        return self._read()


def read(checkpoint: Any, served: ServedVariables | None = None) -> dict[str, NDArray[Any]] | None:
    """The tensors that ``checkpoint.write`` would write, by their names in the file; on CPU they are not copied.

    None where they are not all whole arrays (the state of a dataset's iterator, a variable in parts): TensorFlow has to
    write those itself. What parameter servers hold is fetched, by ``served`` at once. On all ranks, where reading a variable
    needs every rank.
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
    import tensorflow as tf

    with tf.device(spec.device):
        return spec.tensor


def _brought(spec: Any) -> Any:
    import tensorflow as tf

    tensor = _tensor_of(spec)
    with tf.device(f"/job:{CHIEF}/replica:0/task:0/device:CPU:0"):
        return tf.identity(tensor)


def _is_served(tensor: Any) -> bool:
    from tensorflow.python.training.saving.saveable_object import SaveSpec

    return isinstance(tensor, SaveSpec) and f"/job:{PS}/" in str(tensor.device)


def write(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write what ``read`` has found as ``prefix.index`` and ``prefix.data-00000-of-00001``."""
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(arrays), shape_and_slices=[""] * len(arrays), tensors=list(arrays.values())
    )


def _flat(by_object: Mapping[Any, Mapping[str, Any]]) -> Iterator[tuple[Any, str, str, Any]]:
    """Owner, name, slice and tensor (or what gives it) of all."""
    for owner, tensors in by_object.items():
        for name, value in tensors.items():
            for slice_spec, tensor in value.items() if isinstance(value, dict) else (("", value),):
                yield owner, name, slice_spec, tensor


def _is_array(slice_spec: str, tensor: Any) -> bool:
    import tensorflow as tf

    return not slice_spec.strip() and not tensor.dtype.is_quantized and tensor.dtype not in (tf.variant, tf.resource)
