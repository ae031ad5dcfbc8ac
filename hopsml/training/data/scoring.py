"""Evaluation of a model on data that all workers read together, exact for any division of the rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training import collective
from hopsml.training.data.batch_reader import Names, missing_column_message
from hopsml.training.data.dataset import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

Metric = Callable[[Any, Any], float]


def evaluate(
    predict: Callable[[Any], Any], rows: Dataset, metrics: Mapping[str, Any], *, features: Names, label: str
) -> dict[str, Any]:
    """Return metrics of a model's predictions for all rows, equal on every worker and to those of a single process.

        scores = hopsml.data.evaluate(
            model, rows.batch(4096), {"auc": roc_auc_score, "loss": keras.metrics.BinaryCrossentropy()},
            features="features", label="label",
        )

    Every worker predicts its share of the rows once. The state of a Keras metric (sums and counts) is added up over the
    workers. A function is called with all labels and all predictions, which every worker then holds in memory.

    Args:
        predict: a Keras model, or a function that takes an array (for several features a dictionary of arrays) and
            returns the predictions for its rows, as an array or anything that NumPy converts to one.
        rows: a data set with a batch size; it is read once, whatever it repeats, shuffles or drops in training.
        metrics: by name, functions ``(labels, predictions) -> number``, or Keras metrics, which are not modified; a
            Keras metric with several numbers, for instance one per class, gives an array.
        features: the column, or columns, that ``predict`` receives.
        label: the column of the labels.

    Raises:
        ArgumentTypeError: ``predict`` cannot be called, or metrics have no names.
        ArgumentError: a column does not exist, the data has no rows, a metric's state is not a sum, or the number of
            predictions differs from that of rows.
        PeerLost: as for ``hopsml.all_reduce``; where the group may change, the rows of a worker that fails during the
            evaluation are missing instead.
        CollectiveTimeout: as for ``hopsml.all_reduce``.
    """
    if not callable(predict):
        raise ArgumentTypeError(
            f"predict={predict!r:.80} is not callable; pass a Keras model, or a function of an array"
        )
    if not isinstance(metrics, Mapping):
        raise ArgumentTypeError(f"metrics={metrics!r:.80} has no names; pass a dict: metrics={{'auc': roc_auc_score}}")
    scorers = {name: _scorer(name, metric) for name, metric in metrics.items()}
    called = _callable(predict)
    for batch in replace(rows, epochs=1, window=0, drop_last=False):
        labels = _column(batch, label)
        if len(labels):
            given = _column(batch, features) if isinstance(features, str) else {n: _column(batch, n) for n in features}
            predictions = called(given)
            _check_rows(predictions, len(labels))
            for scorer in scorers.values():
                scorer.add_batch(labels, predictions)
    return {name: scorer.score() for name, scorer in scorers.items()}


def _column(batch: Mapping[str, Any], name: str) -> Any:
    """Return a column of a batch. Raises ArgumentError if there is none of this name."""
    if name not in batch:
        raise ArgumentError(missing_column_message([name], batch))
    return batch[name]


def _check_rows(predictions: Any, rows: int) -> None:
    """Raise ArgumentError unless there is one prediction per row."""
    import numpy as np

    shape = tuple(predictions.shape if hasattr(predictions, "shape") else np.shape(predictions))
    if not shape or shape[0] != rows:
        raise ArgumentError(
            f"predict returned an array of shape {shape} for {rows} rows; it must return one prediction for each "
            "row, along the first axis"
        )


def _callable(predict: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function to call for predictions, which adapts Keras models if TensorFlow is imported."""
    if "tensorflow" in sys.modules:
        from hopsml.training.tensorflow.keras import group_state

        return group_state.batch_predictor(predict)
    return predict


def _scorer(name: str, metric: Any) -> Any:
    """Return the scorer for a Keras metric or a function."""
    if hasattr(metric, "update_state") and hasattr(metric, "get_config"):
        from hopsml.training.tensorflow.keras import group_state

        return group_state.Scorer(name, metric)
    if not callable(metric):
        raise ArgumentError(
            f"the metric {name!r} is a {type(metric).__name__}; it must be a function (labels, predictions) -> "
            "number, or a Keras metric"
        )
    return _OfAllRows(name, metric)


class _OfAllRows:
    """Scorer for a function of all labels and predictions, which the workers exchange."""

    def __init__(self, name: str, metric: Metric) -> None:
        self._name, self._metric = name, metric
        self._labels: list[NDArray[Any]] = []
        self._predictions: list[NDArray[Any]] = []

    def add_batch(self, labels: Any, predictions: Any) -> None:
        """Add the labels and predictions of a batch."""
        import numpy as np

        self._labels.append(np.asarray(labels))
        self._predictions.append(np.asarray(predictions))

    def score(self) -> float:
        """Return the metric of the rows of all workers."""
        labels = _of_all(self._labels, f"the labels of {self._name}")
        predictions = _of_all(self._predictions, f"the predictions of {self._name}")
        if labels is None or predictions is None:
            raise ArgumentError("the data has no rows, so there is nothing to evaluate")
        return float(self._metric(labels, predictions))


def _of_all(mine: list[NDArray[Any]], name: str) -> NDArray[Any] | None:
    """Return the rows of all workers, in rank order; None if no worker has any.

    The arrays are exchanged as pickles because a worker without rows does not know their type and shape.
    """
    import pickle

    import numpy as np

    content = pickle.dumps(np.concatenate(mine) if mine else None, protocol=5)
    sizes = collective.all_gather(np.array(len(content)), name=f"{name}: sizes")
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    gathered = collective.all_gather(padded, name=name)
    parts = [pickle.loads(part[:size].tobytes()) for part, size in zip(gathered, sizes.reshape(-1), strict=True)]
    there = [part for part in parts if part is not None]
    return np.concatenate(there) if there else None
