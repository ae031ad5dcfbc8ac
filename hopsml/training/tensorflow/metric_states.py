"""Keras metrics over the rows of all workers: their states are sums and counts, which are added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.training import collective

_ADDED = ("sum", "none")  # of Keras 3's variables; "none" is the default for a user's own metric


class Scorer:
    """Copy of a metric, without the original's strategy and state."""

    def __init__(self, name: str, metric: Any) -> None:
        """Copy a metric by its configuration.

        Args:
            name: name of the metric, for errors.
            metric: a metric of Keras 3 or tf_keras.

        Raises:
            ArgumentError: inside ``strategy.scope()``, or the metric cannot be created again or added up.
        """
        import tensorflow as tf

        if tf.distribute.has_strategy():
            raise ArgumentError("evaluate() makes metrics that are no strategy's; call it outside of strategy.scope()")
        self._name = name
        try:
            self._metric = type(metric).from_config(metric.get_config())
        except Exception as error:
            raise ArgumentError(
                f"the metric {name!r} ({type(metric).__name__}) cannot be made anew from its get_config(): {error}; let it "
                "return what the class takes"
            ) from error
        added = (*_ADDED, tf.VariableAggregation.SUM, tf.VariableAggregation.NONE)
        for variable in self._metric.variables:
            if variable.aggregation not in added:
                raise ArgumentError(
                    f"the metric {name!r} keeps {variable.name}, which is not added up over workers (aggregation "
                    f"{variable.aggregation!r}); give evaluate() a function (labels, predictions) -> number instead"
                )

    def add_batch(self, labels: Any, predictions: Any) -> None:
        """Update the metric with further rows."""
        self._metric.update_state(labels, predictions)

    def score(self) -> Any:
        """Return the metric of all workers' rows, a number or an array of them; all workers must call it."""
        import numpy as np

        for number, variable in enumerate(self._metric.variables):
            mine = np.asarray(variable.numpy())
            variable.assign(collective.all_reduce(mine, "sum", name=f"{self._name}, state {number}"))
        result = np.asarray(self._metric.result())
        return float(result.reshape(())) if result.size == 1 else result


def prediction(predict: Any) -> Callable[[Any], Any]:
    """Return a function that predicts a batch with a model; other callables are returned unchanged.

    A Keras model runs in inference mode and is traced once.
    """
    import tensorflow as tf

    if not (isinstance(predict, tf.Module) or _is_keras3(predict)):
        unchanged: Callable[[Any], Any] = predict
        return unchanged
    traced = tf.function(lambda given: predict(given, training=False), reduce_retracing=True)
    return lambda given: traced(tf.nest.map_structure(tf.convert_to_tensor, given))


def _is_keras3(value: Any) -> bool:
    """Return True for a layer or model of Keras 3."""
    return any(kind.__module__.startswith("keras.") and kind.__name__ == "Layer" for kind in type(value).__mro__)
