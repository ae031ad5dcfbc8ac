"""Normalisations of Keras models for large batches: statistics of all workers, residual branches that begin with nothing."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hopsml.errors import ArgumentError
from hopsml.training.collective import all_reduce
from hopsml.training.large_batch import statistics


def reduce_statistics(model: Any) -> int:
    """Give every batch normalisation the statistics of all workers; returns how many there are."""
    found = [one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization) and one.built]
    for one in found:
        mean, variance = (
            np.asarray(each, np.float64) for each in (one.moving_mean.numpy(), one.moving_variance.numpy())
        )
        for variable, value in zip(
            (one.moving_mean, one.moving_variance), statistics.reduced(mean, variance, all_reduce), strict=True
        ):
            variable.assign(value)
    return len(found)


class ReducedStatistics(keras.callbacks.Callback):  # type: ignore[misc]
    """Reduces the statistics of batch normalisations over the workers before each validation, and at the end."""

    def on_test_begin(self, logs: Any = None) -> None:
        """Before the first batch of a validation."""
        reduce_statistics(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        """The trained model has them, too."""
        reduce_statistics(self.model)


def zero_last_gamma(model: Any) -> list[str]:
    """Set gamma of the last normalisation of each residual branch to 0; returns the layers' names."""
    found = []
    for layer in model.layers:
        if isinstance(layer, keras.layers.Add):
            ends = [_last_normalisation(operation) for operation in _feeding(layer)]
            branches = [one for one in ends if one is not None]
            if branches:
                found.append(max(branches, key=lambda one: one[0])[1])
    if not found:
        raise ArgumentError(
            f"zero_last_gamma({model.name}): no Add layer is fed by a BatchNormalization that has a gamma; residual blocks "
            "are found in functional models alone: for others give the normalisations, zero_last_gamma([layer, ...])"
        )
    return zero(found)


def zero(layers: Any) -> list[str]:
    """Set gamma of these layers to 0; returns their names."""
    for layer in layers:
        if getattr(layer, "gamma", None) is None:
            raise ArgumentError(
                f"zero_last_gamma: {getattr(layer, 'name', layer)} has no gamma: make it with scale=True"
            )
        layer.gamma.assign(np.zeros(layer.gamma.shape))
    return [layer.name for layer in layers]


def synchronize(model: Any) -> int:
    """Have batch normalisations take mean and variance over all workers' batches; returns how many there are."""
    found = [one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization)]
    for one in found:
        one.synchronized = True
    model.train_function = None  # one that was traced before does not know it
    return len(found)


def _feeding(layer: Any) -> list[Any]:
    return [tensor._keras_history.operation for tensor in layer._inbound_nodes[0].input_tensors]


def _last_normalisation(operation: Any) -> tuple[int, Any] | None:
    """The normalisation that ends a branch, with the branch's length in normalisations, up to a split or another Add."""
    if not isinstance(operation, keras.layers.BatchNormalization) or operation.gamma is None:
        return None
    length, at = 0, operation
    while not isinstance(at, keras.layers.Add):
        length += isinstance(at, keras.layers.BatchNormalization)
        before = _feeding(at) if getattr(at, "_inbound_nodes", None) and at._inbound_nodes[0].input_tensors else []
        if len(before) != 1:
            break
        at = before[0]
        if len(getattr(at, "_outbound_nodes", [])) > 1:  # where the branches part
            break
    return length, operation
