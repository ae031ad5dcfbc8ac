"""Normalisation utilities for Keras models and large batches: common statistics, and branches that start as zero."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hopsml.errors import ArgumentError
from hopsml.training.collective import all_reduce
from hopsml.training.large_batch import rules


def reduce_statistics(model: Any) -> int:
    """Replace the statistics of every batch normalisation by those of all workers; return the number of them."""
    found = [one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization) and one.built]
    for one in found:
        mean, variance = (
            np.asarray(each, np.float64) for each in (one.moving_mean.numpy(), one.moving_variance.numpy())
        )
        for variable, value in zip(
            (one.moving_mean, one.moving_variance), rules.reduce_moments(mean, variance, all_reduce), strict=True
        ):
            variable.assign(value)
    return len(found)


class ReducedStatistics(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that reduces the statistics of batch normalisations before each validation and at the end."""

    def on_test_begin(self, logs: Any = None) -> None:
        """Reduce the statistics before the first batch of a validation."""
        reduce_statistics(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        """Reduce the statistics of the trained model."""
        reduce_statistics(self.model)


def zero_last_gamma(model: Any) -> list[str]:
    """Set gamma of the last normalisation of each residual branch to 0; return the layers' names."""
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
    return set_gammas_to_zero(found)


def set_gammas_to_zero(layers: Any) -> list[str]:
    """Set gamma of these layers to 0; return their names."""
    for layer in layers:
        if getattr(layer, "gamma", None) is None:
            raise ArgumentError(
                f"zero_last_gamma: {getattr(layer, 'name', layer)} has no gamma: make it with scale=True"
            )
        layer.gamma.assign(np.zeros(layer.gamma.shape))
    return [layer.name for layer in layers]


def synchronize(model: Any) -> int:
    """Make batch normalisations compute mean and variance over all workers' batches; return the number of them."""
    found = [one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization)]
    for one in found:
        one.synchronized = True
    model.train_function = None  # a function that was traced before does not include the change
    return len(found)


def _feeding(layer: Any) -> list[Any]:
    """Return the operations whose outputs a layer takes."""
    return [tensor._keras_history.operation for tensor in layer._inbound_nodes[0].input_tensors]


def _last_normalisation(operation: Any) -> tuple[int, Any] | None:
    """Return the normalisation that ends a branch, with the branch's length in normalisations.

    The branch extends back to a split or another Add.
    """
    if not isinstance(operation, keras.layers.BatchNormalization) or operation.gamma is None:
        return None
    length, at = 0, operation
    while not isinstance(at, keras.layers.Add):
        length += isinstance(at, keras.layers.BatchNormalization)
        before = _feeding(at) if getattr(at, "_inbound_nodes", None) and at._inbound_nodes[0].input_tensors else []
        if len(before) != 1:
            break
        at = before[0]
        if len(getattr(at, "_outbound_nodes", [])) > 1:  # the branches part here
            break
    return length, operation
