"""Distribution strategy whose workers are the members of hopsml's group.

It imports TensorFlow: import it inside functions. To other code it is a MultiWorkerMirroredStrategy with the same
guarantees: the meaning of a global batch, variables that begin equal and stay so, variables that are summed when they
are read, the places where functions may be called. The implementation differs in one point: no TensorFlow server is
started, and values of all workers are combined by the operations of ``collective_ops``. Each worker has one device.

The members of the group may change. A traced function continues with the new group, because it reads rank and size
when it runs; a number in Python (``num_replicas_in_sync``, the shares of a distributed dataset) is that of the
moment.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    collective_util,
    distribute_lib,
    distribute_utils,
    input_lib,
    numpy_dataset,
)
from tensorflow.python.framework import device as device_lib

from hopsml.cluster.shared.spec import GradientSettings
from hopsml.cluster.worker import collective_stats
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training import collective
from hopsml.training.tensorflow import groups
from hopsml.training.tensorflow.distribution import collective_ops, gradient_hooks
from hopsml.training.tensorflow.distribution.gradient_exchange import GradientExchange
from hopsml.training.tensorflow.import_hook import after_import
from hopsml.training.tensorflow.keras import group_state

_installed = False


def install_loss_scaling() -> None:
    """Make both Keras versions divide losses by the group's size at each step, as soon as they are imported."""
    global _installed
    if _installed:
        return
    _installed = True
    after_import("keras.src.losses.loss", _install_keras3)
    after_import("tf_keras.src.utils.losses_utils", _install_tf_keras)


def _install_keras3(module: ModuleType) -> None:
    """Patch the loss scaling of Keras 3."""
    module.scale_loss_for_distribution = _scaling(module.scale_loss_for_distribution, divide=True)  # type: ignore[attr-defined]
    module.unscale_loss_for_distribution = _scaling(module.unscale_loss_for_distribution, divide=False)  # type: ignore[attr-defined]


def _install_tf_keras(module: ModuleType) -> None:
    """Patch the loss scaling of tf_keras."""
    module.scale_loss_for_distribution = _scaling(module.scale_loss_for_distribution, divide=True)  # type: ignore[attr-defined]


def _scaling(original: Callable[[Any], Any], divide: bool) -> Callable[[Any], Any]:
    """Return a function that divides or multiplies a loss by the present number of workers."""

    def scale(value: Any) -> Any:
        if not getattr(tf.distribute.get_strategy().extended, "spans_group", False):
            return original(value)
        workers = tf.cast(collective_ops.size(), value.dtype)
        return value / workers if divide else value * workers

    return scale


_WIDER = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
_REDUCED = ("float32", "float64", "float16", "bfloat16", "int32", "int64")


def reduce_over_group(reduce_op: Any, value: Any) -> Any:
    """Return ``value`` with each tensor replaced by its sum or mean over the group; all dense ones are sent together.

    Sparse gradients (IndexedSlices) are gathered: members may have different numbers of rows. None stays None. As in
    TensorFlow's strategies the mean of integers is float64.

    Args:
        reduce_op: ``tf.distribute.ReduceOp.SUM`` or ``MEAN``.
        value: a structure of tensors.

    Raises:
        ArgumentTypeError: a type cannot be summed.
    """
    mean = reduce_op == tf.distribute.ReduceOp.MEAN
    flat = tf.nest.flatten(value)
    results: list[Any] = [None] * len(flat)
    dense: list[int] = []
    for position, leaf in enumerate(flat):
        if isinstance(leaf, tf.IndexedSlices):
            results[position] = _gathered(leaf, mean)
        elif leaf is not None:
            dense.append(position)
    tensors = [tf.convert_to_tensor(flat[position]) for position in dense]
    for position, reduced in zip(dense, _reduced(tensors, mean), strict=True):
        results[position] = reduced
    return tf.nest.pack_sequence_as(value, results)


def _reduced(tensors: list[Any], mean: bool) -> list[Any]:
    """Return the sums or means of dense tensors."""
    if not tensors:
        return []
    collective_stats.record_reduction(len(tensors), 1, 0, "collective")
    floats = [position for position, tensor in enumerate(tensors) if tensor.dtype.is_floating]
    others = [position for position in range(len(tensors)) if position not in floats]
    results: list[Any] = [None] * len(tensors)
    given = [_supported(tensors[position]) for position in floats]
    if given:
        reduced = collective_ops.all_reduce(given, "mean" if mean else "sum")
        for position, one in zip(floats, reduced, strict=True):
            results[position] = one
    given = [_supported(tensors[position]) for position in others]
    if given:
        # The reduction counts its own participants, because the group's size at another moment may differ.
        *sums, members = collective_ops.all_reduce([*given, tf.ones([], tf.int64)], "sum")
        for position, one in zip(others, sums, strict=True):
            results[position] = one / tf.cast(members, one.dtype) if mean else tf.cast(one, tensors[position].dtype)
    return results


def _supported(tensor: Any) -> Any:
    """Return a tensor in a type that can be summed; raise ArgumentTypeError if there is none."""
    name = tensor.dtype.name
    if name in _REDUCED:
        return tensor
    if name not in _WIDER:
        raise ArgumentTypeError(
            f"a tensor of {name} cannot be summed over the group ({getattr(tensor, 'name', tensor)}): cast it to a type "
            f"that can, one of {', '.join(_REDUCED)}"
        )
    return tf.cast(tensor, _WIDER[name])


def _gathered(slices: Any, mean: bool) -> Any:
    """Return the sum or mean of sparse gradients."""
    values, members = collective_ops.gather_with_size(tf.convert_to_tensor(slices.values))
    indices = collective_ops.all_gather(tf.convert_to_tensor(slices.indices))
    if mean:
        values = values / tf.cast(members, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def gather_over_group(value: Any, axis: int) -> Any:
    """Return the members' values joined along ``axis``, in rank order; they may differ in that dimension only."""
    value = tf.convert_to_tensor(value)
    if value.shape.rank is not None and not -value.shape.rank <= axis < value.shape.rank:
        raise ArgumentTypeError(f"axis={axis}: the value to gather has {value.shape.rank} dimensions")
    if axis == 0:
        return collective_ops.all_gather(value)
    order = tf.range(tf.rank(value))
    axis = axis % tf.rank(value)
    front = tf.concat([[axis], order[:axis], order[axis + 1 :]], 0)
    gathered = collective_ops.all_gather(tf.transpose(value, front))
    back = tf.concat([order[1 : axis + 1], [0], order[axis + 1 :]], 0)
    result = tf.transpose(gathered, back)
    if value.shape.rank is not None:
        static = value.shape.as_list()
        static[int(tf.get_static_value(axis))] = None
        result.set_shape(static)
    return result


class CollectiveStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """Distribution strategy that trains over hopsml's group, of which this process is a member.

    Raises:
        ArgumentError: the worker has several GPUs.
        UnsupportedVersion: hopsml's operations are not built for this TensorFlow.
        FailedPreconditionError: this process is in no group.
    """

    def __init__(self, gradients: GradientSettings | None = None) -> None:
        """Create the strategy for this worker.

        Args:
            gradients: treatment of the gradients that optimizers reduce; by default they are only summed.
        """
        distribute_lib.Strategy.__init__(self, CollectiveExtended(self, gradients or GradientSettings()))
        install_loss_scaling()
        gradient_hooks.install_gradient_hooks()
        groups.remember_strategy(self)
        collective_stats.record_group("hopsml", self.num_replicas_in_sync)


class CollectiveExtended(collective_all_reduce_strategy.CollectiveAllReduceExtended):  # type: ignore[misc]
    """Implementation of the strategy's operations on variables, values and data."""

    spans_group = True  # also while it has one member, because others may join

    def __init__(self, strategy: CollectiveStrategy, gradients: GradientSettings) -> None:
        distribute_lib.StrategyExtendedV1.__init__(self, strategy)
        collective_ops.rank_and_size()  # fails if there is no group, or no library with the operations
        gpus = tf.config.list_logical_devices("GPU")
        if len(gpus) > 1:
            raise ArgumentError(
                f"this worker sees {len(gpus)} GPUs, and this strategy has one device a worker: start one worker a GPU"
            )
        self._local_device_type = "GPU" if gpus else "CPU"
        self._worker_device = self._canonical("/device:CPU:0")
        self._devices = (self._canonical(f"/device:{self._local_device_type}:0"),)
        self._num_devices_per_worker = 1
        self._input_workers_devices = ((self._worker_device, self._devices),)
        self._host_input_device = numpy_dataset.SingleDevice(self._worker_device)
        self._communication_options = collective_util.Options()
        self._cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self._cluster_spec = None
        self._use_var_policy = False
        self.experimental_enable_get_next_as_optional = True
        self._host_cross_device_ops = _HostReduction()
        self.gradient_exchange = _exchange(gradients)

    @staticmethod
    def _canonical(device: str) -> str:
        """Return the full name of a device of this process."""
        return str(device_lib.canonical_name("/job:localhost/replica:0/task:0" + device))

    # ---- members of the group

    @property
    def _num_workers(self) -> int:
        """Present number of members."""
        return _place()[1]

    @property
    def _id_in_cluster(self) -> int:
        """Present rank of this worker."""
        return _place()[0]

    @property
    def _is_chief(self) -> bool:
        """True on rank 0."""
        return self._id_in_cluster == 0

    @property
    def _task_id(self) -> int:
        """Task index of this worker, its present rank."""
        return self._id_in_cluster  # tf_keras names folders of workers other than the chief by it

    def _in_multi_worker_mode(self) -> bool:
        """Return True, also for a group of one member."""
        return True

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> int:
        """Return 0, the only replica of a worker."""
        return 0

    # ---- calls

    def _use_merge_call(self) -> bool:
        """Return False, because there is nothing to merge within a worker."""
        return False

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a step on this worker's device, and average the statistics that it has updated."""
        args, kwargs = distribute_utils.select_replica(0, (args, kwargs))
        if self.gradient_exchange is not None and self.gradient_exchange.settings.double_buffering:
            collective_ops.release_transfers()  # results of the previous step are sent during this one
        with tf.device(self._devices[0]), CollectiveReplicaContext(self._container_strategy()):
            return group_state.average_updated_statistics(fn)(*args, **kwargs)

    # ---- values of all workers

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        """Return the sum or mean of a value over all workers."""
        if distribute_utils.is_mirrored(value) and reduce_op == tf.distribute.ReduceOp.MEAN:
            return value
        return reduce_over_group(reduce_op, _own(value))

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        """Return the sums or means of several values over all workers."""
        return reduce_over_group(reduce_op, [_own(value) for value, _ in value_destination_pairs])

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the sum or mean of a value inside a replica."""
        return reduce_over_group(reduce_op, value)

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        """Return the values of all workers joined along an axis."""
        return gather_over_group(_own(value), axis)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Return the tensor for this worker's device."""
        return tensor  # to the devices of this worker, as in TensorFlow's strategies

    # ---- variables

    def _get_variable_creator_initial_value(self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any) -> Any:
        """Return a function for a variable's initial value, which is that of rank 0 on all workers."""

        def initial_value() -> Any:
            value = kwargs["initial_value"]
            value = value() if callable(value) else value
            value = getattr(value, "wrapped_value", value)  # of a variable that a checkpoint will restore
            with tf.device(device):
                value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
            if value.dtype in (tf.string, tf.resource, tf.variant):
                return value
            # Without its name, which ranks may number differently; the members' labels are compared.
            return collective_ops.broadcast(value, label="an initial value")

        return initial_value

    # ---- data

    def _input_workers_with_options(self, options: Any = None) -> Any:
        """Return the devices that read the input."""
        on_device = not options or options.experimental_fetch_to_device
        return input_lib.InputWorkers([(self._worker_device, self._devices if on_device else (self._worker_device,))])


def _place() -> tuple[int, int]:
    """Return rank and number of workers; on a joining worker that prepares alone, those that it will have."""
    return collective.expected_rank_and_size() or collective_ops.rank_and_size()


def _exchange(gradients: GradientSettings) -> GradientExchange | None:
    """Return the gradient exchange for the settings; None if they are the defaults."""
    context = current()
    changes = context is not None and context.spec.group.regroups
    return GradientExchange(gradients, changes) if gradients.changed_names else None


class CollectiveReplicaContext(distribute_lib.ReplicaContext):  # type: ignore[misc]
    """Replica context of a step that runs under the strategy."""

    def __init__(self, strategy: CollectiveStrategy) -> None:
        super().__init__(strategy, replica_id_in_sync_group=0)

    @property
    def replica_id_in_sync_group(self) -> Any:
        """Tensor with the rank at the time when it is computed."""
        return collective_ops.rank()

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the sum or mean over all workers; None in a structure stays None."""
        flat = tf.nest.flatten(value)
        known = [leaf for leaf in flat if leaf is not None]
        reduced = iter(super().all_reduce(reduce_op, known, options) if known else ())
        return tf.nest.pack_sequence_as(value, [leaf if leaf is None else next(reduced) for leaf in flat])


class _HostReduction:
    """Reduction of values in host memory, with the interface of TensorFlow's cross-device operations."""

    def reduce(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        """Return the sum or mean of ``value`` over all workers."""
        return reduce_over_group(reduce_op, _own(value))


def _own(value: Any) -> Any:
    """Return this worker's part of a distributed value; any other value itself."""
    value = value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value
    return tf.identity(value) if isinstance(value, tf.Variable) else value
