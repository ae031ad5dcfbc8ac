"""Training loop for Keras 3 models with any algorithm of ``hopsml/training/averaging.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared import checks
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError
from hopsml.training.averaged_weights import AveragedWeights, check_group_is_fixed
from hopsml.training.averaging import Algorithm, Averaging, create_averaging
from hopsml.training.messages import ProgressSender, report
from hopsml.training.tensorflow import parameter_servers
from hopsml.training.tensorflow.distribution.strategy import strategy
from hopsml.training.tensorflow.fit.callbacks import scalars
from hopsml.training.tensorflow.fit.server_loop import ServerLoop, repeat_endlessly

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _KerasVariables:
    """Variables of a Keras model, found anew for each use."""

    def __init__(self, find: Callable[[], list[Any]]) -> None:
        """Create the view; ``find`` returns the variables."""
        self._find = find

    def values(self) -> list[NDArray[Any]]:
        """Return copies of the values."""
        return [one.numpy() for one in self._find()]

    def assign(self, values: Sequence[Any]) -> None:
        """Set the variables to these values."""
        for variable, value in zip(self._find(), values, strict=True):
            variable.assign(value)


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
        averaging = create_averaging(algorithm, settings)
        _check_run(current(), algorithm, averaging)
        self._dataset_fn = dataset_fn
        self._averages = averaging is not None
        self._strategy = _alone() if self._averages else strategy()
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
        self._weights: AveragedWeights | None = None
        if averaging is not None:
            self._weights = AveragedWeights(averaging, *self._variables())

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
        if self._weights is not None:
            self._weights.resume()
        progress = ProgressSender()
        for number in range(1, steps + 1):
            self._step(self._batches)
            if self._weights is not None:
                self._weights.count_step(is_last=number == steps)
            progress.send_progress(number, steps)
        if self._weights is not None:
            self._weights.pause()
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
        if self._averages:
            return iter(dataset)
        return iter(self._strategy.distribute_datasets_from_function(lambda _: dataset))

    # ---------------------------------------------------------------------------------------------- weights

    def _variables(self) -> tuple[_KerasVariables, _KerasVariables]:
        """Return the trained variables, and other floating-point ones, but not random states."""

        def others() -> list[Any]:
            return [one for one in self.model.non_trainable_variables if "float" in str(one.dtype)]

        return _KerasVariables(lambda: list(self.model.trainable_variables)), _KerasVariables(others)


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
    if averages is not None:
        check_group_is_fixed(context, algorithm)
