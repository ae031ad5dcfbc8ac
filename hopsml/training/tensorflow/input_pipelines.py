"""Datasets for a group: their iterators can be ended at once, and their batches share no memory with the user's arrays."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.worker.context import current


def prompt(dataset: Any) -> Any:
    """The same dataset, not tuned by TensorFlow while it runs, where the group may change; anything else as it is.

    Whoever ends an iterator waits for the thread that tunes it. It sleeps for as long as the iterator has lived, at most a
    minute, and may miss the word that wakes it: TensorFlow says so before it can be seen. All workers would wait for that.
    What is left to be tuned (``AUTOTUNE``) has as many calls at once as there are threads.
    """
    import tensorflow as tf

    context = current()
    if context is None or not context.spec.group.regroups or not isinstance(dataset, tf.data.Dataset):
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def copied(dataset: Any) -> Any:
    """Return the dataset with copied batches, if these may share memory with Python; any other value unchanged.

    Batches from Python (``from_generator``, a ``PyDataset``) may share memory with the user's arrays. TensorFlow lets a step
    write into a worker's share of a divided batch, which would change the data of the next epoch. A dataset that TensorFlow
    batches has memory of its own, and is divided by the batch size that TensorFlow finds in its last operations.
    """
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import distribute

    if not isinstance(dataset, tf.data.Dataset) or not tf.executing_eagerly():
        return dataset
    if int(distribute.compute_batch_size(dataset)) > 0:
        return dataset
    is_tuple = isinstance(dataset.element_spec, tuple)

    def of_leaf(leaf: Any) -> Any:
        numbers = isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_integer)
        return tf.raw_ops.DeepCopy(x=leaf) if numbers else leaf

    def copy(*element: Any) -> Any:
        return tf.nest.map_structure(of_leaf, element if is_tuple else element[0])

    return dataset.map(copy)
