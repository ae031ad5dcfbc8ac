"""Datasets of a group's members: common orders, autotuning, separate memory, and a worker's own rows.

Keras shuffles the batches of a ``PyDataset`` by Python's random numbers, independently in each process: a global batch
would consist of shares of different batches, and rows would be used twice or never. If a seed is set, it draws the same
order of arrays for every epoch, because its dataset's random generator restarts with each iterator; here the seed
determines a sequence of orders, one for each iterator, the same in all processes with that seed.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.training.tensorflow.groups import broadcast_bytes


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


def disable_autotuning(dataset: Any) -> Any:
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


def install_prompt_device_iterators() -> None:
    """Patch TensorFlow's iterators of a distributed dataset to end promptly if the group may change.

    Of each device they have an iterator over another dataset, which has not the options of the distributed one. A fit
    ends them at the first batch of the next epoch and of the next validation, and waited for up to half of the epoch.
    """
    from tensorflow.python.data.ops import multi_device_iterator_ops

    create = getattr(multi_device_iterator_ops, "_create_device_dataset", None)
    if create is None:  # another version of TensorFlow: epochs end later
        return

    def create_prompt(*arguments: Any, **options: Any) -> Any:
        return disable_autotuning(create(*arguments, **options))

    multi_device_iterator_ops._create_device_dataset = create_prompt


def copy_batches(dataset: Any) -> Any:
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


def shuffled_dataset(adapter: Any) -> Any:
    """Return a dataset of batches for a Keras ``ArrayDataAdapter`` that shuffles.

    It shuffles samples, or only those within each batch for ``shuffle="batch"``.
    """
    import tensorflow as tf

    samples, size = adapter._num_samples, adapter._batch_size
    inputs = to_sliceable(adapter._inputs)
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
    batches = numbers.flat_map(batches_of).map(
        lambda chosen: select_rows(inputs, chosen), num_parallel_calls=tf.data.AUTOTUNE
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)


def to_sliceable(inputs: Any) -> Any:
    """Convert the arrays given to ``fit`` to a structure for ``select_rows``.

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


def select_rows(inputs: Any, chosen: Any) -> Any:
    """Return the rows with these indices of every part of ``inputs``, a result of ``to_sliceable``."""
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


class _Thread(threading.local):
    """Random source of one thread."""

    source: random.Random | None = None  # random numbers for shuffles in this thread; None: Python's own


_thread = _Thread()


class _Shuffling:
    """Replacement of the module ``random`` in Keras's adapter of a ``PyDataset``."""

    @staticmethod
    def shuffle(values: list[Any]) -> None:
        """Shuffle a list in place, by the source of this thread."""
        (_thread.source or random).shuffle(values)


def install_shared_orders() -> None:
    """Patch Keras's adapter of a ``PyDataset`` to draw orders from the source that ``share_batch_orders`` sets."""
    from keras.src.trainers.data_adapters import py_dataset_adapter

    adapter, enqueuer = py_dataset_adapter.PyDatasetAdapter, py_dataset_adapter.OrderedEnqueuer
    generate, run = adapter._finite_generator, enqueuer._run

    def finite_generator(self: Any) -> Iterator[Any]:
        batches = generate(self)
        with _drawing_from(self):  # the order is drawn before the first batch
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches

    def run_in_order(self: Any) -> None:
        with _drawing_from(self):
            run(self)

    py_dataset_adapter.random = _Shuffling
    adapter._finite_generator, enqueuer._run = finite_generator, run_in_order


def share_batch_orders(adapter: Any, strategy: Any) -> None:
    """Make a ``PyDataset``'s adapter draw the chief's batch orders on every worker; all workers call it."""
    if not hasattr(adapter, "py_dataset"):
        return
    source = random.Random()
    source.setstate(pickle.loads(broadcast_bytes(strategy, pickle.dumps(random.getstate()))))
    random.random()  # so that the next fit() draws other orders
    for one in (adapter, adapter.enqueuer):
        if one is not None:
            one._hopsml_source = source


@contextlib.contextmanager
def _drawing_from(owner: Any) -> Iterator[None]:
    """Use the source of ``owner`` for shuffles of this thread inside the block."""
    _thread.source = getattr(owner, "_hopsml_source", None)
    try:
        yield
    finally:
        _thread.source = None
