"""State of Keras layers and metrics that each worker of a group computes from its own rows.

Moving statistics: in Keras 3 and tf_keras those of every worker are those of its share of the batches. Workers then
evaluate differently, and with Keras 3 the chief's checkpoint holds the statistics of its part of the data. Here the
statistics that a ``strategy.run`` has updated are averaged over the replicas at its end, all of them in one merged
reduction. The update is linear in the batch's mean and variance, so this equals averaging these before the update. A
layer that is called inside a separate tf.function within the step is averaged right there: the step's own trace may
never see that call (the function may have been traced before), and workers must not differ in what they reduce.

Own state: a layer's ``add_weight(trainable=False)`` has ``aggregation="none"``; a step assigns a value computed from the
worker's own rows, and only the chief's value is saved. Differences are reported at the end of ``fit``.

Metrics: the states of an evaluation's metrics are sums and counts, which are added up over the workers.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, CollectiveError
from hopsml.training import collective
from hopsml.training.tensorflow import mirrored
from hopsml.training.tensorflow.groups import broadcast_bytes, spans_workers

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


def batch_predictor(predict: Any) -> Callable[[Any], Any]:
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


def install_state_comparison() -> None:
    """Patch ``fit`` of Keras 3 to compare the workers' state when training ends."""
    from keras.src.callbacks.callback_list import CallbackList

    original = CallbackList.on_train_end

    def on_train_end(self: Any, logs: Any = None) -> None:
        original(self, logs)
        strategy, context = getattr(self.model, "distribute_strategy", None), current()
        regroups = context is not None and context.spec.group.regroups  # a worker that joins may skip this fit
        if spans_workers(strategy) and not regroups:
            report_differing_variables(self.model, strategy)

    CallbackList.on_train_end = on_train_end


def report_differing_variables(model: Any, strategy: Any) -> list[str]:
    """Print a warning about variables that differ from the chief's, and return their paths; all workers call it."""
    digests = {one.path: _digest(one) for one in model.non_trainable_variables if _is_own(one)}
    if not digests:  # the same on all workers: no collective operation is needed
        return []
    import tensorflow as tf

    try:
        of_chief: dict[str, str] = json.loads(broadcast_bytes(strategy, json.dumps(digests).encode()))
    except (CollectiveError, tf.errors.UnavailableError):
        return []  # the chief's ``fit`` has failed, as on a full disk, and its function has ended
    differing = [path for path, digest in digests.items() if of_chief.get(path, digest) != digest]
    if differing:
        print(
            f"hopsml: layer state differs between this worker and the chief, and only the chief's is saved: "
            f"{', '.join(differing)}. Each worker has assigned values computed from its own rows; "
            'add_weight(..., aggregation="mean") averages them over the workers'
        )
    return differing


def _is_own(variable: Any) -> bool:
    """Return True for numeric variables that no strategy aggregates, but not for states of random numbers."""
    return getattr(variable, "aggregation", None) == "none" and "float" in str(variable.dtype)


def _digest(variable: Any) -> str:
    """Return a digest of a variable's value."""
    return hashlib.blake2b(variable.numpy().tobytes(), digest_size=16).hexdigest()


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


@dataclass
class _Step:
    """State of one ``strategy.run`` of this replica: its graph (None when eager), and the updated statistics."""

    graph: Any
    updated: dict[int, Any] = field(default_factory=dict)


class _Thread(threading.local):
    """Present step of a replica's thread."""

    step: _Step | None = None


_thread = _Thread()
_steps_average = False


def patch_keras3_normalization() -> None:
    """Patch Keras 3's BatchNormalization so that all workers hold the same moving statistics."""
    from keras.src.layers import BatchNormalization

    _average_after_call(BatchNormalization)
    _keep_statistics_of_empty_batch(BatchNormalization)
    _average_after_step()


def patch_tf_keras_normalization(module: ModuleType) -> None:
    """Patch the batch normalisation of tf_keras; ``module`` is the one that defines it."""
    _average_after_call(module.BatchNormalizationBase)
    _average_after_step()


def _average_after_step() -> None:
    """Patch TensorFlow's strategies to average the statistics at the end of each step; done once."""
    from tensorflow.python.distribute import mirrored_run

    global _steps_average
    if _steps_average:
        return
    _steps_average = True
    original = mirrored_run._call_for_each_replica

    def call_for_each_replica(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if trains_one_model(strategy):
            fn = average_updated_statistics(fn)
        return original(strategy, fn, args, kwargs)

    mirrored_run._call_for_each_replica = call_for_each_replica


def trains_one_model(strategy: Any) -> bool:
    """Return True if a strategy's replicas train one model: those of a group, and those mirrored in one process."""
    import tensorflow as tf

    mirrors = mirrored.is_mirrored_run(current()) and isinstance(strategy, tf.distribute.MirroredStrategy)
    return spans_workers(strategy) or (mirrors and strategy.num_replicas_in_sync > 1)


def average_updated_statistics(fn: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Wrap ``fn`` so that the statistics that it has updated are averaged afterwards, in the replica's thread."""

    def step_then_average(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        outer, _thread.step = _thread.step, _Step(_function_graph())
        try:
            result = fn(*args, **kwargs)
            updated = list(_thread.step.updated.values())
        finally:
            _thread.step = outer
        if updated:
            _average(updated, nested=False)
        return result

    return step_then_average


def _average_after_call(layer_class: Any) -> None:
    """Patch a layer class to register the statistics that a call updates."""
    original = layer_class.call

    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        outputs = original(self, inputs, training=training, mask=mask)
        if training and self.trainable and not self.synchronized:
            _note_update([getattr(self, name) for name in _STATISTICS if getattr(self, name, None) is not None])
        return outputs

    layer_class.call = call


def tensorflow_variable(variable: Any) -> Any:
    """Return the TensorFlow variable inside a Keras 3 variable; a variable of tf_keras is one itself."""
    import tensorflow as tf

    return variable if isinstance(variable, tf.Variable) else variable.value


def _note_update(variables: list[Any]) -> None:
    """Register updated statistics for the end of the step, or average them at once where the step cannot."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or not trains_one_model(replica.strategy):
        return
    step = _thread.step
    if step is not None and step.graph is _function_graph():
        step.updated.update((id(variable), variable) for variable in variables)
    else:
        _average(variables, nested=True)


def _average(variables: list[Any], nested: bool) -> None:
    """Replace each replica's values by their mean; ``nested``: where a merge call is not possible."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    values = [tf.identity(variable) for variable in variables]
    mean = tf.distribute.ReduceOp.MEAN
    if nested:
        reduced = replica.strategy.extended._replica_ctx_all_reduce(mean, values)
    else:
        reduced = replica.all_reduce(mean, values)
    for variable, value in zip(variables, reduced, strict=True):
        variable.assign(value)


def _function_graph() -> Any:
    """Return the function being traced, seen through the branches and loops inside it; None when eager."""
    import tensorflow as tf

    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph


def _keep_statistics_of_empty_batch(layer_class: Any) -> None:
    """Patch a layer class so that an empty share of the last batch does not turn the statistics into NaN."""
    original = layer_class._moments

    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        import tensorflow as tf

        mean, variance = original(self, inputs, mask)
        if self.synchronized or (inputs.shape[0] is not None and inputs.shape[0] > 0):
            return mean, variance
        empty = tf.equal(tf.size(inputs), 0)
        return (
            tf.where(empty, tf.cast(self.moving_mean, mean.dtype), mean),
            tf.where(empty, tf.cast(self.moving_variance, variance.dtype), variance),
        )

    layer_class._moments = moments
