"""Sum or mean over the group of any values of a training step: structures of tensors, sparse gradients, None."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.worker import collective_stats
from hopsml.errors import ArgumentTypeError
from hopsml.training.tensorflow import collective_ops

_WIDER = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
_REDUCED = ("float32", "float64", "float16", "bfloat16", "int32", "int64")


def reduce(reduce_op: Any, value: Any, label: str = "") -> Any:
    """Return ``value`` with each tensor replaced by its sum or mean over the group; all dense ones are sent together.

    Sparse gradients (IndexedSlices) are gathered: members may have different numbers of rows. None stays None. As in
    TensorFlow's strategies the mean of integers is float64.

    Args:
        reduce_op: ``tf.distribute.ReduceOp.SUM`` or ``MEAN``.
        value: a structure of tensors.
        label: description of the call for messages.

    Raises:
        ArgumentTypeError: a type cannot be summed.
    """
    import tensorflow as tf

    mean = reduce_op == tf.distribute.ReduceOp.MEAN
    flat = tf.nest.flatten(value)
    results: list[Any] = [None] * len(flat)
    dense: list[int] = []
    for position, leaf in enumerate(flat):
        if isinstance(leaf, tf.IndexedSlices):
            results[position] = _gathered(leaf, mean, label)
        elif leaf is not None:
            dense.append(position)
    tensors = [tf.convert_to_tensor(flat[position]) for position in dense]
    for position, reduced in zip(dense, _reduced(tensors, mean, label), strict=True):
        results[position] = reduced
    return tf.nest.pack_sequence_as(value, results)


def _reduced(tensors: list[Any], mean: bool, label: str) -> list[Any]:
    """Return the sums or means of dense tensors."""
    import tensorflow as tf

    if not tensors:
        return []
    collective_stats.reduced(len(tensors), 1, 0, "collective")
    floats = [position for position, tensor in enumerate(tensors) if tensor.dtype.is_floating]
    others = [position for position in range(len(tensors)) if position not in floats]
    results: list[Any] = [None] * len(tensors)
    given = [_supported(tensors[position]) for position in floats]
    if given:
        reduced = collective_ops.all_reduce(given, "mean" if mean else "sum", label=label)
        for position, one in zip(floats, reduced, strict=True):
            results[position] = one
    given = [_supported(tensors[position]) for position in others]
    if given:
        # The reduction counts its own participants, because the group's size at another moment may differ.
        *sums, members = collective_ops.all_reduce([*given, tf.ones([], tf.int64)], "sum", label=label)
        for position, one in zip(others, sums, strict=True):
            results[position] = one / tf.cast(members, one.dtype) if mean else tf.cast(one, tensors[position].dtype)
    return results


def _supported(tensor: Any) -> Any:
    """Return a tensor in a type that can be summed; raise ArgumentTypeError if there is none."""
    import tensorflow as tf

    name = tensor.dtype.name
    if name in _REDUCED:
        return tensor
    if name not in _WIDER:
        raise ArgumentTypeError(
            f"a tensor of {name} cannot be summed over the group ({getattr(tensor, 'name', tensor)}): cast it to a type "
            f"that can, one of {', '.join(_REDUCED)}"
        )
    return tf.cast(tensor, _WIDER[name])


def _gathered(slices: Any, mean: bool, label: str) -> Any:
    """Return the sum or mean of sparse gradients."""
    import tensorflow as tf

    values, members = collective_ops.gathered_from(tf.convert_to_tensor(slices.values), label)
    indices = collective_ops.all_gather(tf.convert_to_tensor(slices.indices), label)
    if mean:
        values = values / tf.cast(members, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def gather(value: Any, axis: int, label: str = "") -> Any:
    """Return the members' values joined along ``axis``, in rank order; they may differ in that dimension only."""
    import tensorflow as tf

    value = tf.convert_to_tensor(value)
    if value.shape.rank is not None and not -value.shape.rank <= axis < value.shape.rank:
        raise ArgumentTypeError(f"axis={axis}: the value to gather has {value.shape.rank} dimensions")
    if axis == 0:
        return collective_ops.all_gather(value, label)
    order = tf.range(tf.rank(value))
    axis = axis % tf.rank(value)
    front = tf.concat([[axis], order[:axis], order[axis + 1 :]], 0)
    gathered = collective_ops.all_gather(tf.transpose(value, front), label)
    back = tf.concat([order[1 : axis + 1], [0], order[axis + 1 :]], 0)
    result = tf.transpose(gathered, back)
    if value.shape.rank is not None:
        static = value.shape.as_list()
        static[int(tf.get_static_value(axis))] = None
        result.set_shape(static)
    return result
