"""Compression of gradients for the reduction over the group: none, largest entries, low-rank matrices, or Adasum.

A compression method has ``received_types`` (of the data received in each transfer), ``make_transfers`` and
``combine_received``; the group's operation is between the last two. The state that a method retains between steps
belongs to this worker only; it is in no commit and no checkpoint, and restarts from zeros.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from hopsml.training.tensorflow.distribution import collective_ops
from hopsml.training.tensorflow.distribution.collective_ops import Transfer, Wire

_SMALL = 1024  # number of entries up to which a gradient is sent whole


class Compressor(ABC):
    """Compression method: turns some gradients, always of the same variables, into those of the group."""

    @abstractmethod
    def received_types(self) -> list[list[Any]]:
        """Return the types of the received data, for each transfer."""

    @abstractmethod
    def make_transfers(self, gradients: Sequence[Any]) -> list[Transfer]:
        """Return the transfers that carry the gradients."""

    @abstractmethod
    def combine_received(self, received: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the group's gradients as sums over all workers."""

    def reset(self) -> None:  # noqa: B027 most methods keep no state
        """Reset the state to that before the first step, with no remainder of earlier gradients."""


class NoCompression(Compressor):
    """No compression: the sum of dense gradients of one type."""

    def __init__(self, variables: Sequence[Any], dtype: Any, wire: Wire = "same") -> None:
        self._shapes, self._dtype = [variable.shape for variable in variables], dtype
        self._wire: Wire = wire if dtype.name == "float32" else "same"

    def received_types(self) -> list[list[Any]]:
        """Return the types of the received data: one for each gradient."""
        return [[self._dtype] * len(self._shapes)]

    def make_transfers(self, gradients: Sequence[Any]) -> list[Transfer]:
        """Return one transfer that sums all gradients."""
        return [Transfer("sum", [tf.convert_to_tensor(one) for one in gradients], self._wire)]

    def combine_received(self, received: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the received sums with the variables' shapes."""
        return [tf.ensure_shape(one, shape) for one, shape in zip(received[0], self._shapes, strict=True)]


class SparseRows(Compressor):
    """No compression of one sparse gradient: its rows are gathered; members may have different numbers of rows."""

    def __init__(self, dtype: Any, index_type: Any, dense_shape: Sequence[int | None]) -> None:
        self._types, self._shape = (dtype, index_type), dense_shape

    def received_types(self) -> list[list[Any]]:
        """Return the types of the received values and indices."""
        return [[one] for one in self._types]

    def make_transfers(self, gradients: Sequence[Any]) -> list[Transfer]:
        """Return one transfer for the values and one for the indices."""
        return [Transfer("rows", [gradients[0].values]), Transfer("rows", [gradients[0].indices])]

    def combine_received(self, received: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the gathered rows as one sparse gradient."""
        (values,), (indices,) = received
        values = tf.ensure_shape(values, [None, *self._shape[1:]])
        return [
            tf.IndexedSlices(values, tf.ensure_shape(indices, [None]), tf.constant(list(self._shape), self._types[1]))
        ]


class TopK(Compressor):
    """Compression that sends the largest entries of each gradient, a given share of them.

    The other entries are added to the next step's gradient. NaN and infinity count as largest and are sent.
    """

    def __init__(self, variables: Sequence[Any], share: float) -> None:
        self._shapes = [variable.shape for variable in variables]
        self._sizes = [shape.num_elements() for shape in self._shapes]
        self._counts = [math.ceil(size * share) for size in self._sizes]
        self._left = [local_variable(tf.zeros([size]), "left") for size in self._sizes]

    def received_types(self) -> list[list[Any]]:
        """Return the type of the received rows of values and positions."""
        return [[tf.float32]]

    def make_transfers(self, gradients: Sequence[Any]) -> list[Transfer]:
        """Return one transfer: a row of values, and a row with the bits of their positions."""
        values, places = [], []
        for gradient, left, count in zip(gradients, self._left, self._counts, strict=True):
            whole = tf.reshape(gradient, [-1]) + left
            size = tf.where(tf.math.is_finite(whole), tf.abs(whole), math.inf)
            chosen = tf.math.top_k(size, count, sorted=False).indices
            taken = tf.gather(whole, chosen)
            left.assign(tf.tensor_scatter_nd_update(whole, chosen[:, None], tf.zeros_like(taken)))
            values.append(taken)
            places.append(chosen)
        pairs = tf.stack([tf.concat(values, 0), tf.bitcast(tf.concat(places, 0), tf.float32)])
        return [Transfer("rows", [pairs[None]])]

    def reset(self) -> None:
        """Clear the remainders of earlier gradients."""
        _clear(self._left)

    def combine_received(self, received: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the sums of the received entries, added in rank order and so equal on all workers."""
        pairs = tf.ensure_shape(received[0][0], [None, 2, sum(self._counts)])
        sums = []
        parts = tf.split(pairs, self._counts, axis=2)
        for part, size, shape in zip(parts, self._sizes, self._shapes, strict=True):
            values, places = tf.reshape(part[:, 0], [-1]), tf.bitcast(tf.reshape(part[:, 1], [-1]), tf.int32)
            sums.append(tf.reshape(tf.math.unsorted_segment_sum(values, places, size), shape))
        return sums


class PowerSgd(Compressor):
    """Compression of each gradient, as a matrix, into two low-rank ones (Vogels et al. 2019).

    The approximation error is added to the next step's gradient. The first matrix is summed in the step itself,
    because the second needs it. All workers start with the same one. Where workers may join the group (``changes``),
    all restart with that matrix when one joins.
    """

    def __init__(self, variables: Sequence[Any], rank: int, changes: bool = False) -> None:
        self._shapes = [variable.shape for variable in variables]
        sides = [matrix_sides(shape) for shape in self._shapes]
        ranks = [min(rank, *pair) for pair in sides]
        self._first = [
            tf.random.stateless_normal([columns, rank], [number, 0])
            for number, ((_, columns), rank) in enumerate(zip(sides, ranks, strict=True))
        ]
        self._left = [local_variable(tf.zeros(pair), "left") for pair in sides]
        self._right = [local_variable(first, "right") for first in self._first]
        self._base = [
            local_variable(tf.zeros([rows, rank]), "base") for (rows, _), rank in zip(sides, ranks, strict=True)
        ]
        self._steps = local_variable(tf.constant(0, tf.int64), "steps") if changes else None

    def received_types(self) -> list[list[Any]]:
        """Return the types of the received data: one for each gradient."""
        return [[tf.float32] * len(self._shapes)]

    def make_transfers(self, gradients: Sequence[Any]) -> list[Transfer]:
        """Sum the first matrices, and return one transfer that sums the second ones."""
        wholes = [tf.reshape(gradient, left.shape) + left for gradient, left in zip(gradients, self._left, strict=True)]
        rights = [right.read_value() for right in self._right]
        if self._steps is not None:
            (least,) = collective_ops.all_reduce([self._steps.read_value()], "min", label="steps of all")
            rights = [
                tf.where(tf.equal(least, 0), first, right) for first, right in zip(self._first, rights, strict=True)
            ]
            self._steps.assign(least + 1)
        products = [tf.matmul(whole, right) for whole, right in zip(wholes, rights, strict=True)]
        (summed,) = collective_ops.make_transfers([Transfer("sum", products)])
        for whole, left, base, product in zip(wholes, self._left, self._base, summed, strict=True):
            left.assign(whole)
            base.assign(tf.linalg.qr(product).q)
        sent = [tf.matmul(base, whole, transpose_a=True) for whole, base in zip(wholes, self._base, strict=True)]
        return [Transfer("sum", sent)]

    def reset(self) -> None:
        """Clear the errors and the count of steps.

        The other members then see that this one has done no steps, and all restart with the first matrix.
        """
        _clear(self._left)
        if self._steps is not None:
            self._steps.assign(0)

    def combine_received(self, received: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the products of the two matrices, and update the errors."""
        members = tf.cast(collective_ops.size(), tf.float32)
        sums = []
        for number, (rows, shape) in enumerate(zip(received[0], self._shapes, strict=True)):
            base = self._base[number]
            rows = tf.ensure_shape(rows, [base.shape[1], self._left[number].shape[1]])
            summed = tf.matmul(base, rows)
            self._left[number].assign_sub(summed / members)
            self._right[number].assign(tf.transpose(rows) / members)
            sums.append(tf.reshape(summed, shape))
        return sums


class Adasum(Compressor):
    """Adaptive sum (Maleki et al. 2021): the mean of the common part of two workers' gradients, the sum of the rest.

    Workers are combined in pairs, then the pairs, and so on, for each variable separately; one without a partner
    enters the next round unchanged. Every worker gathers all gradients and computes all of it, with memory for as
    many sets of gradients as there are workers.
    """

    def __init__(self, variables: Sequence[Any], dtype: Any, wire: Wire = "same") -> None:
        self._shapes, self._dtype = [variable.shape for variable in variables], dtype
        self._wire: Wire = wire if dtype.name == "float32" else "same"

    def received_types(self) -> list[list[Any]]:
        """Return the types of the received rows, and of their scales if sent as float16."""
        sent = self._dtype if self._wire == "same" else tf.as_dtype(self._wire)
        return [[sent], *([[tf.float32]] if self._wire == "float16" else [])]

    def make_transfers(self, gradients: Sequence[Any]) -> list[Transfer]:
        """Return one transfer with all gradients as a row, and one with their scales if sent as float16."""
        flat = [tf.reshape(gradient, [-1]) for gradient in gradients]
        if self._wire == "same":
            return [Transfer("rows", [tf.concat(flat, 0)[None]])]
        scales = [_power_of_two(one) if self._wire == "float16" else tf.constant(1.0) for one in flat]
        small = [tf.cast(one / scale, self._wire) for one, scale in zip(flat, scales, strict=True)]
        rows = Transfer("rows", [tf.concat(small, 0)[None]])
        return [rows, Transfer("rows", [tf.stack(scales)[None]])] if self._wire == "float16" else [rows]

    def combine_received(self, received: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the adaptive sums of all workers' gradients."""
        sizes = [shape.num_elements() for shape in self._shapes]
        parts = [
            tf.cast(part, self._dtype)
            for part in tf.split(tf.ensure_shape(received[0][0], [None, sum(sizes)]), sizes, axis=1)
        ]
        if self._wire == "float16":
            scales = tf.ensure_shape(received[1][0], [None, len(sizes)])
            parts = [part * scales[:, number, None] for number, part in enumerate(parts)]
        # The number of received rows, because the group's size at another moment may differ.
        members = tf.cast(tf.shape(received[0][0])[0], self._dtype)
        combined = adaptive_sums(parts)
        # Losses were divided by the number of workers so that a sum is a mean; an adaptive sum must not be divided.
        return [tf.reshape(one * members, shape) for one, shape in zip(combined, self._shapes, strict=True)]


def adaptive_sums(parts: Sequence[Any]) -> list[Any]:
    """Return the adaptive sum of the rows of each tensor (workers, entries); the number of rows may be dynamic."""

    def several(*parts: Any) -> Any:
        return tf.shape(parts[0])[0] > 1

    def halved(*parts: Any) -> list[Any]:
        paired = tf.shape(parts[0])[0] // 2 * 2
        return [tf.concat([_adaptive_sum(one[:paired:2], one[1:paired:2]), one[paired:]], 0) for one in parts]

    invariants = [tf.TensorShape([None, one.shape[1]]) for one in parts]
    return [one[0] for one in tf.while_loop(several, halved, list(parts), shape_invariants=invariants)]


def _adaptive_sum(first: Any, second: Any) -> Any:
    """Return the adaptive sum row by row; products are in float64, because squares of float32 may overflow."""
    a, b = tf.cast(first, tf.float64), tf.cast(second, tf.float64)
    common = tf.reduce_sum(a * b, axis=1, keepdims=True)

    def kept(one: Any) -> Any:
        square = tf.reduce_sum(one * one, axis=1, keepdims=True)
        return tf.where(square > 0, 1 - common / (2 * square), tf.ones_like(square))

    return tf.cast(kept(a) * a + kept(b) * b, first.dtype)


def _power_of_two(values: Any) -> Any:
    """Return the power of two that scales finite values to just below float16's largest number."""
    size = tf.where(tf.math.is_finite(values), tf.abs(values), 0.0)
    largest = tf.maximum(tf.reduce_max(tf.concat([size, [0.0]], 0)), 2.0**-100)
    return tf.pow(2.0, tf.floor(tf.math.log(largest) / math.log(2.0)) - 14.0)


def matrix_sides(shape: Any) -> tuple[int, int]:
    """Return the sides of a gradient as a matrix: the product of all dimensions but the last, and the last."""
    return int(math.prod(shape[:-1])), int(shape[-1])


def is_compressible(variable: Any, dtype: Any, rank: int | None = None) -> bool:
    """Return True if compressing a variable's dense gradient saves data.

    Args:
        variable: the variable.
        dtype: type of its gradient.
        rank: rank of PowerSGD's matrices; None for other methods.
    """
    shape = variable.shape
    if dtype.name != "float32" or not shape.is_fully_defined() or shape.num_elements() <= _SMALL:
        return False
    if rank is None:
        return True
    rows, columns = matrix_sides(shape) if len(shape) > 1 else (1, 1)
    return rank * (rows + columns) < rows * columns


def _clear(variables: Sequence[Any]) -> None:
    """Set variables to zero."""
    for one in variables:
        one.assign(tf.zeros_like(one))


def local_variable(value: Any, name: str) -> Any:
    """Return a variable of this worker only, whichever strategy is active."""
    with tf.init_scope(), tf.device("CPU:0"):
        return resource_variable_ops.ResourceVariable(value, trainable=False, name=f"hopsml_{name}")
