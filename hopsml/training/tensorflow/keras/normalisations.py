"""Normalisation utilities for Keras models and large batches: common statistics, and branches that start as zero."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from hopsml.errors import ArgumentError
from hopsml.training.collective import all_reduce
from hopsml.training.large_batch import rules, statistics


def reduce_statistics(model: Any) -> int:
    """Replace the statistics of every batch normalisation by those of all workers; return the number of them."""
    found = [one for one in _normalisations(model) if one.built]
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


def recompute_statistics(model: Any, batches: Iterable[Any]) -> int:
    """Replace the statistics of batch normalisations by those of their inputs over all workers' batches.

    Returns the number of changed normalisations; see ``hopsml.large_batch.recompute_statistics``.
    """
    import tensorflow as tf

    found = [one for one in _normalisations(model) if one.built and one.trainable]
    if not found:
        return 0
    sums = [tf.Variable(tf.zeros((3, *one.moving_mean.shape), tf.float64), trainable=False) for one in found]
    evaluate = tf.function(lambda x: model(x, training=False), reduce_retracing=True, autograph=False)
    with _normalising_by_batch(found, sums):
        for batch in batches:
            features = keras.tree.map_structure(tf.convert_to_tensor, keras.utils.unpack_x_y_sample_weight(batch)[0])
            if keras.tree.flatten(features)[0].shape[0]:
                evaluate(features)
    model._clear_losses()  # those of the traced function
    joined = all_reduce(np.concatenate([one.numpy().reshape(-1) for one in sums]), "sum", name="recompute_statistics")
    whole = np.split(joined, np.cumsum([3 * one.shape[1] for one in sums])[:-1])
    statistics.check_any_rows(float(one[0]) for one in whole)
    changed = 0
    for one, (count, total, squares) in zip(found, (part.reshape(3, -1) for part in whole), strict=True):
        if count[0]:  # the forward pass has reached it
            mean, variance = statistics.moments_of_sums(float(count[0]), total, squares)
            one.moving_mean.assign(mean)
            one.moving_variance.assign(variance)
            if getattr(one, "renorm", False):  # an argument of newer versions
                one.moving_stddev.assign(np.sqrt(variance + one.epsilon))
            changed += 1
    return changed


def _normalisations(model: Any) -> list[Any]:
    """Return the batch normalisations of a model, those of nested models included."""
    return [one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization)]


@contextlib.contextmanager
def _normalising_by_batch(layers: list[Any], sums: list[Any]) -> Iterator[None]:
    """Let layers normalise by their batch in this context, and add their inputs' moments to ``sums``.

    Their statistics are restored afterwards.
    """
    before = [[one.numpy() for one in layer.non_trainable_variables] for layer in layers]
    synchronized = [layer.synchronized for layer in layers]
    try:
        for layer, own in zip(layers, sums, strict=True):
            layer.synchronized = False  # workers may have unequal numbers of batches
            vars(layer)["call"] = _recording(layer, layer.call, own)
        yield
    finally:
        for layer, values, was_synchronized in zip(layers, before, synchronized, strict=True):
            vars(layer).pop("call", None)
            layer.synchronized = was_synchronized
            for variable, value in zip(layer.non_trainable_variables, values, strict=True):
                variable.assign(value)


def _recording(layer: Any, call: Callable[..., Any], sums: Any) -> Callable[..., Any]:
    """Return ``call`` of a layer in training mode, which also adds its input's moments to ``sums``."""

    def recorded(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        sums.assign_add(_moment_sums(inputs, mask, layer.axis % len(inputs.shape)))
        return call(inputs, training=True, mask=mask)

    return recorded


def _moment_sums(inputs: Any, mask: Any, axis: int) -> Any:
    """Return number, sum and sum of squares of each channel, shape (3, channels), without masked values."""
    import tensorflow as tf

    wide = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
    others = [one for one in range(len(inputs.shape)) if one != axis]
    if mask is None:
        mean, variance = tf.nn.moments(wide, others)
        count = tf.fill(tf.shape(mean), tf.size(wide, tf.int64) // tf.size(mean, tf.int64))
    else:
        is_used = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(wide))
        count = tf.reduce_sum(tf.cast(is_used, tf.int64), others)
        mean, variance = _masked_moments(wide, is_used, tf.cast(count, wide.dtype), others)
    count, mean, variance = (tf.cast(one, tf.float64) for one in (count, mean, variance))
    return tf.stack([count, count * mean, count * (variance + mean * mean)])


def _masked_moments(x: Any, is_used: Any, count: Any, axes: list[int]) -> tuple[Any, Any]:
    """Return mean and variance over some axes of the values that are used."""
    import tensorflow as tf

    mean = tf.math.divide_no_nan(tf.reduce_sum(tf.where(is_used, x, 0), axes), count)
    distance = tf.where(is_used, x - mean, 0)  # Keras has masks of all axes but the last one, that of the channels
    return mean, tf.math.divide_no_nan(tf.reduce_sum(distance * distance, axes), count)


class RecomputedStatistics(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that recomputes the statistics of batch normalisations before each validation and at the end.

    Nothing is recomputed twice for the same weights.
    """

    def __init__(self, batches: Any, share: float) -> None:
        """Create the callback; ``batches`` may be a function that returns them."""
        super().__init__()
        self._batches, self._share = batches, share
        self._is_current = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note that the weights have changed."""
        self._is_current = False

    def on_test_begin(self, logs: Any = None) -> None:
        """Recompute the statistics before the first batch of a validation."""
        self._recompute()

    def on_train_end(self, logs: Any = None) -> None:
        """Recompute the statistics of the trained model."""
        self._recompute()

    def _recompute(self) -> None:
        if self._is_current:
            return
        batches = self._batches() if callable(self._batches) else self._batches
        recompute_statistics(self.model, statistics.first_batches(batches, self._share))
        self._is_current = True


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
    found = _normalisations(model)
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
