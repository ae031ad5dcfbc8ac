"""Training data of Keras 3's ``fit`` in a group that may change: from an exact position on, in a common order.

``fit`` iterates its data by an epoch iterator of Keras. The feed replaces it for the batches of training, so that it
can begin in the middle of an epoch, and so that the n-th epoch has the same order in every process.

Arrays: each worker gathers its share of every global batch; the order is the ``Sampler``'s, and if shares are uneven,
sample weights make the mean that of the global batch. Any other data, a ``tf.data.Dataset`` above all: it is divided
as TensorFlow divides it, by global batches, and batches that were trained on already are drawn and dropped.
"""

from __future__ import annotations

import copy
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError
from hopsml.training import collective
from hopsml.training.elastic.sampler import Sampler, Scaling, worker_share
from hopsml.training.tensorflow.fit.input_data import disable_autotuning, select_rows, to_sliceable
from hopsml.training.tensorflow.groups import spans_workers

# Names called by steps that pass their data on: of super(), and of keras.utils.
_HANDING_ON = {"train_step", "unpack_x_y_sample_weight"}
_UNKNOWN = 1 << 40  # batches in an epoch of unknown length
_latest: weakref.ref[Any] | None = None


def patch_epoch_iterator(trainer: ModuleType) -> None:
    """Patch Keras's epoch iterator to use a feed if one is set.

    Args:
        trainer: the module ``keras.src.backend.tensorflow.trainer``.
    """
    iterator = trainer.TFEpochIterator
    enumerate_iterator = iterator._enumerate_iterator

    def enumerate_feed(self: Any) -> Iterator[Any]:
        feed = getattr(self, "_hopsml_feed", None)
        return enumerate_iterator(self) if feed is None else feed.steps(self)

    iterator._enumerate_iterator = enumerate_feed
    build = trainer.TensorFlowTrainer._maybe_symbolic_build

    def remember_then_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        global _latest
        _latest = weakref.ref(iterator) if iterator is not None else None
        build(self, iterator=iterator, data_batch=data_batch)

    trainer.TensorFlowTrainer._maybe_symbolic_build = remember_then_build


def create_feed(model: Any, epochs: int, scaling: Scaling, reference_workers: int, seed: int) -> Feed:
    """Create the feed of the ``fit`` of ``model`` that is about to begin, in place of its epoch iterator.

    Args:
        model: the model.
        epochs: epochs to train.
        scaling: "constant" or "linear", as of ``Sampler``.
        reference_workers: as of ``Sampler``.
        seed: seed of the order.

    Raises:
        ArgumentError: workers would not agree on the order of the data, or the data cannot be scaled.
    """
    epoch_iterator = _latest() if _latest is not None else None
    if epoch_iterator is None:
        raise ArgumentError("elastic training with fit() needs Keras 3 with the TensorFlow backend")
    adapter, strategy = epoch_iterator.data_adapter, model.distribute_strategy
    options: dict[str, Any] = {"scaling": scaling, "reference_workers": reference_workers, "epochs": max(1, epochs)}
    if _is_of_arrays(adapter):
        if epoch_iterator.steps_per_epoch:
            raise ArgumentError(
                "steps_per_epoch= with arrays has no position that can be found again under min_workers; leave it out, or "
                "give fit() a dataset that repeats"
            )
        shuffle = bool(adapter._shuffle)
        position = Sampler(adapter._num_samples, adapter._batch_size, seed, shuffle=shuffle, **options)
        feed: Feed = ArrayFeed(
            position, adapter._inputs, strategy, epoch_iterator.steps_per_execution, weighted=_takes_weights(model)
        )
    else:
        if scaling != "constant":
            raise ArgumentError(
                f"scaling={scaling!r} needs data whose batches can be cut anew: give fit() the arrays, with batch_size=, "
                "instead of a dataset"
            )
        if getattr(adapter, "shuffle", False):
            raise ArgumentError(
                f"{type(adapter).__name__.removesuffix('Adapter')} is shuffled by each worker for itself; under min_workers "
                "pass shuffle=False to fit(), and let the data have an order that all workers share"
            )
        of_rows = getattr(getattr(adapter, "_dataset", None), "_hopsml_feed", None)
        if of_rows is not None:  # a data set of hopsml.data
            feed = of_rows(strategy, options["epochs"], epoch_iterator.steps_per_execution)
        else:
            feed = DatasetFeed(epoch_iterator, strategy, options)
    epoch_iterator._hopsml_feed = feed
    return feed


def _is_of_arrays(adapter: Any) -> bool:
    """Return True if ``fit`` was given arrays."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    return isinstance(adapter, ArrayDataAdapter)


class Feed(ABC):
    """Base class of sources of batches for ``fit``, from ``position`` on.

    ``total`` is the number of batches in the present epoch, None if unknown.
    """

    total: int | None
    fixed = ""  # why a joining worker cannot take a share of the data in the middle of an epoch

    def __init__(self, position: Sampler, strategy: Any, steps_per_execution: int) -> None:
        self.position, self.steps_per_execution = position, steps_per_execution
        self._strategy, self._together = strategy, current() is not None and spans_workers(strategy)
        self._epochs_told = 0  # number of epochs announced to a ``PyDataset``
        self.between: Callable[[], object] = lambda: (
            None
        )  # called between two batches, also before the first one of an epoch

    def update_share(self) -> bool:
        """Take this worker's share of the data; return True if the share has changed.

        The share is all of the data if the strategy spans one worker.
        """
        rank, size = collective.rank_and_size() if self._together else (0, 1)
        if (rank, size) == (self.position.rank, self.position.world_size):
            return False
        self.position.join(rank, size)
        return True

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: at the position if that lies in this epoch, else at the epoch's first batch."""
        if self.position.epoch != epoch:
            self.position.epoch, self.position.offset = epoch, 0

    def advance(self, end_step: int) -> int:
        """Count the batches of a train function call that ended with batch ``end_step``; return their number."""
        begin_step = end_step - self.steps_per_execution + 1
        batches = self.steps_per_execution if self.total is None else min(end_step + 1, self.total) - begin_step
        for _ in range(batches):
            self.position.advance()
        return batches

    def is_last(self, end_step: int) -> bool:
        """Return True if batch ``end_step`` is the last of the epoch."""
        return self.total is not None and end_step + 1 >= self.total

    def steps(self, epoch_iterator: Any) -> Iterator[Any]:
        """Yield for each call of the train function the numbers of its first and last batch, and the iterator.

        Keras's epoch iterator does the same.
        """
        self.between()
        self._tell_of_epochs(epoch_iterator.data_adapter)
        self.update_share()
        step = self._next_step()
        iterator = self.iterator(step)
        while self.total is None or step < self.total:
            epoch_iterator._steps_seen = step + self.steps_per_execution
            yield step, step + self.steps_per_execution - 1, iterator
            step += self.steps_per_execution
            if self.total is not None and step >= self.total:
                return  # a validation follows, by the workers that have begun the epoch
            self.between()
            if self.update_share():  # members have failed or joined
                step = self._next_step()
                iterator = self.iterator(step)

    def _tell_of_epochs(self, adapter: Any) -> None:
        """Call a ``PyDataset``'s hooks for each epoch, as Keras does, also for those before this process began.

        A data set that changes its order by epoch then has the order of this one. It must itself provide the same
        order on all workers.
        """
        told = getattr(adapter, "py_dataset", None)
        while told is not None and self._epochs_told <= self.position.epoch:
            if self._epochs_told:
                told.on_epoch_end()
            told.on_epoch_begin()
            self._epochs_told += 1

    def tracing_iterator(self) -> Any:
        """Return an iterator over the present epoch from its first batch, for a worker that joins the group.

        With it the worker traces its training step before it joins the others. The position is not changed; the state
        of drawing from the data is reset (``reset_drawing``).
        """
        position, self.position = self.position, copy.copy(self.position)
        self.position.offset = 0
        try:
            return self.iterator(0)
        finally:
            self.position = position
            self.reset_drawing()

    def reset_drawing(self) -> None:  # noqa: B027 arrays have no such state
        """Reset the state of drawing from the data: the next iterator is like the first of the process."""

    def _next_step(self) -> int:
        """Return the number of batches of the present group's size that this epoch has been trained on."""
        return -(-self.position.offset // self.position.size)

    @abstractmethod
    def iterator(self, first: int) -> Any:
        """Return an iterator over the rest of the epoch from batch ``first`` on; sets ``total``."""


class ArrayFeed(Feed):
    """Feed of arrays, or of other data that Keras slices like arrays."""

    def __init__(
        self, position: Sampler, inputs: Any, strategy: Any, steps_per_execution: int, *, weighted: bool = True
    ) -> None:
        """Create a feed of arrays.

        Args:
            position: sampler with the position.
            inputs: the arrays, in Keras's structure.
            strategy: the strategy of the model.
            steps_per_execution: batches of one call of the train function.
            weighted: pass sample weights to the model's step if shares are uneven.
        """
        super().__init__(position, strategy, steps_per_execution)
        self._inputs, self._may_weight = inputs, weighted
        self._most_workers = 1

    def iterator(self, first: int) -> Any:
        """Return an iterator over the rest of the epoch from batch ``first`` on; sets ``total``."""
        batches = self._left()
        self.total = first + len(batches)
        return iter(self._strategy.distribute_datasets_from_function(lambda _: self._dataset(batches)))

    def _left(self) -> list[Any]:
        """Return the global batches of the rest of the epoch."""
        ahead, batches = copy.copy(self.position), []
        while not ahead.is_exhausted and ahead.epoch == self.position.epoch:
            batches.append(ahead.next_global_batch())
        return batches

    def _dataset(self, batches: list[Any]) -> Any:
        """Return this worker's part as a dataset: for each step one element for each of its devices."""
        import numpy as np
        import tensorflow as tf

        local = max(1, self._strategy.num_replicas_in_sync // self.position.world_size)
        count, mine = (
            self.position.world_size * local,
            range(self.position.rank * local, (self.position.rank + 1) * local),
        )
        shares = [worker_share(batch, replica, count) for batch in batches for replica in mine]
        whole = np.array([len(batch) for batch in batches for _ in mine])
        lengths = np.array([len(one) for one in shares])
        indices = tf.RaggedTensor.from_row_lengths(np.concatenate([*shares, np.zeros(0, np.int64)]), lengths)
        weights = (lengths * count / np.maximum(whole, 1)).astype(np.float32)
        inputs = to_sliceable(self._inputs)
        sizes = [self.position.size, *map(len, batches)]
        uneven = self._may_weight and any(size % (local * workers) for size in sizes for workers in self._group_sizes())

        def gather(chosen: Any, weight: Any) -> Any:
            picked = select_rows(inputs, chosen)
            return _weighted(picked, chosen, weight) if uneven else picked

        elements = tf.data.Dataset.from_tensor_slices((indices, weights))
        return disable_autotuning(elements.map(gather, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2))

    def _group_sizes(self) -> range:
        """Return the group sizes that traced functions have met or may meet; all must have weights, or none."""
        context = current()
        self._most_workers = max(self._most_workers, self.position.world_size)
        least = context.spec.group.minimum if context is not None and context.mends is not None else self._most_workers
        return range(min(least, self._most_workers), self._most_workers + 1)


def _weighted(picked: Any, chosen: Any, weight: Any) -> Any:
    """Return (x, y, sample weights) with weights that turn the mean over a share into its part of the global mean."""
    import tensorflow as tf
    from keras.src import tree

    if not isinstance(picked, tuple) or len(picked) < 2:
        return picked
    if len(picked) == 3 and picked[2] is not None:
        return picked[0], picked[1], tree.map_structure(lambda one: one * tf.cast(weight, one.dtype), picked[2])
    each = tf.fill([tf.shape(chosen)[0]], weight)
    # The weights have the target's rank: a loss may have a value for each position, and weights of lower rank would
    # be those of positions.
    return (
        picked[0],
        picked[1],
        tree.map_structure(lambda y: tf.reshape(each, [-1] + [1] * (len(y.shape) - 1)), picked[1]),
    )


def _takes_weights(model: Any) -> bool:
    """Return True if the model's training step accepts sample weights: Keras's own, or one that passes on its data.

    ``x, y = data`` could not take a third part. The mean of such a step is that of its share, as under TensorFlow's
    own strategy.
    """
    step = getattr(type(model), "train_step", None)
    code = getattr(step, "__code__", None)
    is_own = getattr(step, "__module__", "").partition(".")[0] not in ("keras", "tf_keras")
    return not is_own or (code is not None and not _HANDING_ON.isdisjoint(code.co_names))


class DatasetFeed(Feed):
    """Feed of a ``tf.data.Dataset``, or of data that Keras converts to one; positions count its global batches."""

    def __init__(self, epoch_iterator: Any, strategy: Any, options: dict[str, Any]) -> None:
        self._stream = bool(epoch_iterator.steps_per_epoch)  # one iterator for all epochs
        self.total = epoch_iterator.num_batches
        dataset = epoch_iterator.data_adapter.get_tf_dataset()
        _check_order(dataset)
        super().__init__(Sampler(self.total or _UNKNOWN, 1, **options), strategy, epoch_iterator.steps_per_execution)
        self._dataset, self.fixed = dataset, _why_fixed(dataset)
        self._distributed: Any = None  # the whole data, divided among the workers
        self._made = 0  # number of iterators made of it
        self._running: Any = None

    def update_share(self) -> bool:
        """Take this worker's share of the data, as ``Feed.update_share`` does; return True if the share changed.

        The data is divided again at once if it comes in the same order each time that it is iterated. Otherwise it is
        divided again from the next epoch on: copies of a dataset draw their orders from one sequence, so that the
        order of the present epoch cannot be repeated. A dataset that repeats without end has no next epoch, and its
        shares stay unchanged.
        """
        if not super().update_share():
            return False
        if self.fixed and self._made:
            if not self._stream:
                self._distributed = None
            return False
        self.reset_drawing()
        return True

    def reset_drawing(self) -> None:
        """Drop the iterators and the division of the data, as ``Feed.reset_drawing`` requires."""
        self._distributed, self._made, self._running = None, 0, None

    def iterator(self, first: int) -> Any:
        """Return an iterator over the rest of the epoch from batch ``first`` on; sets ``total``.

        A dataset that shuffles has another order in each iterator made of it.
        """
        if self._running is not None:
            return self._running
        dropped = first + (self.position.epoch * (self.total or 0) if self._stream else 0)
        if dropped and not self.fixed:
            found = iter(self._divided(dropped))
        else:
            found = self._of_whole(0 if self._stream else self.position.epoch)
            for _ in range(dropped):
                next(found)
        if self._stream:
            self._running = found
        return found

    def _of_whole(self, epoch: int) -> Any:
        """Return an iterator over the whole data in the order of this epoch."""
        if self._distributed is None:
            self._distributed = self._divided()
        found, self._made = iter(self._distributed), self._made + 1
        while self._made <= epoch:
            found, self._made = iter(self._distributed), self._made + 1
        return found

    def _divided(self, dropped: int = 0) -> Any:
        """Return the data divided among the present workers, without the first ``dropped`` global batches."""
        return _distributed(self._dataset, self._strategy, self._stream, dropped)


def _distributed(dataset: Any, strategy: Any, repeat: bool, dropped: int) -> Any:
    """Divide a dataset among the workers of a strategy."""
    import tensorflow as tf

    if isinstance(dataset, tf.distribute.DistributedDataset):
        return dataset
    policy = tf.data.experimental.AutoShardPolicy
    if dataset.options().experimental_distribute.auto_shard_policy in (policy.AUTO, policy.FILE):
        options = tf.data.Options()  # by files, the share would depend on the number of workers
        options.experimental_distribute.auto_shard_policy = policy.DATA
        dataset = dataset.with_options(options)
    dataset = dataset.repeat() if repeat else dataset
    # All workers skip the same batches without drawing from the distributed data, because drawing would be a call of
    # the group's.
    return strategy.experimental_distribute_dataset(dataset.skip(dropped) if dropped else dataset)


def _why_fixed(dataset: Any) -> str:
    """Return why a joining worker cannot have the rest of an epoch as the others have it; "" if it can."""
    import tensorflow as tf

    if isinstance(dataset, tf.distribute.DistributedDataset):
        return "fit() was given a dataset that the function has divided itself"
    if _shuffles_anew(dataset):
        return "fit() was given a dataset that is shuffled anew for each epoch, in an order of the processes that are there"
    return ""


def _check_order(dataset: Any) -> None:
    """Raise ArgumentError for a dataset that each process would shuffle in its own order."""
    for one in _shuffling(dataset):
        seeds = [getattr(one, name, None) for name in ("_seed", "_seed2")]
        if all(seed is not None and int(seed) == 0 for seed in seeds):
            raise ArgumentError(
                "the dataset is shuffled without a seed, so each worker has an order of its own, and no position in it can "
                "be found again: give shuffle() a seed=, or fit() the arrays, which it shuffles alike on all workers"
            )


def _shuffles_anew(dataset: Any) -> bool:
    """Return True if each iterator of the dataset has another order."""
    return any(getattr(one, "_reshuffle_each_iteration", None) is not False for one in _shuffling(dataset))


def _shuffling(dataset: Any) -> Iterator[Any]:
    """Yield the parts of a dataset that shuffle."""
    import tensorflow as tf

    waiting = [dataset] if isinstance(dataset, tf.data.Dataset) else []
    while waiting:
        one = waiting.pop()
        waiting.extend(one._inputs())
        if "shuffle" in type(one).__name__.lower():
            yield one


def order_seed() -> int:
    """Return the seed for shuffling arrays, the same on all workers: the user's global seed, else the run's."""
    from tensorflow.python.eager import context

    chosen = context.global_seed()
    return int(chosen if chosen is not None else SETTINGS.seed or 0) % (1 << 32)
