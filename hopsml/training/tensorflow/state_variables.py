"""Variables of TensorFlow and Keras objects as arrays and back, by keys that are the same on all ranks.

Keras creates an optimizer's variables at its first step; the functions here create them before, to be restored.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.training.elastic.commits import ALIGNMENT
from hopsml.training.tensorflow.groups import latest_strategy

if TYPE_CHECKING:
    from numpy.typing import NDArray


def is_optimizer(value: Any) -> bool:
    """Return True if ``value`` is an optimizer of Keras 3 or tf_keras, including the ``legacy`` ones."""
    return hasattr(value, "apply_gradients") and (hasattr(value, "build") or hasattr(value, "_create_all_weights"))


def is_built(optimizer: Any) -> bool:
    """Return True if the optimizer's variables have been created."""
    if hasattr(optimizer, "built"):
        return bool(optimizer.built)
    if hasattr(optimizer, "_create_all_weights"):
        return bool(optimizer._weights)
    return bool(getattr(optimizer, "_built", False))


def update_count(model: Any) -> int:
    """Return the number of updates of a model.

    It is the count of the optimizer that the model was compiled with; if that is 0, the largest count of the model's
    other optimizers. A model with a custom ``train_step`` may hold several, as that of a GAN does.
    """
    compiled = getattr(model, "optimizer", None)
    made = _updates(compiled) if compiled is not None else 0
    return made or max((_updates(own) for own in vars(model).values() if is_optimizer(own)), default=0)


def _updates(optimizer: Any) -> int:
    """Return the number of an optimizer's updates."""
    return int(optimizer.iterations.numpy())


def build_compiled(objects: Iterable[Any]) -> None:
    """Build the optimizers that these models were compiled with; a model that is not built is skipped."""
    for model in objects:
        optimizer = getattr(model, "optimizer", None)
        if is_optimizer(optimizer) and getattr(model, "built", False) and not is_built(optimizer):
            _make(optimizer, model.trainable_variables)


def build_optimizers(objects: Sequence[Any]) -> None:
    """Build every optimizer that these objects are or hold.

    A compiled model's optimizer gets the model's trainable variables; a separate one gets those of all other objects
    here.

    Args:
        objects: models, optimizers, variables.

    Raises:
        ArgumentError: two separate optimizers are not built yet, so it is unknown which variables each trains; or a
            separate one has no variables to train.
    """
    build_compiled(objects)
    alone = [value for value in objects if is_optimizer(value) and not is_built(value)]
    if len(alone) > 1:
        raise ArgumentError(
            f"{len(alone)} optimizers have no variables yet, and it is not known which of the trained variables belong to "
            "which: call optimizer.build(model.trainable_variables) for each before"
        )
    for optimizer in alone:
        if trained := _trainable(value for value in objects if not is_optimizer(value)):
            _make(optimizer, trained)
        else:
            raise ArgumentError(
                f"this {type(optimizer).__name__} has no variables yet, and nothing that it could train is beside it: call "
                "optimizer.build(model.trainable_variables) before, or give the model as well"
            )


def _trainable(objects: Iterable[Any]) -> list[Any]:
    """Return the trainable variables of these objects, each once."""
    found: dict[int, Any] = {}
    for value in objects:
        of_it = getattr(value, "trainable_variables", [value] if getattr(value, "trainable", False) else [])
        found.update((id(variable), variable) for variable in of_it)
    return list(found.values())


def create_optimizer_variables(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create the variables of a tf_keras optimizer that trains ``variables``, outside of any function."""
    import tensorflow as tf

    with tf.init_scope():
        (getattr(optimizer, "_create_all_weights", None) or optimizer.build)(list(variables))


def _make(optimizer: Any, variables: Sequence[Any]) -> None:
    """Build an optimizer in the scope of its strategy."""
    make = getattr(optimizer, "_create_all_weights", None) or optimizer.build
    strategy = getattr(optimizer, "_distribution_strategy", None) or latest_strategy()
    with strategy.scope() if strategy is not None else nullcontext():
        make(variables)


ADOPTED = 1 << 20  # bytes: smaller arrays are copied as fast


def is_trackable(name: str, value: Any) -> bool:
    """Return True if a State's value is an object with variables, or a dict, list or tuple of such objects.

    Raises:
        ArgumentError: a container holds objects of both kinds; only one kind could be restored.
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
    """Return True for an object with variables, of TensorFlow or Keras 3."""
    from tensorflow.python.trackable.base import Trackable

    return isinstance(value, Trackable) or _is_keras3(value)


def _is_keras3(value: Any) -> bool:
    """Return True for an object of Keras 3 with variables; not all of them are trackable for TensorFlow."""
    if not _comes_of_keras3(type(value).__mro__):
        return False
    return sys.modules["keras"].config.backend() == "tensorflow" and (
        hasattr(value, "variables") or _is_seed_generator(value)
    )


@functools.cache  # classes are few, and each commit calls this thousands of times
def _comes_of_keras3(bases: tuple[type, ...]) -> bool:
    """Return True if one of the classes is defined in Keras 3."""
    return any(kind.__module__.startswith("keras.") for kind in bases)


def _is_seed_generator(value: Any) -> bool:
    """Return True for a random seed generator of Keras 3."""
    return any(kind.__name__ == "SeedGenerator" for kind in type(value).__mro__)


@functools.cache
def _is_metric(bases: tuple[type, ...]) -> bool:
    """Return True if one of the classes is a metric of Keras 3 or tf_keras."""
    return any(kind.__name__ == "Metric" and kind.__module__.startswith(("keras.", "tf_keras.")) for kind in bases)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the objects in nested containers."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def collect_variables(trackables: Mapping[str, Any]) -> dict[str, Any]:
    """Return all variables below these objects, by their paths; Keras optimizers are built first.

    The metrics of a model are left out, because they restart with every epoch and differ between workers. A metric
    that is passed itself is included.

    Args:
        trackables: objects with variables, by name.

    Raises:
        ArgumentError: an object has no variables yet, so they could be neither committed nor restored.
    """
    objects = [(name, leaf) for name, value in trackables.items() for leaf in _leaves(value)]
    for name, value in objects:
        _check_built(name, value)
    build_optimizers([value for _, value in objects])
    found: dict[str, Any] = {}
    known: set[int] = set()
    # An optimizer also holds its model's variables, which must have the model's key, because the model may be
    # requested alone.
    for name, value in sorted(trackables.items(), key=lambda named: is_optimizer(named[1])):
        below = _below(name, value)
        if not below:
            raise _unbuilt(name, value)
        for key, variable in below.items():
            if id(variable) not in known:  # a variable shared by two objects has one key
                known.add(id(variable))
                found[key] = variable
    return found


def _check_built(name: str, value: Any) -> None:
    """Raise ArgumentError for a layer or model of either Keras without variables; optimizers are not checked."""
    if hasattr(value, "trainable_weights") and not getattr(value, "built", True):
        raise _unbuilt(name, value)


def _unbuilt(name: str, value: Any) -> ArgumentError:
    """Return the error for an object without variables."""
    return ArgumentError(
        f"State({name}=...): this {type(value).__name__} has no variables yet; build it before the State is made, "
        "for instance by model.build(input_shape), optimizer.build(model.trainable_variables), or an Input layer"
    )


def _below(name: str, root: Any) -> dict[str, Any]:
    """Return all variables below an object, by their paths."""
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # with the objects, because an id is reused once its object is deleted
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
    """Return TensorFlow's variable, also that in a Keras 3 variable; None for anything else.

    Raises ArgumentError for a Keras variable that has not been created yet.
    """
    import tensorflow as tf

    if isinstance(node, tf.Variable):
        return node
    if "keras" not in sys.modules or not isinstance(node, sys.modules["keras"].Variable):
        return None
    if node._value is None:
        raise _unbuilt(name, node)
    return node._value


def _children(node: Any) -> Iterable[tuple[str, Any]]:
    """Yield the named parts of an object."""
    from tensorflow.python.checkpoint.trackable_view import TrackableView
    from tensorflow.python.trackable.base import Trackable

    if isinstance(node, dict):
        yield from ((str(key), item) for key, item in node.items())
    elif isinstance(node, (list, tuple)):
        yield from ((str(index), item) for index, item in enumerate(node))
    elif _is_keras3(node):
        # Keras's own list has an order independent of names, which are numbered again with every object.
        own = [node.state] if _is_seed_generator(node) else node.variables
        yield from ((str(index), variable) for index, variable in enumerate(own))
        if getattr(node, "optimizer", None) is not None:
            yield "optimizer", node.optimizer
    if isinstance(node, Trackable):
        yield from TrackableView.children(node).items()


def _components(variable: Any) -> tuple[Any, ...]:
    """Return a distributed variable's copies in this worker; any other variable itself."""
    values = getattr(variable, "values", None)
    return tuple(values) if isinstance(values, (tuple, list)) else (variable,)


def read_values(variables: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the present values of variables, on CPU without copies.

    TensorFlow copies a variable that is being read when it is next written (copy on write), so the returned arrays do
    not change.
    """
    import tensorflow as tf

    # Equivalent to read_value() in a third of its time; a model has hundreds of variables.
    def value(variable: Any) -> Any:
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)

    return {key: as_array(value(_components(variable)[0])) for key, variable in variables.items()}


def as_array(tensor: Any) -> NDArray[Any]:
    """Return a tensor's content; on CPU it is not copied, except for scalars and text."""
    import numpy as np

    if tensor.shape.rank and tensor.dtype.as_numpy_dtype is not object:
        return np.asarray(tensor)
    # TensorFlow returns some scalars, including those of bfloat16, as numpy scalars instead of arrays.
    return np.array(tensor.numpy(), tensor.dtype.as_numpy_dtype)


def assign(variables: dict[str, Any], arrays: dict[str, NDArray[Any]], adopts: bool = False) -> None:
    """Assign arrays to variables.

    Args:
        variables: the variables by key.
        arrays: their values by key.
        adopts: True if nothing else writes to the arrays any more, so that on CPU the large ones need not be copied.

    Raises:
        ArgumentError: the two sets of keys or a shape differ.
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
    """Return a tensor that shares the array's memory, if TensorFlow can use it; else the array.

    TensorFlow accepts only memory at multiples of 64 bytes, and terminates the process for any other. Allocating new
    memory costs more than the copy, because the system provides it slowly.
    """
    import tensorflow as tf

    usable = array.dtype.name in ("float32", "float64", "float16", "int32", "int64") and array.flags.c_contiguous
    if not usable or array.nbytes < ADOPTED or array.ctypes.data % ALIGNMENT or not array.flags.writeable:
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
