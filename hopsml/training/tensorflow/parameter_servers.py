"""Training with parameter servers: the action of each role of such a run, and the chief's strategy.

Only the chief calls the user's function; workers and parameter servers run TensorFlow's server, to which the chief's
strategy assigns work. hopsml starts those servers, so a function in the form of TensorFlow's tutorial never reaches
its branch for ``worker`` and ``ps``, which starts a server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hopsml.cluster.shared.layout import CHIEF, PS, WORKER
from hopsml.cluster.worker import collective_stats
from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError, StartTimeout
from hopsml.training.tensorflow import setup
from hopsml.training.tensorflow.import_hook import after_import

MIN_SHARD_BYTES = 256 << 10  # smaller parts cost more calls than they distribute work
TASKS_TIMEOUT_S = 120.0  # for servers that are being started or restarted


def run_role(function: Callable[..., Any], arguments: dict[str, Any], context: WorkerContext) -> Any:
    """Perform this member's role: the chief and the evaluator call the function, the others serve.

    Workers and parameter servers serve until they are ended.
    """
    if context.role in (WORKER, PS):
        _serve()
    if context.role == CHIEF:
        after_import("tensorflow", lambda module: _wait_for_tasks_first())
        after_import("keras.src.backend.tensorflow.core", _know_variables)
        after_import("keras.src.backend.tensorflow.trainer", _refuse_fit)
    return function(**arguments)


BODY = f"{__name__}:{run_role.__name__}"


def is_chief(context: WorkerContext | None) -> bool:
    """Return True if this process is the chief of a run with parameter servers."""
    return context is not None and context.spec.body == BODY and context.role == CHIEF


def _serve() -> None:
    """Run TensorFlow's server until SIGTERM ends the process; never returns."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = config["cluster"], config["task"]
    # A call to another task occupies a thread until it is answered: with fewer threads tasks could wait for each
    # other endlessly.
    threads = max(len(os.sched_getaffinity(0)), len(cluster["worker"]) + len(cluster["ps"]) + 1)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster),
        job_name=task["type"],
        task_index=int(task["index"]),
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads),
    )
    server.join()


def strategy(given: list[str]) -> Any:
    """Return the chief's ParameterServerStrategyV2, connected to all tasks of TF_CONFIG.

    Variables are distributed cyclically over the parameter servers; a large one is split over all of them, except
    those of Keras 3, which cannot be split.

    Args:
        given: names of arguments of other strategies; any raises ArgumentError.
    """
    import tensorflow as tf

    if given:
        raise ArgumentError(
            f"strategy({', '.join(f'{name}=...' for name in given)}) on the chief of parameter servers: these are settings "
            "of collectives, and it has none; leave them out"
        )
    built = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(), variable_partitioner=_partitioner()
    )
    collective_stats.record_group(collective_stats.PARAMETER_SERVERS, built._extended._num_workers)
    return built


def _partitioner() -> Any:
    """Return the function that splits large variables; None with a single parameter server."""
    import tensorflow as tf

    servers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"])
    if servers < 2:
        return None
    by_size = tf.distribute.experimental.partitioners.MinSizePartitioner(MIN_SHARD_BYTES, max_shards=servers)

    def partition(shape: Any, dtype: Any, axis: int = 0) -> Any:
        return [1] * len(shape) if _keras_creates else by_size(shape, dtype, axis)

    return partition


_keras_creates = False


def _know_variables(core: ModuleType) -> None:
    """Patch Keras 3 to create whole variables, because its optimizers and checkpoints cannot handle a split one."""
    original = core.Variable._initialize

    def initialize(self: Any, value: Any) -> None:
        global _keras_creates
        before, _keras_creates = _keras_creates, True
        try:
            original(self, value)
        finally:
            _keras_creates = before

    core.Variable._initialize = initialize
    _add_on_servers(core)


def _add_on_servers(core: ModuleType) -> None:
    """Patch Keras 3 to add to a variable on its parameter server, in one call.

    Keras reads the value, adds to it and writes the sum: if two workers do so at the same time, one addition is lost.
    It counts an optimizer's iterations and sums its metrics in this way.
    """
    original = core.Variable.assign_add

    def assign_add(self: Any, value: Any) -> Any:
        import tensorflow as tf

        inner = self._value
        if core.in_stateless_scope() or inner is None or f"/job:{PS}/" not in inner.device:
            return original(self, value)
        with tf.device(inner.device):
            more = tf.convert_to_tensor(value, dtype_hint=inner.dtype)
        if more.dtype != inner.dtype or more.shape != inner.shape:
            return original(self, value)
        return inner.assign_add(more)

    core.Variable.assign_add = assign_add


def _wait_for_tasks_first() -> None:
    """Patch strategies to connect only after all tasks listen, because a refused connection costs a second."""
    from tensorflow.python.distribute import parameter_server_strategy_v2 as module

    original = module.ParameterServerStrategyV2._connect_to_cluster

    def connect(self: Any, coordinator_name: str) -> None:
        cluster = self._cluster_resolver.cluster_spec().as_dict()
        for role in (WORKER, PS):
            for address in cluster.get(role, ()):
                _wait_for_task(role, address)
        original(self, coordinator_name)

    module.ParameterServerStrategyV2._connect_to_cluster = connect


def _wait_for_task(role: str, address: str) -> None:
    """Wait until a task's port listens; raise StartTimeout with a remedy otherwise."""
    try:
        setup.wait_for_port(address, TASKS_TIMEOUT_S)
    except StartTimeout as error:
        raise StartTimeout(
            f"no {role} listens at {address} after {TASKS_TIMEOUT_S:g} s, so the chief's strategy cannot connect: see the "
            "logs and notes of the run for what became of it, and go on with experiment.resume()"
        ) from error


def _refuse_fit(trainer: ModuleType) -> None:
    """Patch Keras 3's ``fit``, ``evaluate`` and ``predict`` to raise a clear error under parameter servers.

    Keras 3 does not support them, and its own errors do not show the cause.
    """
    import tensorflow as tf

    for name in ("fit", "evaluate", "predict"):
        original = getattr(trainer.TensorFlowTrainer, name)

        def refuse(self: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            if isinstance(self._distribute_strategy, tf.distribute.ParameterServerStrategy):
                raise ArgumentError(
                    f"model.{_name}() of Keras 3 cannot use parameter servers: train by "
                    "hopsml.tensorflow.ServerLoop(model, dataset_fn).run(steps), or by fit of tf_keras; evaluate and "
                    "predict with a copy that is made outside of strategy.scope(), by weights that were saved"
                )
            return _original(self, *args, **kwargs)

        setattr(trainer.TensorFlowTrainer, name, refuse)
