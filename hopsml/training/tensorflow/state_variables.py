"""The variables of TensorFlow and Keras objects as arrays, by a key that is the same on all ranks."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.training.elastic.commit_format import ALIGNMENT
from hopsml.training.tensorflow import optimizers

if TYPE_CHECKING:
    from numpy.typing import NDArray

ADOPTED = 1 << 20  # bytes: what is smaller is copied as fast


def is_trackable(name: str, value: Any) -> bool:
    """Whether a State's value holds its content in variables, itself or as a dict, list or tuple of such objects.

    Raises ArgumentError for a container of both kinds: only one of them could be given back its value.
    """
    if not isinstance(value, (dict, list, tuple)):
        return _is_object(value)
    kinds = {_is_object(leaf) for leaf in _leaves(value)}
    if len(kinds) == 2:
        raise ArgumentError(
            f"State({name}=...): this {type(value).__name__} holds variables and plain values side by side; give them to "
            "the State under two names"
        )
    return kinds == {True}


def _is_object(value: Any) -> bool:
    from tensorflow.python.trackable.base import Trackable

    return isinstance(value, Trackable) or _is_keras3(value)


def _is_keras3(value: Any) -> bool:
    """Whether it is an object of Keras 3 with variables; not all of them are trackable for TensorFlow."""
    if not _comes_of_keras3(type(value).__mro__):
        return False
    return sys.modules["keras"].config.backend() == "tensorflow" and (
        hasattr(value, "variables") or _is_seed_generator(value)
    )


@functools.cache  # classes are few, and each commit asks thousands of times
def _comes_of_keras3(bases: tuple[type, ...]) -> bool:
    return any(kind.__module__.startswith("keras.") for kind in bases)


def _is_seed_generator(value: Any) -> bool:
    return any(kind.__name__ == "SeedGenerator" for kind in type(value).__mro__)


@functools.cache
def _is_metric(bases: tuple[type, ...]) -> bool:
    """Of Keras 3 or of tf_keras."""
    return any(kind.__name__ == "Metric" and kind.__module__.startswith(("keras.", "tf_keras.")) for kind in bases)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def collect(trackables: Mapping[str, Any]) -> dict[str, Any]:
    """All variables below these objects; the key is the path to it. Keras optimizers are built first.

    The metrics of a model are left out: they begin anew with every epoch, and each worker has its own. One that is given
    by itself is taken.

    Raises ArgumentError for an object that has none yet: they could be neither committed nor restored.
    """
    objects = [(name, leaf) for name, value in trackables.items() for leaf in _leaves(value)]
    for name, value in objects:
        _check_built(name, value)
    optimizers.build([value for _, value in objects])
    found: dict[str, Any] = {}
    known: set[int] = set()
    # An optimizer holds its model's variables, too, which are to have the model's key: it may be asked for alone.
    for name, value in sorted(trackables.items(), key=lambda named: optimizers.is_optimizer(named[1])):
        below = _below(name, value)
        if not below:
            raise _unbuilt(name, value)
        for key, variable in below.items():
            if id(variable) not in known:  # what two objects share has one key
                known.add(id(variable))
                found[key] = variable
    return found


def _check_built(name: str, value: Any) -> None:
    """A layer or model of either Keras; an optimizer is another matter."""
    if hasattr(value, "trainable_weights") and not getattr(value, "built", True):
        raise _unbuilt(name, value)


def _unbuilt(name: str, value: Any) -> ArgumentError:
    return ArgumentError(
        f"State({name}=...): this {type(value).__name__} has no variables yet; build it before the State is made, "
        "for instance by model.build(input_shape), optimizer.build(model.trainable_variables), or an Input layer"
    )


def _below(name: str, root: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # with the objects: an id is used again once its object is gone
    queue: deque[tuple[str, Any]] = deque([(name, root)])
    while queue:
        path, node = queue.popleft()
        variable = _variable(name, node)
        node = node if variable is None else variable
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if variable is not None:
            found[path] = variable
        else:
            below = (child for child in _children(node) if not _is_metric(type(child[1]).__mro__))
            queue.extend((f"{path}/{key}", child) for key, child in below)
    return found


def _variable(name: str, node: Any) -> Any:
    """TensorFlow's variable, which a Keras 3 variable holds; None for anything else. Raises ArgumentError if not made."""
    import tensorflow as tf

    if isinstance(node, tf.Variable):
        return node
    if "keras" not in sys.modules or not isinstance(node, sys.modules["keras"].Variable):
        return None
    if node._value is None:
        raise _unbuilt(name, node)
    return node._value


def _children(node: Any) -> Iterable[tuple[str, Any]]:
    from tensorflow.python.checkpoint.trackable_view import TrackableView
    from tensorflow.python.trackable.base import Trackable

    if isinstance(node, dict):
        yield from ((str(key), item) for key, item in node.items())
    elif isinstance(node, (list, tuple)):
        yield from ((str(index), item) for index, item in enumerate(node))
    elif _is_keras3(node):
        # Its own list has an order that does not depend on names, which are numbered anew with every object.
        own = [node.state] if _is_seed_generator(node) else node.variables
        yield from ((str(index), variable) for index, variable in enumerate(own))
        if getattr(node, "optimizer", None) is not None:
            yield "optimizer", node.optimizer
    if isinstance(node, Trackable):
        yield from TrackableView.children(node).items()


def _components(variable: Any) -> tuple[Any, ...]:
    """A distributed variable's copies in this worker; any other variable itself."""
    values = getattr(variable, "values", None)
    return tuple(values) if isinstance(values, (tuple, list)) else (variable,)


def read(variables: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The present values. On CPU they are not copied: TensorFlow copies a variable that is read when it is written next
    (copy on write), so what is returned does not change.
    """
    import tensorflow as tf

    def value(variable: Any) -> Any:  # as read_value() does, in a third of its time: a model has hundreds
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)

    return {key: as_array(value(_components(variable)[0])) for key, variable in variables.items()}


def as_array(tensor: Any) -> NDArray[Any]:
    """A tensor's content; on CPU it is not copied, but for scalars, and text."""
    import numpy as np

    if tensor.shape.rank and tensor.dtype.as_numpy_dtype is not object:
        return np.asarray(tensor)
    # TensorFlow gives some scalars, those of bfloat16 among them, as NumPy has them, not as arrays.
    return np.array(tensor.numpy(), tensor.dtype.as_numpy_dtype)


def assign(variables: dict[str, Any], arrays: dict[str, NDArray[Any]], adopts: bool = False) -> None:
    """Give every variable its value. Raises ArgumentError where the two sets or a shape differ.

    ``adopts``: nobody else writes to the arrays any more, so that on CPU the large ones need not be copied.
    """
    missing, unknown = sorted(set(variables) - set(arrays)), sorted(set(arrays) - set(variables))
    if missing or unknown:
        raise ArgumentError(
            f"the state to go on from is of another model: it lacks {missing[:5] or 'nothing'} and holds "
            f"{unknown[:5] or 'nothing'} besides; build the same model and optimizer"
        )
    for key, variable in variables.items():
        value = arrays[key]
        if tuple(variable.shape) != value.shape:
            raise ArgumentError(
                f"the state to go on from holds {key} of shape {value.shape}, this model has {tuple(variable.shape)} there "
                f"({variable.name})"
            )
    for key, variable in variables.items():
        value = _in_place(arrays[key]) if adopts else arrays[key]
        for component in _components(variable):
            component.assign(value)


def _in_place(array: NDArray[Any]) -> Any:
    """A tensor of this very memory, where TensorFlow can use it; else the array.

    It takes memory at multiples of 64 bytes alone, and ends the process for any other. Memory of its own costs more than the
    copy: the system gives it slowly.
    """
    import tensorflow as tf

    usable = array.dtype.name in ("float32", "float64", "float16", "int32", "int64") and array.flags.c_contiguous
    if not usable or array.nbytes < ADOPTED or array.ctypes.data % ALIGNMENT or not array.flags.writeable:
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
