"""Selection of a worker's own rows from data that all workers have, in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopsml.errors import ArgumentError


def own_rows(name: str, data: Any, batch_size: int, rank: int, world_size: int) -> Any:
    """Return a ``tf.data.Dataset`` of every ``world_size``-th row from ``rank`` on, in batches.

    TensorFlow does not divide it again. All workers get the same number of rows, because otherwise they would wait
    for each other at the end; a message reports the rows left out.

    Args:
        name: name of the data, for messages.
        data: an array, or a tuple, list or dict of arrays with one row for each sample.
        batch_size: rows in one step of all workers, as everywhere in Keras.
        rank: rank of this worker.
        world_size: number of workers.

    Raises:
        ArgumentError: there are fewer rows than workers, the arrays have different numbers of rows, or the batch size
            is not a positive integer.
    """
    import numpy as np
    import tensorflow as tf

    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ArgumentError(f"the batch size of {name} is {batch_size!r}; it must be a whole number, at least 1")
    arrays = _each(np.asarray, data)
    counts = {len(array) for array in _leaves(arrays)}
    if len(counts) != 1:
        raise ArgumentError(f"the parts of {name} have {sorted(counts)} rows; they must have equally many")
    (rows,) = counts
    whole = rows // world_size * world_size
    if not whole:
        raise ArgumentError(f"{name} has {rows} rows, fewer than the {world_size} workers; use fewer workers")
    if whole < rows:
        print(f"{name}: {rows - whole} of {rows} rows are left out, so that {world_size} workers have equally many")
    mine = _each(lambda array: array[rank:whole:world_size], arrays)
    # A step takes its part of a batch; with parts of equal size all workers do the same number of steps.
    part = max(int(batch_size) // world_size, 1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensor_slices(mine).batch(part * world_size).with_options(options)


def _each(change: Callable[[Any], Any], data: Any) -> Any:
    """Apply a function to each array of a structure; lists become tuples."""
    if isinstance(data, dict):
        return {key: _each(change, value) for key, value in data.items()}
    if isinstance(data, (tuple, list)):
        return tuple(_each(change, value) for value in data)
    return change(data)


def _leaves(data: Any) -> list[Any]:
    """Return the arrays of a structure."""
    if isinstance(data, dict):
        data = tuple(data.values())
    return [leaf for part in data for leaf in _leaves(part)] if isinstance(data, tuple) else [data]
