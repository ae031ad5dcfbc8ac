"""``hopsml.data``'s data sets: what is to be read, how often, in what order, in batches of what size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared import checks
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training import collective
from hopsml.training.data.batch_reader import Batch, BatchReader, Names
from hopsml.training.data.parquet_files import ParquetFiles
from hopsml.training.data.shard_sampler import ShardSampler
from hopsml.training.data.source import Source, shards_of
from hopsml.training.data.stored_files import Paths
from hopsml.training.data.tfrecord_files import Features, TFRecordFiles
from hopsml.training.data.whole_files import WholeFiles

if TYPE_CHECKING:
    import tensorflow as tf
    import torch

MOST_ROWS, MOST_BYTES = 65_536, 256 << 20  # of a window that nobody has chosen


@dataclass(frozen=True)
class Dataset:
    """Rows on shared storage, read by all workers of a run together: each row by one of them, once an epoch.

        rows = hopsml.data.parquet("hdfs:///data/clicks", columns=["features", "label"])
        rows = rows.batch(1024).shuffle(seed=1).repeat(10)
        for batch in state.resume(rows):                    # of hopsml.elastic.State: also in a group that changes
            step(batch["features"], batch["label"])         # this worker's rows; batch.global_size: of all workers

    Each call returns another data set and reads nothing. Without a State ``for batch in rows`` is the same in a group of a
    fixed size; ``rows.tensorflow(...)`` and ``rows.torch()`` are what these frameworks iterate.
    """

    source: Source
    global_batch_size: int = 0
    drop_last: bool = False
    epochs: int = 1
    seed: int = 0
    window: int = 0

    def batch(self, global_batch_size: int, *, drop_last: bool = False) -> Dataset:
        """In batches of so many rows over all workers; their shares differ by one row at most.

        ``drop_last``: leave out the last batch of an epoch where it is smaller.

        Raises ArgumentTypeError or ArgumentError for what is no number of rows.
        """
        size = checks.whole_number("global_batch_size", global_batch_size)
        return replace(self, global_batch_size=size, drop_last=drop_last)

    def shuffle(self, seed: int = 0, window: int | None = None) -> Dataset:
        """In another order each epoch, the same on all workers: of the parts that are read as a whole, and within windows.

        ``window``: rows of a worker that are shuffled together; they lie in its memory. None: 65 536, or as many as have
        about 256 MB.
        """
        if window is None:
            window = max(1, min(MOST_ROWS, int(MOST_BYTES / max(1.0, self.source.row_bytes))))
        window = checks.whole_number("window", window)
        return replace(self, seed=checks.whole_number("seed", seed, at_least=0), window=window)

    def repeat(self, epochs: int) -> Dataset:
        """So many times, instead of once."""
        return replace(self, epochs=checks.whole_number("epochs", epochs))

    def __len__(self) -> int:
        """Global batches in all epochs together, in a group that does not change; waits for rows that are on their way."""
        return self.epochs * self.sampler().batches_of_epoch

    def reader(self, first_epoch: int = 0) -> BatchReader:
        """This worker's way through the data; ``State.resume`` and iteration make one by themselves."""
        return BatchReader(self.source, lambda: self.sampler(first_epoch))

    def __iter__(self) -> Iterator[Batch]:
        """This worker's batches, from the beginning."""
        return self.batches()

    def batches(self, first_epoch: int = 0) -> Iterator[Batch]:
        """The same with the orders of later epochs: those from ``first_epoch`` on, counted from 0."""
        reader = self.reader(first_epoch)
        try:
            reader.join(*collective.place())
            while not reader.is_exhausted:
                yield reader.next_batch()
        finally:
            reader.close()

    def tensorflow(
        self, features: Names | None = None, label: Names | None = None, weight: str | None = None
    ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        """This worker's batches for TensorFlow: for ``fit``, ``evaluate`` and loops over it.

            model.fit(rows.tensorflow("features", "label"), epochs=10)

        ``features``, ``label``, ``weight``: a column is a tensor, several are a dictionary; the elements are the tuple of
        those that are given, without any of them a dictionary of all columns. Times are counted in their unit.

        Each iteration goes on with the next epochs' orders. In a group of workers, once there is a strategy, it is a
        distributed data set of the strategy: divide it no more.

        Raises ArgumentError for a column that is not there.
        """
        from hopsml.training.tensorflow import input_batches

        return input_batches.dataset(self, input_batches.ElementForm(features, label, weight))

    def torch(self) -> torch.utils.data.IterableDataset[dict[str, Any]]:
        """This worker's batches, each a dictionary of CPU tensors; text stays an array of objects.

        For a DataLoader with ``batch_size=None``; a thread reads ahead. With ``num_workers=k`` the loader's processes do,
        each of them every k-th batch, and ``collate_fn`` is called there: the same batches come, in the same order. Rows of
        a DataFrame need ``multiprocessing_context="forkserver"`` (or "spawn") for that.

        Each iteration goes on with the next epochs' orders; ``len()`` counts batches.
        """
        from hopsml.training.torch import input_batches

        return input_batches.dataset(self)

    def sampler(self, first_epoch: int = 0) -> ShardSampler:
        """Which rows come when, without reading any. Raises ArgumentError without ``batch()``."""
        if not self.global_batch_size:
            raise ArgumentError("the data set has no batches yet; say how large they are: .batch(global_batch_size)")
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
    """Parquet files on any store, by URL or local path; row groups are what a worker reads as a whole.

    Args:
        path: a file, a folder with files at any depth, or several of these. Files whose name, or that of a folder above
            them, begins with ``_`` or ``.`` are left out; names of folders (``day=3``) are no columns.
        columns: the ones to read; default all. Their types: see ``hopsml/training/data/columns.py``.
        fill: what stands for a null, by column; also for all values of a column that a file lacks.
        cache: keep what is read of a remote store on the local disk, for later epochs, other workers of the host and later
            runs: up to ``HOPSML_DATA_CACHE_BYTES`` (10 GiB) in ``HOPSML_DATA_CACHE``.

    Raises PathNotFound for a path where nothing is, ArgumentError for a folder without Parquet files and, naming two files,
    for a column that one of them lacks or that becomes other arrays there, StorageError for what is no Parquet file.
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
    """TFRecord files of ``tf.train.Example`` on any store, read without TensorFlow; each feature is a column.

    A feature with one value in each record is a column of values, with several an array of one more axis: int64, float32, or
    objects of bytes. About 16 MB of a file are what a worker reads as a whole; of a compressed file (GZIP) all of it. Every
    record's checksum is looked at.

    A TFRecord file does not tell how many records it has. They are counted when the data set is made, eight files at a time:
    of records below 256 KiB that takes as long as reading the files once, of larger ones a short read for each. Make the
    data set on the driver and let the function refer to it, so that the workers need not count again.

    Args:
        path: a file, a folder with files at any depth (those called ``*.tfrecord*`` and ``part-*``), or several of these.
            What begins with ``_`` or ``.`` is left out.
        features: the names of those to take, or each with its shape in a record: ``{"image": (28, 28), "label": ()}``. By
            default all that there are.
        fill: what stands for a feature that a record lacks, by name; for a list of values a list.
        cache: keep what is read on the local disk, as for ``parquet``.

    Raises PathNotFound for a path where nothing is, ArgumentError for a folder without TFRecord files, StorageError naming
    the file, the record and its place for what is damaged or cut off. ArgumentError for a column that some records lack,
    whose lists differ in length, or that changes its type: naming two files whose first records differ so, while it is read
    for all other records. While it is read: StorageError for a file that was deleted or changed.
    """
    _check_texts("features", features)
    _check_fill(fill)
    return Dataset(TFRecordFiles(path, features, fill, cache))


def files(path: Paths, suffixes: Sequence[str] | None = None, *, cache: bool = False) -> Dataset:
    """Whole files on any store as rows, images for instance; it lists them, and reads none, when it is made.

    The columns: ``path``, its URL; ``folder``, the name of the folder that it lies in, which is the class where each has
    its own; ``content``, all of it as bytes. Successive files, about 16 MB of them, are what a worker reads as a whole, four
    at a time. Where files of one class follow one another, ``shuffle`` mixes as many classes as its window holds.

    Args:
        path: a folder with files at any depth, a file, or several of these. What begins with ``_`` or ``.`` is left out.
        suffixes: how the names of files in a folder end: ``[".jpg", ".png"]``, in capitals too; default all.
        cache: keep what is read on the local disk, as for ``parquet``.

    Raises PathNotFound for a path where nothing is, ArgumentError for a folder without such a file. While it is read:
    StorageError for a file that is gone, or has another length.
    """
    _check_texts("suffixes", suffixes)
    return Dataset(WholeFiles(path, suffixes, cache))


def _check_texts(name: str, given: Any) -> None:
    """A list of texts, or None for all there are."""
    if given is None:
        return
    if isinstance(given, str):
        raise ArgumentTypeError(f"{name}={given!r} is one name; give a list of names: {name}=[{given!r}]")
    if not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise ArgumentTypeError(f"{name}={given!r:.80} must be a list of names, or None for all")
    if not given:
        raise ArgumentError(
            f"{name}={given!r} leaves nothing to be read; name one at least, or leave {name}= out for all"
        )


def _check_fill(fill: Any) -> None:
    if fill is not None and not isinstance(fill, Mapping):
        raise ArgumentTypeError(
            f"fill={fill!r:.80} must be a dict of what stands for a null, by column: fill={{'age': 0}}"
        )
