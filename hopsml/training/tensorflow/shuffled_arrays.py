"""Dataset of arrays that Keras 3's ``fit`` shuffles, with another order for each of its iterators.

If a seed is set, Keras draws the same order for every epoch, because its dataset's random generator restarts with
each iterator. Here the seed determines a sequence of orders, one for each iterator, the same in all processes with
that seed.
"""

from __future__ import annotations

from typing import Any


def dataset(adapter: Any) -> Any:
    """Return a dataset of batches for a Keras ``ArrayDataAdapter`` that shuffles.

    It shuffles samples, or only those within each batch for ``shuffle="batch"``.
    """
    import tensorflow as tf

    samples, size = adapter._num_samples, adapter._batch_size
    inputs = sliceable(adapter._inputs)
    within_batches = adapter._shuffle == "batch"

    def batches_of(number: Any) -> Any:
        """Return one epoch's batches of indices; ``number`` is the seed of its order."""
        order = tf.range(samples, dtype=tf.int64)
        if not within_batches:
            order = tf.random.experimental.stateless_shuffle(order, [number, 0])
        return tf.data.Dataset.range(0, samples, size).map(lambda begin: batch_at(order, number, begin))

    def batch_at(order: Any, number: Any, begin: Any) -> Any:
        chosen = order[begin : begin + size]
        return tf.random.experimental.stateless_shuffle(chosen, [number, begin]) if within_batches else chosen

    numbers = tf.data.Dataset.random(rerandomize_each_iteration=True).take(1)
    batches = numbers.flat_map(batches_of).map(lambda chosen: rows(inputs, chosen), num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)


def sliceable(inputs: Any) -> Any:
    """Convert the arrays given to ``fit`` to a structure for ``rows``.

    Arrays become tensors, because an array would be embedded in the graph.
    """
    import numpy as np
    import tensorflow as tf
    from keras.src import tree
    from keras.src.trainers.data_adapters import array_slicing

    def as_tensor(values: Any) -> Any:
        return tf.convert_to_tensor(values) if isinstance(values, np.ndarray) else values

    with tf.device("CPU:0"):
        return tree.map_structure(as_tensor, array_slicing.convert_to_sliceable(inputs, target_backend="tensorflow"))


def rows(inputs: Any, chosen: Any) -> Any:
    """Return the rows with these indices of every part of ``inputs``, a result of ``sliceable``."""
    import tensorflow as tf
    from keras.src import tree
    from keras.src.trainers.data_adapters import array_slicing

    def pick(values: Any) -> Any:
        if isinstance(values, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(values, chosen)
        if isinstance(values, (list, tuple, dict)):
            return None  # its parts are visited next; a sparse wrapper is a tuple, too
        return None if values is None else tf.gather(values, chosen, axis=0)

    return tree.traverse(pick, tree.lists_to_tuples(inputs))
