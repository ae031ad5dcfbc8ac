"""Creation of optimizer variables before the first step, for Keras 3 and tf_keras, so that they can be restored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.training.tensorflow.groups import latest_strategy


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


def updates(model: Any) -> int:
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


def build(objects: Sequence[Any]) -> None:
    """Build every optimizer that these objects are or hold.

    A compiled model's optimizer gets the model's trainable variables; a separate one gets those of all other objects
    here.

    Args:
        objects: models, optimizers, variables.

    Raises:
        ArgumentError: there are two separate optimizers, so it is unknown which variables each trains; or a separate
            one has no variables to train.
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


def create_variables(optimizer: Any, variables: Sequence[Any]) -> None:
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
