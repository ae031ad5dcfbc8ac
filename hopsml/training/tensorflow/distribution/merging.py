"""Merging of gradients into fewer collectives under MultiWorkerMirroredStrategy.

The merge scope is the number of gradients that one collective carries: 1 = no merging, n = up to n, "all" = one
collective for each element type. Gradients are grouped from the last to the first, because backpropagation finishes
them in that order; a group holds one element type, because a collective has one buffer.

Every way to reduce a list (Keras 3 and tf_keras optimizers, ``get_replica_context().all_reduce([...])`` in a custom
loop) ends in one method of the strategy's cross-device operations, ``_all_reduce``. It is replaced here, so that user
code is unchanged. There are two paths:

``scoped_allocator``
    One static collective (``CollectiveReduce``) for each gradient, the members of a group under one name scope.
    TensorFlow's scoped allocator then has the group's gradients written into one buffer, side by side, and runs a
    single collective on it, without the copies of concat and split. Visible in the optimised graph as
    ``_ScopedAllocator``.
``packs``
    One concat, one ``CollectiveReduceV2`` and one split for each group: what TensorFlow itself does, but by number of
    gradients. Used where the other path is not possible: outside of tf.function, under XLA, for shapes that are unknown
    when tracing, and on GPUs (NCCL needs its launches in one order, which only this path provides).

The static collective has two weaknesses, which the fence around every list avoids: its keys are constants, and the
scoped allocator refuses a second buffer of one name in one step. A tf.function called twice by another one, or in a
``tf.while_loop``, would meet both. The fence writes to the launcher's ordering token before and after the list, so
that reductions of one process never overlap, wherever they are inlined.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hopsml.cluster.shared.spec import DEFAULT_MERGE_SCOPE
from hopsml.cluster.worker import collective_stats
from hopsml.cluster.worker.context import WorkerContext

_KEY_SPACE = 2**30  # instance keys are int32 and positive; a group takes at most 2**30 consecutive ones


@dataclass(frozen=True)
class MergeGroup:
    """Tensors reduced in one collective: positions in the caller's list, in the order in which they are joined."""

    positions: tuple[int, ...]
    dtype: str


def plan_groups(dtypes: Sequence[str], scope: int | None) -> list[MergeGroup]:
    """Split a list of tensors, given by element type, into groups of at most ``scope`` (None = no limit)."""
    by_dtype: dict[str, list[int]] = {}
    for position in reversed(range(len(dtypes))):
        by_dtype.setdefault(dtypes[position], []).append(position)
    groups: list[MergeGroup] = []
    for dtype, positions in by_dtype.items():
        size = scope or len(positions)
        groups.extend(MergeGroup(tuple(positions[at : at + size]), dtype) for at in range(0, len(positions), size))
    # Whatever its type, the group whose members are ready first goes first.
    return sorted(groups, key=lambda group: -max(group.positions))


Signature = tuple[object, ...]


class InstanceKeys:
    """Keys of the static collectives: a function of the reduced tensors, not of the order of tracing.

    Workers may trace a function at different times and a different number of times (one of them meets a smaller last
    batch and traces again). A counter would then give the same collective different keys on different workers. Here
    the keys follow from the list alone, from the element types and shapes of its groups: the same gradients have the
    same keys on every worker, in every trace and every function. Two functions may share keys without harm, because
    reductions of one process never overlap (see ``GradientReducer``); within a list all keys differ.
    """

    def __init__(self) -> None:
        self._first: dict[Signature, int] = {}

    def assign_keys(self, groups: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> list[int]:
        """Return for each group of a list (element type, shapes) the first of as many keys as it has members."""
        seen: Counter[Signature] = Counter()
        keys = []
        for dtype, shapes in groups:
            group = (dtype, *(tuple(shape) for shape in shapes))
            # Groups of equal types and shapes may be in progress at the same time.
            keys.append(self._first_key((seen[group], *group), len(shapes)))
            seen[group] += 1
        return keys

    def _first_key(self, signature: Signature, count: int) -> int:
        """Return the first key of a group, assigned on first use."""
        if signature not in self._first:
            attempt = 0
            while self._overlaps(key := _hashed(signature, attempt), count):
                attempt += 1
            self._first[signature] = key
        return self._first[signature]

    def _overlaps(self, start: int, count: int) -> bool:
        """Return True if keys are used already; ``signature[2:]`` are the shapes of the group that uses them."""
        return any(
            start < taken + len(signature[2:]) and taken < start + count for signature, taken in self._first.items()
        )


def _hashed(signature: Signature, attempt: int) -> int:
    """Return a key derived from a signature."""
    digest = hashlib.blake2b(repr((signature, attempt)).encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % _KEY_SPACE


# Group keys of the strategy count up from 1; the static collectives have a separate one, so that the instance keys of
# the two never collide.
STATIC_GROUP_KEY = 1_000_003

_KEYS = InstanceKeys()


@dataclass(frozen=True)
class MergeSettings:
    """Effective merge settings of a strategy, available as ``strategy.merge_settings``."""

    merge_scope: int | str
    path: str  # "scoped_allocator" | "packs"


def merge_scope_of_run(context: WorkerContext | None) -> int | str:
    """Return the merge scope of this worker's run, else the default."""
    asked = context.spec.communication.merge_scope if context is not None else None
    return DEFAULT_MERGE_SCOPE if asked is None else asked


def scoped_allocator_of_run(context: WorkerContext | None) -> bool | None:
    """Return False if the run has disabled the scoped allocator, else None.

    None leaves the choice to ``set_merging``.
    """
    return False if context is not None and context.spec.communication.scoped_allocator is False else None


def set_merging(strategy: Any, scope: int | str, scoped_allocator: bool | None) -> MergeSettings:
    """Make a strategy merge ``scope`` gradients in each collective, and return the effective settings.

    Args:
        strategy: the strategy.
        scope: number of gradients, or "all".
        scoped_allocator: use TensorFlow's scoped allocator; None uses it where it is safe.
    """
    extended = strategy.extended
    if scoped_allocator is None:
        hint = extended._communication_options.implementation.value
        scoped_allocator = not (extended._local_device_type == "GPU" and hint != "RING")
    GradientReducer(strategy, None if scope == "all" else int(scope), scoped_allocator).install()
    strategy.merge_settings = MergeSettings(scope, "scoped_allocator" if scoped_allocator else "packs")
    return strategy.merge_settings


class GradientReducer:
    """Reduction of lists of tensors over all replicas, merged by ``scope``; activated by ``install``."""

    def __init__(self, strategy: Any, scope: int | None, scoped_allocator: bool) -> None:
        self._ops = strategy.extended._cross_device_ops
        # The class's own method, even if an earlier reducer has replaced it.
        self._original: Callable[..., Any] = partial(type(self._ops)._all_reduce, self._ops)
        self._scope = scope
        self._scoped_allocator = scoped_allocator

    def install(self) -> None:
        """Patch the strategy's cross-device operations so that it reduces by this object."""
        self._ops._all_reduce = self.all_reduce

    def all_reduce(self, reduce_op: Any, value: Any, replica_id: int, options: Any) -> Any:
        """Reduce a structure of tensors and IndexedSlices, as the method of TensorFlow that it replaces."""
        import tensorflow as tf
        from tensorflow.python.distribute import cross_device_utils

        dense, dense_at, sparse, sparse_at = cross_device_utils.split_by_sparsity(tf.nest.flatten(value))
        if self._ops._group_size == 1 or not dense:
            return self._original(reduce_op, value, replica_id, options)
        # Sparse gradients are gathered, not summed element by element, by TensorFlow's own method.
        sparse = self._original(reduce_op, sparse, replica_id, options) if sparse else []
        dense = self._reduce_dense(dense, replica_id, options)
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            with tf.device(self._ops._devices[replica_id]):
                dense = [tensor / self._ops._group_size for tensor in dense]
        flat = cross_device_utils.stitch_values(((dense, dense_at), (sparse, sparse_at)))
        return tf.nest.pack_sequence_as(value, flat)

    def _reduce_dense(self, tensors: list[Any], replica_id: int, options: Any) -> list[Any]:
        """Reduce dense tensors in merged groups."""
        launcher = self._ops._launchers[replica_id]
        options = launcher._options.merge(options)
        groups = plan_groups([tensor.dtype.name for tensor in tensors], self._scope)
        static = self._uses_static(tensors)
        collective_stats.record_reduction(
            len(tensors), len(groups), self._scope or 0, "scoped_allocator" if static else "packs"
        )
        reduce_groups = _reduce_static if static else _reduce_packs
        results: list[Any] = [None] * len(tensors)
        for group, reduced in zip(groups, reduce_groups(launcher, tensors, groups, options), strict=True):
            for position, tensor in zip(group.positions, reduced, strict=True):
                results[position] = tensor
        return results

    def _uses_static(self, tensors: Sequence[Any]) -> bool:
        """Return True if this list uses the scoped allocator's path; all workers run one program and agree."""
        import tensorflow as tf
        from tensorflow.python.ops import control_flow_util

        return (
            self._scoped_allocator
            and not tf.executing_eagerly()
            and not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
            and all(tensor.shape.is_fully_defined() for tensor in tensors)
        )


def _reduce_static(
    launcher: Any, tensors: Sequence[Any], groups: Sequence[MergeGroup], options: Any
) -> list[list[Any]]:
    """Reduce each tensor by a static collective, in one name scope for each group, by which TensorFlow merges."""
    import tensorflow as tf
    from tensorflow.python.ops import collective_ops

    results: list[list[Any]] = []
    headers: list[Any] = []
    with tf.device(launcher._device):
        fence = _write_token(launcher, 1.0)
        with tf.control_dependencies([fence]):
            members = [_members(launcher, tensors, group) for group in groups]
        keys = _KEYS.assign_keys([(inside[0].dtype.name, [tensor.shape for tensor in inside]) for inside in members])
        for number, (inside, key) in enumerate(zip(members, keys, strict=True)):
            with tf.name_scope(f"merged_{number}"), tf.control_dependencies([fence]):
                reduced = [
                    collective_ops.all_reduce(
                        # A copy that nothing else reads, because the buffer is reduced in place.
                        tf.raw_ops.Snapshot(input=tensor),
                        launcher._group_size,
                        STATIC_GROUP_KEY,
                        key + index,
                        communication_hint=options.implementation.value,
                        timeout=options.timeout_seconds or 0,
                    )
                    for index, tensor in enumerate(inside)
                ]
            size = len(groups[number].positions)
            headers.extend(reduced[:-size])
            results.append(reduced[-size:])
        with tf.control_dependencies([tensor for reduced in results for tensor in reduced]):
            # The sum of headers is never negative; reading it prevents TensorFlow from removing them.
            seen = tf.add_n([tf.cast(header[0], tf.float32) for header in headers] or [tf.constant(1.0)])
            _write_token(launcher, tf.minimum(seen, 0.0))
    return results


def _members(launcher: Any, tensors: Sequence[Any], group: MergeGroup) -> list[Any]:
    """Return the tensors that a group's collectives reduce, after a header if there is something to merge."""
    inside = [tensors[position] for position in group.positions]
    return [_header(launcher, inside[0].dtype), *inside] if len(inside) > 1 else inside


def _header(launcher: Any, dtype: Any) -> Any:
    """Return one element of any value that leads a group, and determines when the group's buffer is allocated.

    The scoped allocator allocates the buffer as soon as the inputs of the group's first member are computed. For a
    gradient this may be long before the fence, or in a branch that is not taken, and then the buffer is never
    released and the next step fails. The token's value, read after the fence, becomes available at the right time.
    """
    import tensorflow as tf

    value = tf.raw_ops.ReadVariableOp(resource=launcher._get_ordering_token(), dtype=tf.float32)
    return tf.cast(tf.reshape(value, [1]), dtype)


def _write_token(launcher: Any, value: Any) -> Any:
    """Write to the launcher's ordering token, which orders all reductions of the process."""
    import tensorflow as tf

    return tf.raw_ops.AssignVariableOp(resource=launcher._get_ordering_token(), value=value)


def _reduce_packs(launcher: Any, tensors: Sequence[Any], groups: Sequence[MergeGroup], options: Any) -> list[list[Any]]:
    """Reduce each group by one concat, one collective and one split."""
    import tensorflow as tf

    results: list[list[Any]] = []
    with tf.device(launcher._device):
        for group in groups:
            members = [tensors[position] for position in group.positions]
            if len(members) == 1:
                results.append([launcher.all_reduce(members[0], None, options)])
                continue
            flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in members], axis=0)
            sizes = [tf.size(tensor) for tensor in members]
            parts = tf.split(launcher.all_reduce(flat, None, options), sizes, num=len(members))
            shaped = [tf.reshape(part, tf.shape(tensor)) for part, tensor in zip(parts, members, strict=True)]
            for part, tensor in zip(shaped, members, strict=True):
                part.set_shape(tensor.shape)
            results.append(shaped)
    return results
