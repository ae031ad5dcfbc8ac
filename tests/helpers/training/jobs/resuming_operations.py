"""Counterpart of ``tests.helpers.collective.resuming`` for traced TensorFlow operations: ``python -m ... SIZE SEED``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hopsml.collective import Group
from hopsml.training.tensorflow.distribution import collective_ops
from tests.helpers.collective.resuming import Operation, main, rows_of, whole
from tests.helpers.collective.together import Array


def tensorflow_only() -> Sequence[Operation]:
    """Return traced functions of packed gradients, of different numbers of rows, and of a value."""
    values = [tf.TensorSpec([None], tf.float32)]
    traced: list[str] = []

    @tf.function(input_signature=values)
    def reduce(value: Any) -> Any:
        traced.append("reduce")
        return collective_ops.all_reduce([value, value[:3], 2 * value[:1], tf.tile(value, [3])])

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32)])
    def gather(value: Any) -> Any:
        traced.append("gather")
        return collective_ops.all_gather(value)

    @tf.function(input_signature=values)
    def send(value: Any) -> Any:
        traced.append("send")
        return collective_ops.broadcast(value)

    def step(group: Group, mine: float, x: Array) -> list[float]:
        factors = [
            whole(got.numpy(), given)
            for got, given in zip(reduce(mine * x), [x, x[:3], 2 * x[:1], np.tile(x, 3)], strict=True)
        ]
        assert len(traced) == len(set(traced)), traced
        return factors

    def rows(group: Group, mine: float, x: Array) -> list[float]:
        return [whole(row, x) for row in gather(np.stack([mine * x] * rows_of(mine))).numpy()]

    def first(group: Group, mine: float, x: Array) -> list[float]:
        return [whole(send(mine * x).numpy(), x)]

    return step, rows, first


if __name__ == "__main__":
    main("memory", int(sys.argv[1]), int(sys.argv[2]), 4, tensorflow_only)
