"""Training loop for Keras 3 models with any algorithm of ``hopsml/training/averaging.py``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared import checks
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError
from hopsml.training import collective
from hopsml.training.averaging import Algorithm, Averaging, create_averaging
from hopsml.training.messages import ProgressSender, report
from hopsml.training.tensorflow import parameter_servers
from hopsml.training.tensorflow.distribution.strategy import strategy
from hopsml.training.tensorflow.fit.callbacks import scalars
from hopsml.training.tensorflow.fit.server_loop import ServerLoop, repeat_endlessly

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Paused:
    """Weights between two calls of ``run``, as lists of arrays.

    Attributes:
        own: this worker's weights.
        others: its statistics.
        mean: mean of all workers' weights.
        shown: the trained model's weights, which the user sees.
    """

    own: list[NDArray[Any]]
    others: list[NDArray[Any]]
    mean: list[NDArray[Any]]
    shown: list[NDArray[Any]]


class TrainingLoop:
    """Training loop for synchronous SGD, asynchronous SGD and weight averaging, selected by the algorithm's name.

        def train(algorithm="local_sgd"):
            loop = hopsml.tensorflow.TrainingLoop(build, dataset_fn, algorithm)
            logs = loop.run(steps=1000)             # of each worker: as many samples with every algorithm
            return {"loss": logs["loss"], ...}      # loop.model is the trained one, on every worker

        experiment.collective_all_reduce(train, num_workers=4)
        experiment.parameter_server(train, args={"algorithm": "async_sgd"}, num_workers=4, num_ps=1)

    Attributes:
        model: the model that is trained.
    """

    def __init__(
        self,
        build: Callable[[], Any],
        dataset_fn: Callable[[], Any],
        algorithm: Algorithm = "sync_sgd",
        **settings: Any,
    ) -> None:
        """Build the model, with the same weights on all workers.

        Args:
            build: returns a model that is built and compiled; called in the scope that the algorithm needs.
            dataset_fn: called on each worker; returns its ``tf.data.Dataset`` of batches, which is repeated. A step
                is a batch of it on each worker.
            algorithm: "sync_sgd": gradients are reduced in every step. "local_sgd", "block_momentum",
                "elastic_averaging": each worker trains independently, including its optimizer's variables, and
                weights are combined every few steps; statistics of normalisations are averaged. "async_sgd": by
                parameter servers.
            **settings: ``every`` for weight averaging: steps of a block, 8. block_momentum: ``momentum`` (1 - 1 / N),
                ``rate`` (1.0), ``nesterov`` (True). elastic_averaging: ``beta`` (0.9).

        Raises:
            ArgumentError: an unknown algorithm or setting, async_sgd without parameter servers or another algorithm
                with them, weight averaging in a group that may change, or a model that is not built and compiled.
        """
        self._averaging = create_averaging(algorithm, settings)
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
        """Train for ``steps`` steps of each worker, and return the metrics of this worker's batches.

        Several calls train the same as one call with the sum of their steps: after each of them ``model`` has the
        weights trained so far, and the next one continues from each worker's own weights. If weights were changed in
        between, on any worker, training restarts from the chief's. Errors of a step and of ``hopsml.all_reduce`` pass
        through.

        Args:
            steps: number of steps of each worker.

        Raises:
            ArgumentError: ``steps`` is below 1.
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
                self._assign(self._averaging.combine_weights(_values(self._trained), self._mean()))
            progress.send_progress(number, steps)
        if self._averaging is not None:
            self._pause(self._averaging)
        logs = scalars(self.model.get_metrics_result())
        report(step=steps, **logs)
        return dict(logs)

    # ---------------------------------------------------------------------------------------------- steps

    def _traced(self) -> Callable[[Iterator[Any]], None]:
        """Return the traced step."""
        import tensorflow as tf

        def one_step(batches: Any) -> None:
            self._strategy.run(self.model.train_step, args=(next(batches),))

        # As in Keras's own fit, AutoGraph does not rewrite functions called inside.
        return tf.function(tf.autograph.experimental.do_not_convert(one_step), autograph=False)

    def _endless(self) -> Iterator[Any]:
        """Return an endless iterator over this worker's batches."""
        dataset = repeat_endlessly(self._dataset_fn)
        if self._averaging is not None:
            return iter(dataset)
        return iter(self._strategy.distribute_datasets_from_function(lambda _: dataset))

    # ---------------------------------------------------------------------------------------------- weights

    def _begin(self, chosen: Averaging) -> None:
        """Start all workers with the chief's weights."""
        for variables in (self._trained, self._others):
            _assign(variables, _each(_values(variables), collective.broadcast))
        chosen.begin(_values(self._trained), collective.rank_and_size()[1])

    def _pause(self, chosen: Averaging) -> None:
        """Set ``model`` to the weights trained so far, and store the worker's own weights for the next call."""
        own, others = _values(self._trained), _values(self._others)
        mean = self._mean()
        self._assign(chosen.final_weights(mean))
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
            self._assign(chosen.combine_weights(paused.own, paused.mean))
        else:
            self._assign(paused.own)
            _assign(self._others, paused.others)

    @property
    def _trained(self) -> list[Any]:
        """Trainable variables of the model."""
        return list(self.model.trainable_variables)

    @property
    def _others(self) -> list[Any]:
        """Other floating-point variables, such as statistics of normalisations, but not random states."""
        return [one for one in self.model.non_trainable_variables if "float" in str(one.dtype)]

    def _mean(self) -> list[NDArray[Any]]:
        """Return the mean of the trained variables over all workers, and set the other variables to their mean."""
        trained, others = _values(self._trained), _values(self._others)
        mean = _each([*trained, *others], collective.all_reduce)
        _assign(self._others, mean[len(trained) :])
        return mean[: len(trained)]

    def _assign(self, values: Sequence[Any]) -> None:
        """Assign values to the trained variables."""
        _assign(self._trained, values)


def _values(variables: Sequence[Any]) -> list[NDArray[Any]]:
    """Return the values of variables as arrays."""
    return [one.numpy() for one in variables]


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Assign values to variables."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _each(arrays: Sequence[NDArray[Any]], act: Callable[[NDArray[Any]], NDArray[Any]]) -> list[NDArray[Any]]:
    """Apply ``act`` to all arrays of one type together, and return the results in the arrays' shapes."""
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
    """Return TensorFlow's default strategy, for a worker that trains by itself."""
    import tensorflow as tf

    return tf.distribute.get_strategy()


def _check_run(context: WorkerContext | None, algorithm: str, averages: Averaging | None) -> None:
    """Raise ArgumentError if the algorithm cannot train in this run."""
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
