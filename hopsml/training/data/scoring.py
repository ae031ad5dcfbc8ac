"""How good a model is on data that all workers read together: exact, whatever share of the rows each of them has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training import collective
from hopsml.training.data.batch_reader import Names
from hopsml.training.data.dataset import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

Metric = Callable[[Any, Any], float]


def evaluate(
    predict: Callable[[Any], Any], rows: Dataset, metrics: Mapping[str, Any], *, features: Names, label: str
) -> dict[str, Any]:
    """Metrics of what ``predict`` makes of all rows, the same on every worker and as one process alone would have them.

    scores = hopsml.data.evaluate(
        model, rows.batch(4096), {"auc": roc_auc_score, "loss": keras.metrics.BinaryCrossentropy()},
        features="features", label="label",
    )

    Every worker predicts its share of the rows once. The state of a metric of Keras, sums and counts, is added up over the
    workers. A function is called with all labels and all predictions, which lie in the memory of every worker then.

    Args:
        predict: a model of Keras, or what takes an array (for several features a dictionary of arrays) and returns the
            predictions of its rows: an array, or what numpy makes one of.
        rows: with the size of its batches; read once, whatever it repeats, shuffles or drops in training.
        metrics: by name, functions ``(labels, predictions) -> number``, or metrics of Keras, which are left as they are;
            what gives several numbers, for instance one for each class, is an array of them.
        features, label: columns.

    Raises:
        ArgumentTypeError: ``predict`` cannot be called, or metrics have no names.
        ArgumentError: a column that is not there, data without rows, a metric whose state is no sum, another number of
            predictions than of rows.
        PeerLost, CollectiveTimeout: as of ``hopsml.all_reduce``; where the group may change, rows of a worker that is lost
            meanwhile are missing.
    """
    if not callable(predict):
        raise ArgumentTypeError(
            f"predict={predict!r:.80} cannot be called; give a model of Keras, or a function of an array"
        )
    if not isinstance(metrics, Mapping):
        raise ArgumentTypeError(f"metrics={metrics!r:.80} has no names; give a dict: metrics={{'auc': roc_auc_score}}")
    scorers = {name: _scorer(name, metric) for name, metric in metrics.items()}
    called = _callable(predict)
    for batch in replace(rows, epochs=1, window=0, drop_last=False):
        labels = _column(batch, label)
        if len(labels):
            given = _column(batch, features) if isinstance(features, str) else {n: _column(batch, n) for n in features}
            predictions = called(given)
            _check_rows(predictions, len(labels))
            for scorer in scorers.values():
                scorer.see(labels, predictions)
    return {name: scorer.score() for name, scorer in scorers.items()}


def _column(batch: Mapping[str, Any], name: str) -> Any:
    if name not in batch:
        raise ArgumentError(f"the data has no column {name}; there are {', '.join(batch)}")
    return batch[name]


def _check_rows(predictions: Any, rows: int) -> None:
    import numpy as np

    shape = tuple(predictions.shape if hasattr(predictions, "shape") else np.shape(predictions))
    if not shape or shape[0] != rows:
        raise ArgumentError(
            f"predict made something of the shape {shape} of {rows} rows; it must return a prediction for each "
            "of them, along the first axis"
        )


def _callable(predict: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if "tensorflow" in sys.modules:
        from hopsml.training.tensorflow import metric_states

        return metric_states.prediction(predict)
    return predict


def _scorer(name: str, metric: Any) -> Any:
    if hasattr(metric, "update_state") and hasattr(metric, "get_config"):
        from hopsml.training.tensorflow import metric_states

        return metric_states.Scorer(name, metric)
    if not callable(metric):
        raise ArgumentError(
            f"the metric {name!r} is a {type(metric).__name__}; it must be a function (labels, predictions) -> number, or a "
            "metric of Keras"
        )
    return _OfAllRows(name, metric)


class _OfAllRows:
    """A function of all labels and predictions, which workers give each other."""

    def __init__(self, name: str, metric: Metric) -> None:
        self._name, self._metric = name, metric
        self._labels: list[NDArray[Any]] = []
        self._predictions: list[NDArray[Any]] = []

    def see(self, labels: Any, predictions: Any) -> None:
        import numpy as np

        self._labels.append(np.asarray(labels))
        self._predictions.append(np.asarray(predictions))

    def score(self) -> float:
        labels = _of_all(self._labels, f"the labels of {self._name}")
        predictions = _of_all(self._predictions, f"the predictions of {self._name}")
        if labels is None or predictions is None:
            raise ArgumentError("the data has no rows, so there is nothing to evaluate")
        return float(self._metric(labels, predictions))


def _of_all(mine: list[NDArray[Any]], name: str) -> NDArray[Any] | None:
    """The rows of all workers, in the order of their ranks; a worker without any may not know what they are like."""
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
