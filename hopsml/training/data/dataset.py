"""Data sets of ``hopsml.data``: their source, number of epochs, row order and batch size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared import checks
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training import collective
from hopsml.training.data.batch_reader import Batch, BatchReader, Names
from hopsml.training.data.parquet_files import ParquetFiles
from hopsml.training.data.shard_order import Source, shards_of
from hopsml.training.data.shard_sampler import ShardSampler
from hopsml.training.data.stored_files import Paths, WholeFiles
from hopsml.training.data.tfrecord_files import Features, TFRecordFiles

if TYPE_CHECKING:
    import tensorflow as tf
    import torch

MOST_ROWS, MOST_BYTES = 65_536, 256 << 20  # largest default shuffle window


@dataclass(frozen=True)
class Dataset:
    """Rows on shared storage that the workers of a run divide among them: one worker reads each row, once per epoch.

        rows = hopsml.data.parquet("hdfs:///data/clicks", columns=["features", "label"])
        rows = rows.batch(1024).shuffle(seed=1).repeat(10)
        for batch in state.resume(rows):                    # hopsml.elastic.State: also in a group that changes
            step(batch["features"], batch["label"])         # this worker's rows; batch.global_size: of all workers

    Each method returns another data set and reads nothing. Without a State, ``for batch in rows`` does the same in a
    group of a fixed size; ``rows.tensorflow(...)`` and ``rows.torch()`` return data sets for these frameworks.
    """

    source: Source
    global_batch_size: int = 0
    drop_last: bool = False
    epochs: int = 1
    seed: int = 0
    window: int = 0

    def batch(self, global_batch_size: int, *, drop_last: bool = False) -> Dataset:
        """Return the data set in global batches, whose shares differ by at most one row between workers.

        Args:
            global_batch_size: rows of a batch, over all workers.
            drop_last: leave out the last batch of an epoch if it is smaller.

        Raises:
            ArgumentTypeError: the batch size is not a whole number.
            ArgumentError: the batch size is below 1.
        """
        size = checks.whole_number("global_batch_size", global_batch_size)
        return replace(self, global_batch_size=size, drop_last=drop_last)

    def shuffle(self, seed: int = 0, window: int | None = None) -> Dataset:
        """Return the data set in a different order in each epoch, which is the same on all workers.

        Shards, the parts that are read as a whole, are shuffled, and rows within windows.

        Args:
            seed: seed of the orders; 0 or more.
            window: rows of a worker that are shuffled together, in its memory. None: 65 536, or as many as take about
                256 MB.

        Raises:
            ArgumentTypeError: an argument is not a whole number.
            ArgumentError: an argument is too small.
        """
        if window is None:
            window = max(1, min(MOST_ROWS, int(MOST_BYTES / max(1.0, self.source.row_bytes))))
        window = checks.whole_number("window", window)
        return replace(self, seed=checks.whole_number("seed", seed, at_least=0), window=window)

    def repeat(self, epochs: int) -> Dataset:
        """Return the data set read ``epochs`` times, instead of once."""
        return replace(self, epochs=checks.whole_number("epochs", epochs))

    def __len__(self) -> int:
        """Return the number of global batches in all epochs, for a group of a fixed size.

        Waits until all rows are known.
        """
        return self.epochs * self.sampler().batches_of_epoch

    def reader(self, first_epoch: int = 0) -> BatchReader:
        """Return a reader of this worker's batches; ``State.resume`` and iteration create one themselves.

        Args:
            first_epoch: number of the epoch whose row order comes first, from 0.
        """
        return BatchReader(self.source, lambda: self.sampler(first_epoch))

    def __iter__(self) -> Iterator[Batch]:
        """Return this worker's batches, from the first epoch on."""
        return self.batches()

    def batches(self, first_epoch: int = 0) -> Iterator[Batch]:
        """Yield this worker's batches, in a group of a fixed size.

        Args:
            first_epoch: number of the epoch whose row order comes first, from 0.
        """
        reader = self.reader(first_epoch)
        try:
            reader.join(*collective.rank_and_size())
            while not reader.is_exhausted:
                yield reader.next_batch()
        finally:
            reader.close()

    def tensorflow(
        self, features: Names | None = None, label: Names | None = None, weight: str | None = None
    ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        """Return this worker's batches as a TensorFlow data set, for ``fit``, ``evaluate`` and custom loops.

            model.fit(rows.tensorflow("features", "label"), epochs=10)

        Each element is the tuple of those of ``features``, ``label`` and ``weight`` that are given, or a dictionary of
        all columns if none is. Times are integers in their unit. Each iteration continues with the row orders of the
        next epochs.

        In a group of workers with a strategy, the result is a distributed data set of that strategy: do not distribute
        it again.

        Args:
            features: one column, as a tensor; or several, as a dictionary of tensors.
            label: one column or several, likewise.
            weight: the column of sample weights.

        Raises:
            ArgumentError: the data has no such column.
        """
        from hopsml.training.tensorflow.fit import input_batches

        return input_batches.dataset(self, input_batches.ElementForm(features, label, weight))

    def torch(self) -> torch.utils.data.IterableDataset[dict[str, Any]]:
        """Return this worker's batches as a PyTorch data set; each batch is a dictionary of CPU tensors.

        Text stays an array of objects. Use it in a DataLoader with ``batch_size=None``; a thread reads ahead. With
        ``num_workers=k`` each of the loader's processes reads every k-th batch and calls ``collate_fn``; the batches
        and their order are the same. Rows of a DataFrame need ``multiprocessing_context="forkserver"`` (or "spawn") for
        that.

        Each iteration continues with the row orders of the next epochs; ``len()`` counts batches.
        """
        from hopsml.training.torch import input_batches

        return input_batches.dataset(self)

    def sampler(self, first_epoch: int = 0) -> ShardSampler:
        """Return the sampler that orders the rows, without reading any.

        Args:
            first_epoch: number of the epoch whose row order comes first, from 0.

        Raises:
            ArgumentError: the batch size has not been set by ``batch()``.
        """
        if not self.global_batch_size:
            raise ArgumentError("the data set has no batch size yet; set it by .batch(global_batch_size)")
        return ShardSampler(
            shards_of(self.source),
            self.global_batch_size,
            self.seed,
            epochs=self.epochs,
            first_epoch=first_epoch,
            window=self.window,
            drop_last=self.drop_last,
        )


def parquet(
    path: Paths,
    columns: Sequence[str] | None = None,
    fill: Mapping[str, Any] | None = None,
    *,
    cache: bool = False,
) -> Dataset:
    """Return the rows of Parquet files on any store, by URL or local path; each row group is one shard.

    Args:
        path: a file, a folder with files at any depth, or several of these. Files whose name, or that of a folder above
            them, begins with ``_`` or ``.`` are left out; names of folders (``day=3``) do not become columns.
        columns: the columns to read; default all. Types: see ``hopsml/training/data/columns.py``.
        fill: value that replaces nulls, by column; also all values of a column that a file lacks.
        cache: store what is read from a remote store on the local disk, for later epochs, other workers of the host and
            later runs: up to ``HOPSML_DATA_CACHE_BYTES`` (10 GiB) in ``HOPSML_DATA_CACHE``.

    Raises:
        PathNotFound: a path does not exist.
        ArgumentError: a folder has no Parquet files; or one of two files, which the message names, lacks a column or
            has it with a type or length that makes different arrays.
        StorageError: a file is not a Parquet file.
    """
    _check_texts("columns", columns)
    _check_fill(fill)
    return Dataset(ParquetFiles(path, columns, fill, cache))


def tfrecords(
    path: Paths,
    features: Features | None = None,
    fill: Mapping[str, Any] | None = None,
    *,
    cache: bool = False,
) -> Dataset:
    """Return the rows of TFRecord files of ``tf.train.Example`` on any store; each feature is a column.

    TensorFlow is not needed. A feature with one value in each record becomes a column of values, with several an array
    with one more axis: of int64, float32, or objects of bytes. About 16 MB of a file form a shard, which is read as a
    whole; a compressed file (GZIP) is one shard. The checksum of every record is verified.

    A TFRecord file does not contain its number of records. Records are counted when the data set is created, eight
    files at a time: for records below 256 KiB this takes as long as reading the files once, for larger ones a short
    read each. Create the data set on the driver and let the function refer to it, so that the workers need not count
    again.

    Args:
        path: a file, a folder with files at any depth (those named ``*.tfrecord*`` and ``part-*``), or several of
            these. Names that begin with ``_`` or ``.`` are left out.
        features: names of the features to read, or the shape of each in a record: ``{"image": (28, 28), "label": ()}``.
            Default all.
        fill: value for records that lack a feature, by name; for a list of values a list.
        cache: store what is read on the local disk, as for ``parquet``.

    Raises:
        PathNotFound: a path does not exist.
        ArgumentError: a folder has no TFRecord files. Also for a feature that some records lack, whose lists differ in
            length, or whose type changes: on creation if the first records of two files differ, which the message
            names, else while the rows are read.
        StorageError: a file is damaged or truncated; the message names the file, the record and its byte offset. While
            rows are read: a file was deleted or changed.
    """
    _check_texts("features", features)
    _check_fill(fill)
    return Dataset(TFRecordFiles(path, features, fill, cache))


def files(path: Paths, suffixes: Sequence[str] | None = None, *, cache: bool = False) -> Dataset:
    """Return whole files on any store as rows, for instance images.

    The call lists the files and reads none. The columns are ``path``, the file's URL; ``folder``, the name of its
    folder, which is the class where each class has a folder; and ``content``, the file's bytes. Successive files of
    about 16 MB together form a shard, and are read four at a time. Where the files of a class follow one another,
    ``shuffle`` mixes only the classes within its window.

    Args:
        path: a folder with files at any depth, a file, or several of these. Names that begin with ``_`` or ``.`` are
            left out.
        suffixes: endings of the names of files in a folder, in any case: ``[".jpg", ".png"]``; default all.
        cache: store what is read on the local disk, as for ``parquet``.

    Raises:
        PathNotFound: a path does not exist.
        ArgumentError: a folder has no such file.
        StorageError: while rows are read, a file was deleted or its length changed.
    """
    _check_texts("suffixes", suffixes)
    return Dataset(WholeFiles(path, suffixes, cache))


def _check_texts(name: str, given: Any) -> None:
    """Raise an error unless ``given`` is a non-empty list of strings, or None."""
    if given is None:
        return
    if isinstance(given, str):
        raise ArgumentTypeError(f"{name}={given!r} is a single name; pass a list of names: {name}=[{given!r}]")
    if not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise ArgumentTypeError(f"{name}={given!r:.80} must be a list of names, or None for all")
    if not given:
        raise ArgumentError(f"{name}={given!r} selects no columns; name at least one, or omit {name}= for all")


def _check_fill(fill: Any) -> None:
    """Raise an error unless ``fill`` is a mapping or None."""
    if fill is not None and not isinstance(fill, Mapping):
        raise ArgumentTypeError(
            f"fill={fill!r:.80} must be a dict of what stands for a null, by column: fill={{'age': 0}}"
        )
