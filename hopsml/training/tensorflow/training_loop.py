"""Trains a Keras 3 model by any of the algorithms that ``hopsml/training/algorithms`` knows, in one loop for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared import checks
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training import collective
from hopsml.training.algorithms.averaging import Averaging
from hopsml.training.algorithms.choice import Algorithm, averaging
from hopsml.training.report import ProgressSender, report
from hopsml.training.tensorflow import parameter_servers
from hopsml.training.tensorflow.callbacks import scalars
from hopsml.training.tensorflow.server_loop import ServerLoop
from hopsml.training.tensorflow.strategy import strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Paused:
    """Weights between two calls of ``run``, as lists of arrays.

    Attributes:
        own: this worker's weights. others: its statistics.
        mean: mean of all workers' weights.
        shown: the trained model's weights, which the user sees.
    """

    own: list[NDArray[Any]]
    others: list[NDArray[Any]]
    mean: list[NDArray[Any]]
    shown: list[NDArray[Any]]


class TrainingLoop:
    """One loop for synchronous and asynchronous SGD, and for those that average weights: the name alone changes.

        def train(algorithm="local_sgd"):
            loop = hopsml.tensorflow.TrainingLoop(build, dataset_fn, algorithm)
            logs = loop.run(steps=1000)             # of each worker: as many samples with every algorithm
            return {"loss": logs["loss"], ...}      # loop.model is the trained one, on every worker

        experiment.collective_all_reduce(train, num_workers=4)
        experiment.parameter_server(train, args={"algorithm": "async_sgd"}, num_workers=4, num_ps=1)

    Attributes: ``model``: the model that is trained.
    """

    def __init__(
        self,
        build: Callable[[], Any],
        dataset_fn: Callable[[], Any],
        algorithm: Algorithm = "sync_sgd",
        **settings: Any,
    ) -> None:
        """Makes the model, with the same weights on all workers.

        Args:
            build: makes a model that is built and compiled; called in the scope that the algorithm needs.
            dataset_fn: called on each worker; gives its ``tf.data.Dataset`` of batches, which is repeated. A step is a batch
                of it on each worker.
            algorithm: "sync_sgd": gradients are reduced in every step. "local_sgd", "block_momentum", "elastic_averaging":
                each worker trains by itself, its optimizer's own variables included, and weights are brought together every
                few steps; statistics of normalisations are averaged. "async_sgd": by parameter servers.
            settings: ``every`` for those that average weights: steps of a block, 8. block_momentum: ``momentum``
                (1 - 1 / N), ``rate`` (1.0), ``nesterov`` (True). elastic_averaging: ``beta`` (0.9).

        Raises ArgumentError for an unknown algorithm or setting, for async_sgd without parameter servers and any other with
        them, for weights that are averaged in a group that may change, and for a model that is not built and compiled.
        """
        self._averaging = averaging(algorithm, settings)
        _check_run(current(), algorithm, self._averaging)
        self._dataset_fn = dataset_fn
        self._strategy = _alone() if self._averaging is not None else strategy()
        with self._strategy.scope():
            self.model = build()
        if getattr(self.model, "optimizer", None) is None or not getattr(self.model, "built", False):
            raise ArgumentError(
                "build() must give a model that is built and compiled: give it a keras.Input, and call "
                "model.compile(optimizer, loss)"
            )
        self._servers = ServerLoop(self.model, dataset_fn) if algorithm == "async_sgd" else None
        if self._servers is None:
            self._step, self._batches = self._traced(), self._endless()
        self._steps = 0  # of all calls of run()
        self._paused: _Paused | None = None
        if self._averaging is not None:
            self._begin(self._averaging)

    def run(self, steps: int) -> dict[str, float]:
        """Train for ``steps`` steps of each worker; returns the model's metrics over them, of this worker's batches.

        Several calls train what one call with the sum of their steps does: behind each of them ``model`` is the trained one
        so far, and the next one goes on from each worker's own weights. Weights that were changed meanwhile, on any worker,
        are what it begins anew with: the chief's.

        Raises what a step raises, and what ``hopsml.all_reduce`` does; ArgumentError for ``steps`` below 1.
        """
        steps = checks.whole_number("steps", steps)
        if self._servers is not None:
            return self._servers.run(self._servers.steps + steps * getattr(self._strategy.extended, "_num_workers", 1))
        self.model.reset_metrics()
        if self._averaging is not None:
            self._go_on(self._averaging)
        progress = ProgressSender()
        for number in range(1, steps + 1):
            self._step(self._batches)
            self._steps += 1
            if self._averaging is not None and self._averaging.is_due(self._steps) and number < steps:
                self._assign(self._averaging.adopt(_values(self._trained), self._mean()))
            progress.tell(number, steps)
        if self._averaging is not None:
            self._pause(self._averaging)
        logs = scalars(self.model.get_metrics_result())
        report(step=steps, **logs)
        return dict(logs)

    # ---------------------------------------------------------------------------------------------- steps

    def _traced(self) -> Callable[[Iterator[Any]], None]:
        import tensorflow as tf

        def one_step(batches: Any) -> None:
            self._strategy.run(self.model.train_step, args=(next(batches),))

        # As Keras's own fit has it: what is called inside is not rewritten.
        return tf.function(tf.autograph.experimental.do_not_convert(one_step), autograph=False)

    def _endless(self) -> Iterator[Any]:
        import tensorflow as tf

        dataset = self._dataset_fn()
        if not isinstance(dataset, tf.data.Dataset):
            raise ArgumentTypeError(
                f"dataset_fn() gave a {type(dataset).__name__}; it must give a tf.data.Dataset of batches"
            )
        endless = dataset if dataset.cardinality() == tf.data.INFINITE_CARDINALITY else dataset.repeat()
        if self._averaging is not None:
            return iter(endless)
        return iter(self._strategy.distribute_datasets_from_function(lambda _: endless))

    # ---------------------------------------------------------------------------------------------- weights

    def _begin(self, chosen: Averaging) -> None:
        """All workers begin with the chief's weights."""
        for variables in (self._trained, self._others):
            _assign(variables, _each(_values(variables), collective.broadcast))
        chosen.begin(_values(self._trained), collective.place()[1])

    def _pause(self, chosen: Averaging) -> None:
        """Set ``model`` to the weights trained so far, and store the worker's own weights for the next call."""
        own, others = _values(self._trained), _values(self._others)
        mean = self._mean()
        self._assign(chosen.final(mean))
        self._paused = _Paused(own, others, mean, _values(self._trained))

    def _go_on(self, chosen: Averaging) -> None:
        """Restore the stored weights if no worker has changed the model's since; otherwise start from the chief's."""
        import numpy as np

        paused, self._paused = self._paused, None
        if paused is None:
            return
        pairs = zip(paused.shown, _values(self._trained), strict=True)
        untouched = all(np.array_equal(shown, now, equal_nan=True) for shown, now in pairs)
        if not int(collective.all_reduce(np.array(int(untouched)), "min")):
            self._steps = 0
            self._begin(chosen)
        elif chosen.is_due(self._steps):
            self._assign(chosen.adopt(paused.own, paused.mean))
        else:
            self._assign(paused.own)
            _assign(self._others, paused.others)

    @property
    def _trained(self) -> list[Any]:
        return list(self.model.trainable_variables)

    @property
    def _others(self) -> list[Any]:
        """Statistics of normalisations, for instance; a state of random numbers is each worker's own."""
        return [one for one in self.model.non_trainable_variables if "float" in str(one.dtype)]

    def _mean(self) -> list[NDArray[Any]]:
        """Of the trained variables; the other ones get theirs at once."""
        trained, others = _values(self._trained), _values(self._others)
        mean = _each([*trained, *others], collective.all_reduce)
        _assign(self._others, mean[len(trained) :])
        return mean[: len(trained)]

    def _assign(self, values: Sequence[Any]) -> None:
        _assign(self._trained, values)


def _values(variables: Sequence[Any]) -> list[NDArray[Any]]:
    return [one.numpy() for one in variables]


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _each(arrays: Sequence[NDArray[Any]], act: Callable[[NDArray[Any]], NDArray[Any]]) -> list[NDArray[Any]]:
    """What ``act`` makes of all arrays of one type together, each in its own shape."""
    import numpy as np

    found: dict[int, NDArray[np.generic]] = {}
    for kind in dict.fromkeys(array.dtype for array in arrays):
        chosen = [number for number, array in enumerate(arrays) if array.dtype == kind]
        joined = act(np.concatenate([arrays[number].reshape(-1) for number in chosen]))
        ends = itertools.accumulate(arrays[number].size for number in chosen)
        parts = np.split(joined, list(ends)[:-1])
        found |= {number: part.reshape(arrays[number].shape) for number, part in zip(chosen, parts, strict=True)}
    return [found[number] for number in range(len(arrays))]


def _alone() -> Any:
    """TensorFlow's default strategy: a worker that trains by itself."""
    import tensorflow as tf

    return tf.distribute.get_strategy()


def _check_run(context: WorkerContext | None, algorithm: str, averages: Averaging | None) -> None:
    if context is None:
        return
    served = parameter_servers.is_chief(context)
    if served != (algorithm == "async_sgd"):
        verb = "experiment.collective_all_reduce" if served else "experiment.parameter_server(train, num_ps=1)"
        raise ArgumentError(f"algorithm={algorithm!r} cannot train in this run; start the function by {verb}")
    if averages is not None and context.spec.group.regroups:
        raise ArgumentError(
            f"algorithm={algorithm!r} in a group that may change: a newcomer would not have the weights of the others' "
            "blocks; give num_workers= instead of min_workers= and max_workers="
        )
