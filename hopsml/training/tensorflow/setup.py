"""Set-up of TensorFlow in a worker process: version check, ``hdfs://``, repairs, and the wait for the leader.

hopsml calls ``install_import_hook`` (or ``prepare``) in every worker before the user's function runs. Settings of the
user are unchanged: seeds, threads, visible devices and logging. The repairs use private parts of TensorFlow and Keras,
so an untested version causes one warning, and one that is known to fail is refused (``core/versions.py``).
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hopsml.cluster.shared.spec import ONLY_HOPSMLS_ENCRYPTS
from hopsml.cluster.worker import collective_stats, server_guard
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.core import settings
from hopsml.core.variables import SETTINGS, Settings
from hopsml.core.versions import KERAS, check_version, tensorflow_versions, uses_keras_2
from hopsml.errors import ArgumentError, HopsmlError, StartTimeout, StorageError
from hopsml.storage.remote import hadoop
from hopsml.training.tensorflow import groups
from hopsml.training.tensorflow.distribution.merging import merge_scope_of_run, scoped_allocator_of_run, set_merging
from hopsml.training.tensorflow.fit import input_data
from hopsml.training.tensorflow.import_hook import after_import

_LIBRARY = Path(__file__).parent / "lib" / "libhopsml_tf_hdfs.so"
SOCKET_TIMEOUT = "dfs.client.socket-timeout"  # ms
_hdfs_lock = threading.Lock()
_registered = False


def register_hdfs() -> None:
    """Register ``hdfs://`` and ``viewfs://`` with TensorFlow in this process.

    ``tf.io.gfile``, ``tf.data``, ``tf.summary``, ``tf.train.Checkpoint``, SavedModels and Keras' ``save`` then accept
    such paths like others. In a worker of a run it has been called before the user's function; elsewhere call it
    once, before the first path. NameNodes, user, ticket and tokens are found as by Hadoop's own clients
    (``HADOOP_CONF_DIR``); a step that gets no answer for ``HOPSML_STORAGE_TIMEOUT_S`` seconds fails with
    ``tf.errors.DeadlineExceededError``. It starts nothing before the first path; a process that is forked after it is
    refused (``tf.errors.FailedPreconditionError``).

    Raises:
        StorageError: the library is missing, or TensorFlow refuses it.
    """
    problem = _register_hdfs_if_there()
    if problem:
        raise StorageError(f"TensorFlow cannot open hdfs:// here: {problem}")


def _register_hdfs_if_there() -> str:
    """Register the file system once; return the obstacle, "" if there is none."""
    global _registered
    with _hdfs_lock:
        if _registered:
            return ""
        if not _LIBRARY.exists():
            return f"{_LIBRARY.name} was not built (make tf-hdfs, or a wheel that was made with Rust)"
        import tensorflow as tf

        try:
            _tell_client()
        except (HopsmlError, OSError) as error:  # a configuration that cannot be read
            return str(error)
        try:
            tf.experimental.register_filesystem_plugin(str(_LIBRARY))
        except tf.errors.AlreadyExistsError:
            pass  # another package's file system, which the user has chosen by importing it
        except tf.errors.OpError as error:
            return f"TensorFlow {tf.__version__} refuses {_LIBRARY.name}: {error.message}"
        _registered = True
        return ""


def _tell_client() -> None:
    """Set the environment variables that the library reads at its first use."""
    folder = settings.hadoop_conf_dir()
    if folder is not None:
        os.environ.setdefault("HADOOP_CONF_DIR", str(folder))  # in a YARN container only Spark's Java process knows it
    wishes = hadoop.client_settings(settings.default_fs() or "hdfs://")
    # Otherwise the timeout for a silent DataNode exceeds the step's deadline.
    if SOCKET_TIMEOUT not in settings.hadoop_settings():
        wishes[SOCKET_TIMEOUT] = str(int(1000 * SETTINGS.storage_timeout_s / 4))
    os.environ.setdefault(Settings.hdfs_client.name, ",".join(f"{key}={value}" for key, value in wishes.items()))


DEFAULT_HEARTBEAT_TIMEOUT_S = 10.0
LEADER_TIMEOUT_S = 120.0
POLL_S = 0.005

_lock = threading.Lock()
_prepared = False
_hooked = False


def install_import_hook(context: WorkerContext | None = None) -> None:
    """Run ``prepare`` as soon as this process imports TensorFlow, or now if it already has.

    It imports nothing itself.
    """
    global _hooked
    with _lock:
        if _hooked:
            return
        _hooked = True
    after_import("tensorflow", lambda module: prepare(context))


def prepare(context: WorkerContext | None = None) -> None:
    """Check versions, install the repairs and register ``hdfs://``, once for each process; imports TensorFlow.

    After it, a plain ``tf.distribute.MultiWorkerMirroredStrategy()`` waits for its leader's port and detects a lost
    peer after ``DEFAULT_HEARTBEAT_TIMEOUT_S`` seconds, and Keras 3 trains under it.

    Args:
        context: this worker's context; the present one if left out.

    Raises:
        UnsupportedVersion: the version is known not to work.
    """
    global _prepared
    import tensorflow as tf

    with _lock:
        if _prepared:
            return
        check_version(tensorflow_versions(os.environ), tf.__version__)
        _prepared = True
    _guard_server(tf.__file__, context or current())
    _register_hdfs_if_there()
    _prepare_strategies()
    _explain_merge_call()
    _note_training()
    # TensorFlow imports Keras 3 even if the user has chosen tf_keras; its version does not matter then.
    if not uses_keras_2(os.environ):
        after_import("keras.src", _check_keras)
        after_import("keras.src.backend.tensorflow.trainer", _repair_keras)
    after_import("tf_keras.src.layers.normalization.batch_normalization", _repair_tf_keras)


def _guard_server(tensorflow: str, context: WorkerContext | None) -> None:
    """Make this process's TensorFlow server admit only members of its group, or print why that is not possible."""
    if SETTINGS.unguarded_server:
        return
    config = os.environ.get("TF_CONFIG", "")
    # A TF_CONFIG set by the user may name other processes, which cannot authenticate.
    secret = context.server_key if context is not None and context.leader in config else b""
    hindrance = server_guard.guard(config, os.path.dirname(tensorflow) + os.sep, secret)
    if hindrance:
        print(f"hopsml: a server of TensorFlow's in this worker would let everybody in (docs/security.md): {hindrance}")


def _check_keras(module: ModuleType) -> None:
    """Raise UnsupportedVersion for a Keras version that is known not to work."""
    check_version(KERAS, str(getattr(module, "__version__", None) or sys.modules["keras.src.version"].__version__))


def _repair_keras(module: ModuleType) -> None:
    """Apply the repairs of Keras 3."""
    from hopsml.training.tensorflow.keras import repairs

    repairs.install_repairs(module)


def _repair_tf_keras(module: ModuleType) -> None:
    """Apply the repairs of tf_keras."""
    from hopsml.training.tensorflow.keras import group_state

    group_state.patch_tf_keras_normalization(module)


def _prepare_strategies() -> None:
    """Patch all strategies, hopsml's own and the user's plain ones, to start as ``prepare`` describes."""
    from tensorflow.python.distribute import collective_all_reduce_strategy as module

    connect = module.CollectiveAllReduceExtended._initialize_multi_worker
    build = module.CollectiveAllReduceStrategy.__init__

    def connect_after_leader(self: Any, cluster_resolver: Any) -> None:
        cluster = cluster_resolver.cluster_spec().as_dict()
        _refuse_plaintext(cluster)
        if not getattr(self, "_std_server_started", False):
            set_heartbeat(cluster, DEFAULT_HEARTBEAT_TIMEOUT_S)
            if not _leads(cluster_resolver):
                wait_for_port(leader_address(cluster), LEADER_TIMEOUT_S)
        connect(self, cluster_resolver)

    def build_then_merge(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        groups.remember_strategy(self)
        if groups.spans_workers(self):
            collective_stats.record_group("tensorflow", self.extended._num_workers)
        # A plain strategy has the run's merge settings as well.
        context = current()
        set_merging(self, merge_scope_of_run(context), scoped_allocator_of_run(context))

    divide = module.CollectiveAllReduceExtended._experimental_distribute_dataset

    def divide_copies(self: Any, dataset: Any, options: Any) -> Any:
        return divide(self, input_data.disable_autotuning(input_data.copy_batches(dataset)), options)

    input_data.install_prompt_device_iterators()

    module.CollectiveAllReduceExtended._experimental_distribute_dataset = divide_copies
    module.CollectiveAllReduceExtended._initialize_multi_worker = connect_after_leader
    module.CollectiveAllReduceStrategy.__init__ = build_then_merge


def _explain_merge_call() -> None:
    """Add a remedy to TensorFlow's error for a reduction within a condition or a loop."""
    from tensorflow.python.distribute import mirrored_run

    replica_context = mirrored_run._MirroredReplicaContext
    original = replica_context._merge_call

    def merge_call(self: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        try:
            return original(self, fn, args, kwargs)
        except RuntimeError as error:
            if "merge_call" not in str(error) or not groups.spans_workers(self.strategy):
                raise
            raise ArgumentError(
                "an optimizer or a reduction is called within tf.cond, a loop or a nested tf.function, where "
                "TensorFlow's collectives cannot reduce; Keras does so for gradient_accumulation_steps= and "
                "ema_overwrite_frequency=. Choose implementation='hopsml', of strategy() or of the run, which can; "
                "or call it outside"
            ) from error

    replica_context._merge_call = merge_call


def _refuse_plaintext(cluster: Mapping[str, Sequence[str]]) -> None:
    """Raise ArgumentError for a strategy over TensorFlow's collectives in a run with encryption."""
    context = current()
    members = sum(len(addresses) for job, addresses in cluster.items() if job != "evaluator")
    if context is not None and context.spec.communication.encryption and members > 1:
        raise ArgumentError(
            f"a strategy over TensorFlow's collectives, between {members} workers, in a run with encryption: "
            f"{ONLY_HOPSMLS_ENCRYPTS}: hopsml.tensorflow.strategy() without arguments takes it"
        )


def _note_training() -> None:
    """Patch optimizers to record when they are given gradients: once if a step is traced, else at each step."""
    from tensorflow.python.training import optimizer

    _note_calls(optimizer.Optimizer, "apply_gradients")
    after_import(
        "keras.src.backend.tensorflow.optimizer", lambda m: _note_calls(m.TFOptimizer, "_all_reduce_sum_gradients")
    )
    after_import("tf_keras.src.optimizers.optimizer", lambda m: _note_calls(m._BaseOptimizer, "apply_gradients"))
    after_import("tf_keras.src.optimizers.legacy.optimizer_v2", lambda m: _note_calls(m.OptimizerV2, "apply_gradients"))


def _note_calls(optimizer: Any, method: str) -> None:
    """Patch a method of an optimizer class to record its calls."""
    original = getattr(optimizer, method)

    @functools.wraps(original)
    def note_then_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        collective_stats.record_trained("tensorflow")
        return original(self, *args, **kwargs)

    setattr(optimizer, method, note_then_call)


def leader_address(cluster: dict[str, Any]) -> str:
    """Return the address of the chief, or of worker 0 if there is none."""
    return str((cluster.get("chief") or cluster.get("worker") or [""])[0])


def _leads(cluster_resolver: Any) -> bool:
    """Return True if this process need not wait for a leader."""
    task_type = cluster_resolver.task_type
    if task_type not in ("chief", "worker"):
        return True  # an evaluator is a separate cluster and waits for no leader
    return task_type == "chief" or (
        "chief" not in cluster_resolver.cluster_spec().as_dict() and cluster_resolver.task_id == 0
    )


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; brackets around an IPv6 host are removed."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def wait_for_port(address: str, timeout_s: float) -> float:
    """Wait until a process listens at ``address``, and return the seconds that it took.

    TensorFlow's channel retries a refused first connection only after a fixed second, so a worker that starts before
    its leader would lose that second at every launch. Polling the port first, every 5 ms, avoids it.

    Args:
        address: "host:port".
        timeout_s: seconds to wait.

    Raises:
        StartTimeout: no process listens within ``timeout_s`` seconds.
    """
    host, port = split_address(address)
    begin = time.monotonic()
    deadline = begin + timeout_s
    cause = "no attempt was made"
    while (left := deadline - time.monotonic()) > 0:
        try:
            # A host that drops packets must not use up the whole deadline in one attempt.
            socket.create_connection((host, port), timeout=min(left, 1.0)).close()
            return time.monotonic() - begin
        except OSError as error:
            cause = str(error)
        time.sleep(POLL_S)
    raise StartTimeout(
        f"the leader's port {address} did not open within {timeout_s:g} s (last answer: {cause}); rank 0 "
        "has not built its strategy: see its log for the reason, and check that this host may reach that port"
    )


def set_heartbeat(cluster: dict[str, Any], timeout_s: float) -> None:
    """Configure TensorFlow's coordination service: a peer that is silent for ``timeout_s`` seconds counts as lost.

    TensorFlow does not configure the service again, so the first call of a process decides.
    """
    # The message's own module moves between TensorFlow's versions; the strategy's module always has it.
    from tensorflow.python.distribute.collective_all_reduce_strategy import coordination_config_pb2
    from tensorflow.python.eager import context as eager_context

    context = eager_context.context()
    jobs = [job for job in ("chief", "worker") if job in cluster]
    if not jobs or context.coordination_service is not None or context._context_handle is not None:
        return
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0]}/replica:0/task:0",
        heartbeat_timeout_in_ms=int(timeout_s * 1000),
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=job, num_tasks=len(cluster[job])) for job in jobs
        ],
    )
