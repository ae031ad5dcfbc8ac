"""Re-creation of a Keras 3 model's variables on parameter servers after the loss of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def make_again(model: Any, strategy: Any) -> None:
    """Create every variable of the model, its metrics and its optimizer again under ``strategy``, as zeros.

    The user's objects stay the same, so objects built from them remain valid; functions that were traced do not.
    """
    import numpy as np

    with strategy.scope():
        for variable in variables_of(model):
            variable._initialize(np.zeros(tuple(variable.shape), _plain(variable.dtype)))
    model._distribute_strategy = strategy
    for name in ("train_function", "test_function", "predict_function"):
        setattr(model, name, None)
    for optimizer in _optimizers(model):
        optimizer._distribution_strategy = strategy
        trained = getattr(optimizer, "_trainable_variables", ())
        if hasattr(optimizer, "_trainable_variables_indices"):
            optimizer._trainable_variables_indices = {optimizer._var_key(one): i for i, one in enumerate(trained)}


def variables_of(model: Any) -> list[Any]:
    """Return the variables of the model, its metrics and its optimizer, each once."""
    found: dict[int, Any] = {}
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    for variable in (*model.variables, *metrics, *model.optimizer.variables):
        found[id(variable)] = variable
    return list(found.values())


def _optimizers(model: Any) -> Iterator[Any]:
    """Yield the model's optimizer, and those that it wraps (as LossScaleOptimizer does)."""
    optimizer = model.optimizer
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _plain(dtype: str) -> str:
    """Return a type for zeros that numpy has without extensions; TensorFlow casts them."""
    return "float32" if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else str(dtype)
