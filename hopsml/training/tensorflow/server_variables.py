"""The variables of a Keras 3 model on parameter servers, made anew where a server is lost that held some of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def make_again(model: Any, strategy: Any) -> None:
    """Give every variable of the model, its metrics and its optimizer a new place under ``strategy``; values are zeros.

    The objects stay the ones that the user has, so what was built of them stays valid; functions that were traced do not.
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
    """The variables of the model, its metrics and its optimizer, each once."""
    found: dict[int, Any] = {}
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    for variable in (*model.variables, *metrics, *model.optimizer.variables):
        found[id(variable)] = variable
    return list(found.values())


def _optimizers(model: Any) -> Iterator[Any]:
    """The model's optimizer, and what that wraps (a LossScaleOptimizer)."""
    optimizer = model.optimizer
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _plain(dtype: str) -> str:
    """A type that NumPy has without more: zeros of it are cast."""
    return "float32" if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else str(dtype)
