"""Training of a Keras 3 model with parameter servers: steps, checkpoints, and recovery from the loss of a server.

Workers make steps at their own pace. A step is counted after the last of its updates, so a counted step was applied
completely. A step in progress on a worker that fails is repeated by another one; it may have been applied and counted
before, so that one step more than requested may be counted. After the loss of a parameter server, its variables are
created again, and all variables are restored from the newest checkpoint, in this same process.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hopsml.cluster.shared import checks
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.messages import ProgressSender, report
from hopsml.training.tensorflow import state_variables
from hopsml.training.tensorflow.checkpoints import Checkpointer
from hopsml.training.tensorflow.fit.callbacks import scalars


def recreate_variables(model: Any, strategy: Any) -> None:
    """Create every variable of the model, its metrics and its optimizer again under ``strategy``, as zeros.

    The user's objects stay the same, so objects built from them remain valid; functions that were traced do not.
    """
    import numpy as np

    with strategy.scope():
        for variable in variables_of(model):
            variable._initialize(np.zeros(tuple(variable.shape), _plain(variable.dtype)))
    model._distribute_strategy = strategy
    for name in ("train_function", "test_function", "predict_function"):
        setattr(model, name, None)
    for optimizer in _optimizers(model):
        optimizer._distribution_strategy = strategy
        trained = getattr(optimizer, "_trainable_variables", ())
        if hasattr(optimizer, "_trainable_variables_indices"):
            optimizer._trainable_variables_indices = {optimizer._var_key(one): i for i, one in enumerate(trained)}


def variables_of(model: Any) -> list[Any]:
    """Return the variables of the model, its metrics and its optimizer, each once."""
    found: dict[int, Any] = {}
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    for variable in (*model.variables, *metrics, *model.optimizer.variables):
        found[id(variable)] = variable
    return list(found.values())


def _optimizers(model: Any) -> Iterator[Any]:
    """Yield the model's optimizer, and those that it wraps (as LossScaleOptimizer does)."""
    optimizer = model.optimizer
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _plain(dtype: str) -> str:
    """Return a type for zeros that numpy has without extensions; TensorFlow casts them."""
    return "float32" if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else str(dtype)


REPORT_S = 5.0
_PROGRESS_S = 0.5
_saved_by: dict[str, int] = {}  # run -> id of the loop of this process that has saved there last
_ONLY_READ = ("ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd", "LookupTableFindV2")
_OTHER_SERVER = (
    "remote workers have been restarted",
    "unknown device",
    "unable to find the relevant tensor remote_handle",
)


def repeat_endlessly(dataset_fn: Callable[[], Any]) -> Any:
    """Return the user's dataset, repeated endlessly; raise ArgumentTypeError if it is none."""
    import tensorflow as tf

    dataset = dataset_fn()
    if not isinstance(dataset, tf.data.Dataset):
        raise ArgumentTypeError(
            f"dataset_fn() gave a {type(dataset).__name__}; it must give a tf.data.Dataset of batches"
        )
    return dataset if dataset.cardinality() == tf.data.INFINITE_CARDINALITY else dataset.repeat()


class ServerLoop:
    """Training loop for a compiled Keras 3 model with ``ClusterCoordinator``, to an exact number of steps.

        strategy = hopsml.tensorflow.strategy()
        with strategy.scope():
            model = keras.Sequential([...])
            model.compile("adam", "mse")
        logs = hopsml.tensorflow.ServerLoop(model, dataset_fn, checkpoint_every_steps=500).run(10_000)

    Without parameter servers the same steps are made in this process; outside of a run there are no checkpoints. A
    second loop of the same function continues from the checkpoints of the first: ``run`` counts their steps together.

    Attributes:
        steps: number of steps applied to the model, including those before a restored checkpoint.
        recoveries: number of recoveries from the loss of a parameter server.
        staleness: mean number of other updates between a step's reading of the variables and its update.
    """

    @checks.accepts_older(checkpoint_every="checkpoint_every_steps")
    def __init__(
        self,
        model: Any,
        dataset_fn: Callable[[], Any],
        *,
        checkpoint_every_steps: int = 1000,
        keep: int = 3,
        most_recoveries: int = 10,
    ) -> None:
        """Restore the newest checkpoint of the run, or of the one that it continues from.

        Args:
            model: built and compiled in the strategy's scope.
            dataset_fn: called on each worker; returns its ``tf.data.Dataset`` of batches ``(x, y)`` or ``(x, y,
                weights)``, which is repeated. Workers draw independently, so it should shuffle.
            checkpoint_every_steps: steps between two checkpoints; steps lost with a parameter server are repeated.
            keep: number of newest checkpoints to retain.
            most_recoveries: largest number of consecutive recoveries without a new checkpoint; one more loss ends the
                training.

        Raises:
            ArgumentError: the model is not built and compiled, or a number is below 1.
        """
        for name, value in (
            ("checkpoint_every_steps", checkpoint_every_steps),
            ("keep", keep),
            ("most_recoveries", most_recoveries),
        ):
            checks.whole_number(name, value)
        if getattr(model, "optimizer", None) is None or not getattr(model, "built", False):
            raise ArgumentError(
                f"ServerLoop({type(model).__name__}): the model must be built and compiled: give it a keras.Input, and call "
                "model.compile(optimizer, loss) inside strategy.scope()"
            )
        self._model, self._dataset_fn = model, dataset_fn
        self._every, self._keep, self._most_recoveries = checkpoint_every_steps, keep, most_recoveries
        self.recoveries, self.staleness, self._fruitless = 0, 0.0, 0
        self._newest_logs: dict[str, float] = {}
        self._strategy = model.distribute_strategy
        self._open()
        found = self._restore()
        if self._opened_at and _saved_by.get(_run_id(), id(self)) != id(self):
            print(
                f"hopsml: this ServerLoop continues from step {self._opened_at}, which an earlier one of this function has "
                "made: run(steps) counts those as well, so ask for more of them"
            )
        if not found:
            self._save(0)  # for recovery from the loss of a server before the first checkpoint

    @property
    def steps(self) -> int:
        """Number of steps that have been applied to the model."""
        return int(self._guarded(self._count))

    def _count(self) -> int:
        """Return the number of applied steps."""
        return int(self._counts.numpy()[0])

    def run(self, steps: int) -> dict[str, float]:
        """Train until ``steps`` steps have been applied since the training's beginning.

        Errors of a step pass through.

        Args:
            steps: total number of steps.

        Returns:
            The model's metrics, with ``steps``, ``steps_per_second`` and ``staleness``.

        Raises:
            ArgumentError: ``steps`` is below 1.
        """
        checks.whole_number("steps", steps)
        progress, began = ProgressSender(), time.monotonic()
        done = before = self.steps
        while done < steps:
            goal = min(steps, (done // self._every + 1) * self._every)
            done = self._guarded(functools.partial(self._reach, goal, steps, progress))
        progress.send_progress(steps, steps)
        seconds = time.monotonic() - began
        logs = self._newest_logs or self._guarded(self._logs)
        return {**logs, "steps_per_second": (logs["steps"] - before) / seconds}

    # ---------------------------------------------------------------------------------------------- steps

    def _open(self) -> None:
        """Create all objects that depend on the strategy: coordinator, counters, traced step, and datasets."""
        import tensorflow as tf

        with self._strategy.scope():
            state_variables.build_compiled([self._model])
            # Two sums over applied steps: their number, and the number applied when each read the variables; updated
            # by one call to a server.
            self._counts = tf.Variable([0, 0], dtype=tf.int64, trainable=False, name="counts")
        # On the chief: the count that checkpoints store.
        self._saved = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps")
        trained = {"model": self._model, "steps": self._saved}
        self._checkpointer = Checkpointer(keep=self._keep, **trained) if current() is not None else None
        # As in Keras's own fit, AutoGraph does not rewrite functions called inside.
        self._step = tf.function(tf.autograph.experimental.do_not_convert(self._one_step), autograph=False)
        self._coordinator: Any = None
        self._served = isinstance(self._strategy, tf.distribute.ParameterServerStrategy)
        if self._served:
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
            self._batches = iter(self._coordinator.create_per_worker_dataset(self._dataset))
        else:
            self._batches = iter(self._strategy.experimental_distribute_dataset(self._dataset()))

    def _dataset(self) -> Any:
        """Return the user's dataset; TensorFlow traces this method."""
        return repeat_endlessly(self._dataset_fn)

    def _one_step(self, batches: Any) -> None:
        """Do one step on a worker and count it."""
        import tensorflow as tf

        operations = tf.compat.v1.get_default_graph().get_operations
        with tf.device(self._counts.device):  # otherwise the sums are computed on the worker, with one transfer each
            more = tf.stack([tf.constant(1, tf.int64), self._counts.read_value()[0]])
        batch = next(batches)
        before = len(operations())
        self._strategy.run(self._model.train_step, args=(batch,))
        with tf.control_dependencies(_writing(operations()[before:])), tf.device(self._counts.device):
            self._counts.assign_add(more)

    def _reach(self, goal: int, total: int, progress: ProgressSender) -> int:
        """Make steps until ``goal`` steps are applied, then save; return the number applied."""
        while (missing := goal - (done := self._count())) > 0:
            if self._coordinator is None:
                for _ in range(missing):
                    self._step(self._batches)
            else:
                for _ in range(missing):
                    self._coordinator.schedule(self._step, args=(self._batches,))
                self._follow(total, progress)
        self._iterations.assign(self._iterations_before + done)  # Keras counts a repeated step twice
        self._newest_logs = self._tell(total, progress)
        self._model.reset_metrics()  # each report covers the steps since the last checkpoint
        self._save(done)
        self._fruitless = 0
        return done

    def _follow(self, total: int, progress: ProgressSender) -> None:
        """Wait until all scheduled steps are done, and report progress; errors of steps pass through."""
        speak = time.monotonic() + REPORT_S
        # The coordinator's own join() waits for the same queue, but takes no timeout.
        while not self._coordinator._cluster.closure_queue.wait(timeout=_PROGRESS_S):
            progress.send_progress(self._count(), total)
            if time.monotonic() >= speak:
                speak = time.monotonic() + REPORT_S
                self._tell(total, progress)

    def _tell(self, total: int, progress: ProgressSender) -> dict[str, float]:
        """Report progress and metrics to the driver; return the metrics."""
        logs = self._logs()
        progress.send_progress(int(logs["steps"]), total)
        report(step=int(logs["steps"]), **{name: value for name, value in logs.items() if name != "steps"})
        return logs

    def _logs(self) -> dict[str, float]:
        """Return the present metrics, with ``steps`` and ``staleness``."""
        done, seen = (int(value) for value in self._counts.numpy())
        self.staleness = mean_staleness(self._opened_at, done, seen)
        metrics = scalars(self._model.get_metrics_result())
        return {**metrics, "steps": float(done), "staleness": self.staleness}

    # ---------------------------------------------------------------------------------------------- loss of a server

    def _guarded(self, act: Callable[[], Any]) -> Any:
        """Return the result of ``act``; after the loss of a parameter server, recover and call it again."""
        lost = False
        while True:
            try:
                if lost:
                    self._recover()
                    lost = False
                return act()
            except Exception as error:
                if not self._served or not is_server_loss(error, has_trained=bool(self._newest_logs)):
                    raise
                self._fruitless += 1  # also counts a further loss during a recovery
                if self._fruitless > self._most_recoveries:
                    raise
                lost = True
                print(
                    f"hopsml: a parameter server was lost ({str(error).splitlines()[0]:.200}): its variables are restored"
                )

    def _recover(self) -> None:
        """Connect again, create the variables again, and restore the newest checkpoint."""
        from hopsml.training.tensorflow import parameter_servers

        if self._coordinator is not None:
            _stop(self._coordinator)
            self._coordinator = None
        self._strategy = parameter_servers.strategy([])
        recreate_variables(self._model, self._strategy)
        self._open()
        self._restore()
        self.recoveries += 1

    def _save(self, done: int) -> None:
        """Save a checkpoint of ``done`` steps."""
        if self._checkpointer is not None:
            self._saved.assign(done)
            self._checkpointer.save(done, recoveries=self.recoveries)
            _saved_by[_run_id()] = id(self)

    def _restore(self) -> bool:
        """Restore the newest checkpoint and return True if there was one; one of step 0 is recognized by its notes."""
        step = self._checkpointer.restore_latest() if self._checkpointer is not None else 0
        self._opened_at = int(self._saved.numpy())
        self._counts.assign([self._opened_at, 0])
        optimizer = getattr(self._model.optimizer, "inner_optimizer", self._model.optimizer)
        # With gradient accumulation, Keras's ``iterations`` counts updates only.
        self._iterations = optimizer._iterations
        self._iterations_before = int(self._iterations.numpy()) - self._opened_at  # > 0 if the model was trained before
        return step > 0 or (self._checkpointer is not None and bool(self._checkpointer.notes))


def _run_id() -> str:
    """Return the id of this worker's run; "" outside of one."""
    context = current()
    return context.run_id if context is not None else ""


def mean_staleness(first: int, done: int, seen: int) -> float:
    """Return the mean number of other updates between a step's reading and its update.

    Each of the present steps found ``first`` to ``done - 1`` steps applied when it was counted, one number each.

    Args:
        first: steps applied before.
        done: steps applied in all.
        seen: sum over the present steps of the number applied when each read the variables.
    """
    steps = done - first
    found = steps * (first + done - 1) // 2
    return (found - seen) / max(1, steps)


def _writing(operations: Iterable[Any]) -> list[Any]:
    """Return those of a graph's operations that may write variables, including calls of functions."""
    import tensorflow as tf

    stateful = (operation for operation in operations if operation.op_def.is_stateful)
    return [
        operation
        for operation in stateful
        if operation.type not in _ONLY_READ and any(one.dtype == tf.resource for one in operation.inputs)
    ]


def is_server_loss(error: Exception, has_trained: bool = True) -> bool:
    """Return True if a call failed because a server is missing, or was restarted after its variables were created.

    A call meets a restarted server if the coordinator has connected again, for a worker that came back, before any
    call to the parameter server that failed with it. A worker whose connections are replaced during a step reports an
    end of its endless data.

    Args:
        error: error of the call.
        has_trained: True once the training has had data, so that an end of data indicates a loss.
    """
    import tensorflow as tf

    error = getattr(
        error, "original_exception", error
    )  # of a step whose inputs could not be created, as TensorFlow wraps it
    if isinstance(error, tf.errors.InvalidArgumentError):
        return any(words in str(error).lower() for words in _OTHER_SERVER)
    if isinstance(error, tf.errors.OutOfRangeError):
        return has_trained
    return isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)


def _stop(coordinator: Any) -> None:
    """End a coordinator's threads, which wait for servers that will not be used again."""
    coordinator._cluster.stop()
