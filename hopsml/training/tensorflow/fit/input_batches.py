"""Batches of a data set for TensorFlow, as a ``tf.data.Dataset``."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.training import collective
from hopsml.training.data.batch_reader import missing_column_message
from hopsml.training.data.shard_order import first_nonempty_shard, shards_of
from hopsml.training.tensorflow.fit.input_data import disable_autotuning
from hopsml.training.tensorflow.groups import latest_strategy, spans_workers

if TYPE_CHECKING:
    import tensorflow as tf
    from numpy.typing import NDArray

    from hopsml.training.data.batch_reader import BatchedRows, Names
    from hopsml.training.data.row_gatherer import Chunk


@dataclass(frozen=True)
class ElementForm:
    """Layout of an element: the columns that it has, and their places in it."""

    features: Names | None
    label: Names | None
    weight: str | None

    def build_element(self, columns: Mapping[str, Any]) -> Any:
        """Return an element made of values by column; raise ArgumentError for a missing column."""
        given = [names for names in (self.features, self.label, self.weight) if names is not None]
        parts = tuple(_of(names, columns) for names in given)
        return parts if len(parts) > 1 else parts[0] if parts else dict(columns)


def _of(names: Names, columns: Mapping[str, Any]) -> Any:
    """Return the values of one column, or a dict of those of several."""
    if missing := [name for name in ([names] if isinstance(names, str) else names) if name not in columns]:
        raise ArgumentError(missing_column_message(missing, columns))
    return columns[names] if isinstance(names, str) else {name: columns[name] for name in names}


def dataset(batches: BatchedRows, form: ElementForm) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Return a TensorFlow dataset of the batches, divided among the workers; ``Dataset`` describes the elements.

    Shapes are known except for the number of rows. The number of batches is known if all rows are present.

    Args:
        batches: the batches.
        form: layout of an element.
    """
    import tensorflow as tf

    signature, iterations = _signatures(batches, form), itertools.count()

    def generate() -> Iterator[Any]:
        reader = batches.reader(next(iterations) * batches.epochs)
        with contextlib.closing(reader):
            reader.join(*collective.rank_and_size())
            while not reader.is_exhausted:
                yield from _elements(reader.next_chunk(), form)

    made = _divided(
        tf.data.Dataset.from_generator(generate, output_signature=(signature, tf.TensorSpec((None,), tf.int64)))
    )
    # A worker that requests a batch after the last one would wait for the others: either all know the number, or none
    # does.
    if getattr(batches.source, "arriving", None) is None:
        made = made.apply(tf.data.experimental.assert_cardinality(len(batches)))
    options = tf.data.Options()  # a strategy that is created later must not divide it again
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.autotune.enabled = (
        False  # nothing here needs tuning, and the end of an iteration would wait for the sleeping tuner thread
    )
    made = made.with_options(options)
    strategy = latest_strategy()
    if spans_workers(strategy):
        _check_devices(strategy)
        made = strategy.distribute_datasets_from_function(lambda _: made)
    made._hopsml_feed = functools.partial(_feed, batches, form, signature)
    return made


def _feed(
    batches: BatchedRows, form: ElementForm, signature: Any, strategy: Any, epochs: int, steps_per_execution: int
) -> Any:
    """Return the feed that replaces the dataset in ``fit``, in a group that may change."""
    import tensorflow as tf

    from hopsml.training.tensorflow.fit.feeds import Feed

    if batches.epochs > 1:
        raise ArgumentError(
            f"repeat({batches.epochs}): fit() repeats by itself; give it epochs={batches.epochs} instead"
        )
    rows = batches.repeat(epochs)

    class RowsFeed(Feed):
        """Feed that continues after the last row trained on, in a group of any size."""

        position: Any  # a ShardSampler

        def begin_epoch(self, epoch: int) -> None:
            if self.position.epoch != epoch:
                self.position.begin_epoch(epoch)

        def tracing_iterator(self) -> Any:
            return self._iterator({}, max(1, len(batches)))

        def iterator(self, first: int) -> Any:
            self.total = first + self.position.batches_left_in_epoch
            return self._iterator(self.position.position(), self.position.batches_left_in_epoch)

        def _next_step(self) -> int:
            return int(self.position.batches_done_in_epoch)

        def _iterator(self, position: Mapping[str, Any], count: int) -> Any:
            reader = rows.reader()
            reader.join(*self.position.rank_and_size)
            if position:
                reader.go_to(position)

            def generate() -> Iterator[Any]:
                with contextlib.closing(reader):
                    left = count
                    while left > 0:
                        chunk = reader.next_chunk()
                        left -= len(chunk.ends)
                        yield from _elements(chunk, form)

            made = tf.data.Dataset.from_generator(
                generate, output_signature=(signature, tf.TensorSpec((None,), tf.int64))
            )
            made = _divided(made).take(count)
            return iter(strategy.distribute_datasets_from_function(lambda _: disable_autotuning(made)))

    position: Any = rows.sampler()
    return RowsFeed(position, strategy, steps_per_execution)


def _check_devices(strategy: Any) -> None:
    """Raise ArgumentError if this worker trains on several devices."""
    devices = len(strategy.extended.worker_devices)
    if devices > 1:
        raise ArgumentError(
            f"this worker trains on {devices} devices, and rows are divided among workers: run one worker for each device, "
            "or iterate the rows and divide a batch in the loop"
        )


def _signatures(batches: BatchedRows, form: ElementForm) -> Any:
    """Return the shapes and types of elements, from the first shard with rows."""
    source = batches.source
    filled = first_nonempty_shard(shards_of(source))
    if filled is None:
        raise ArgumentError("the data has no rows, so nobody can tell the shapes of its batches")
    return form.build_element({name: _signature(column) for name, column in source.read(filled).items()})


def _elements(chunk: Chunk, form: ElementForm) -> Iterator[tuple[Any, list[int]]]:
    """Yield runs of successive batches as one element, each with the numbers of rows of its batches."""
    # A batch without rows is a separate element without numbers: TensorFlow 2.21 would divide it endlessly.
    columns = {name: _plain(column) for name, column in chunk.columns.items()}
    for is_empty, run in itertools.groupby(itertools.pairwise((0, *chunk.ends)), lambda bounds: bounds[0] == bounds[1]):
        batches = list(run)
        begin, end = batches[0][0], batches[-1][1]
        rows = form.build_element({name: column[begin:end] for name, column in columns.items()})
        yield from (
            itertools.repeat((rows, []), len(batches))
            if is_empty
            else [(rows, [end - begin for begin, end in batches])]
        )


def _divided(chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Divide the elements of ``_elements`` without the copy that slicing makes of rows of other than 64 n bytes."""
    import tensorflow as tf

    def batches(rows: Any, sizes: Any) -> tf.data.Dataset:
        whole = tf.data.Dataset.from_tensors(rows)
        return tf.cond(tf.size(sizes) == 0, lambda: whole, lambda: whole.rebatch(sizes))

    return chunks.flat_map(batches)


def _signature(column: NDArray[Any]) -> tf.TensorSpec:
    """Return the shape and type of a column."""
    import tensorflow as tf

    kind = _plain(column[:0]).dtype
    return tf.TensorSpec((None, *column.shape[1:]), tf.string if kind.kind == "O" else tf.as_dtype(kind))


def _plain(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column in a type that TensorFlow has."""
    return column.view("int64") if column.dtype.kind in "mM" else column
