"""The variables of TensorFlow and Keras objects as arrays, by a key that is the same on all ranks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.training.tensorflow.checkpoints import build_optimizers

if TYPE_CHECKING:
    from numpy.typing import NDArray


def is_trackable(value: Any) -> bool:
    """Whether TensorFlow would save it in a checkpoint."""
    from tensorflow.python.trackable.base import Trackable

    return isinstance(value, Trackable)


def collect(trackables: dict[str, Any]) -> dict[str, Any]:
    """All variables below these objects; the key is the path to it. Keras optimizers are built first.

    Raises ArgumentError for an object that has none yet: they could be neither committed nor restored.
    """
    build_optimizers(trackables)
    found: dict[str, Any] = {}
    for name, value in trackables.items():
        below = _below(name, value)
        if not below:
            raise ArgumentError(
                f"State({name}=...): this {type(value).__name__} has no variables yet; build it before the State is made, "
                "for instance by model.build(input_shape), optimizer.build(model.trainable_variables), or an Input layer"
            )
        found |= {key: variable for key, variable in below.items() if not any(variable is v for v in found.values())}
    return found


def _below(name: str, root: Any) -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow.python.checkpoint.trackable_view import TrackableView

    found: dict[str, Any] = {}
    seen: set[int] = set()
    queue: deque[tuple[str, Any]] = deque([(name, root)])
    while queue:
        path, node = queue.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, tf.Variable):
            found[path] = node
            continue
        queue.extend((f"{path}/{child}", below) for child, below in TrackableView.children(node).items())
    return found


def _components(variable: Any) -> tuple[Any, ...]:
    """A distributed variable's copies in this worker; any other variable itself."""
    values = getattr(variable, "values", None)
    return tuple(values) if isinstance(values, (tuple, list)) else (variable,)


def read(variables: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The present values. On CPU they are not copied: TensorFlow copies a variable that is read when it is written next
    (copy on write), so what is returned does not change.
    """
    import numpy as np

    return {key: np.asarray(_components(variable)[0].read_value()) for key, variable in variables.items()}


def assign(variables: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Give every variable its value. Raises ArgumentError where the two sets or a shape differ."""
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
                f"the state to go on from holds {key} of shape {value.shape}, this model has {tuple(variable.shape)}"
            )
        for component in _components(variable):
            component.assign(value)
