"""Adaptation of datasets to a group: iterators that end without delay, and batches with separate memory."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.worker.context import current


def prompt(dataset: Any) -> Any:
    """Return the dataset with autotuning disabled if the group may change; any other value unchanged.

    Ending an iterator waits for its tuning thread. That thread sleeps for as long as the iterator has lived, at most
    a minute, and may miss its wake-up, because TensorFlow signals before the thread can see it. All workers would
    wait for that. Without autotuning, operations with ``AUTOTUNE`` have as many parallel calls as there are threads.
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

    Batches from Python (``from_generator``, a ``PyDataset``) may share memory with the user's arrays. TensorFlow lets
    a step write into a worker's share of a divided batch, which would change the data of the next epoch. A dataset
    that TensorFlow batches has separate memory, and is divided by the batch size that TensorFlow finds in its last
    operations.
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
