"""Metrics of Keras over the rows of all workers: their states are sums and counts, which are added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.training import collective

_ADDED = ("sum", "none")  # of Keras 3's variables; "none" is what a metric of the user's own leaves it at


class Scorer:
    """A copy of a metric, so that neither a strategy nor an earlier state is in it."""

    def __init__(self, name: str, metric: Any) -> None:
        """Raises ArgumentError amid ``strategy.scope()``, and for a metric that cannot be made anew or added up."""
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

    def see(self, labels: Any, predictions: Any) -> None:
        """Take rows in."""
        self._metric.update_state(labels, predictions)

    def score(self) -> Any:
        """The metric of all workers' rows, a number or an array of them; called on all workers."""
        import numpy as np

        for number, variable in enumerate(self._metric.variables):
            mine = np.asarray(variable.numpy())
            variable.assign(collective.all_reduce(mine, "sum", name=f"{self._name}, state {number}"))
        result = np.asarray(self._metric.result())
        return float(result.reshape(())) if result.size == 1 else result


def prediction(predict: Any) -> Callable[[Any], Any]:
    """What predicts a batch: a model of Keras as it does after training, traced once; anything else itself."""
    import tensorflow as tf

    if not (isinstance(predict, tf.Module) or _is_keras3(predict)):
        unchanged: Callable[[Any], Any] = predict
        return unchanged
    traced = tf.function(lambda given: predict(given, training=False), reduce_retracing=True)
    return lambda given: traced(tf.nest.map_structure(tf.convert_to_tensor, given))


def _is_keras3(value: Any) -> bool:
    return any(kind.__module__.startswith("keras.") and kind.__name__ == "Layer" for kind in type(value).__mro__)
