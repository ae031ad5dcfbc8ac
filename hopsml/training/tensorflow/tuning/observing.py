"""Observation of a training function's gradients, shape and type of each, without training.

The function is called on all workers as it would be to train. The first gradients of a ``tf.GradientTape`` that are
several count as the training's: while the step that computes them is still being traced, the function is left by an
exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from hopsml.training.tensorflow.import_hook import after_import
from hopsml.tuning.candidates import Gradient

FEWEST = 2  # a single one may be that of a gradient penalty


class _Seen(BaseException):
    """Exception that leaves the user's function; as a BaseException it is not handled there as an error."""

    def __init__(self, gradients: list[Gradient]) -> None:
        super().__init__()
        self.gradients = gradients


def first_gradients(function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[Gradient]:
    """Return the gradients that ``function(**arguments)`` computes first; none if it ends without any."""
    after_import("tensorflow", _watch)
    try:
        function(**arguments)
    except _Seen as seen:
        return seen.gradients
    return []


def _watch(tensorflow: ModuleType) -> None:
    """Patch TensorFlow's gradient tape to raise ``_Seen``."""
    original = tensorflow.GradientTape.gradient

    def gradient(tape: Any, *arguments: Any, **named: Any) -> Any:
        found = original(tape, *arguments, **named)
        gradients = dense(found)
        if len(gradients) >= FEWEST:
            raise _Seen(gradients)
        return found

    tensorflow.GradientTape.gradient = gradient


def dense(found: Any) -> list[Gradient]:
    """Return shape and type of the dense gradients, which are reduced element by element.

    Gradients of embeddings are gathered instead.
    """
    import tensorflow as tf

    return [
        (tuple(int(length) for length in value.shape), str(value.dtype.name))
        for value in tf.nest.flatten(found)
        if isinstance(value, tf.Tensor) and value.shape.is_fully_defined()
    ]
