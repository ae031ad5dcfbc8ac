"""TFRecord files of ``tf.train.Example`` on any store as shards: successive records of a file, about 16 MB."""

from __future__ import annotations

import concurrent.futures
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.data import columns as arrow_columns
from hopsml.training.data import examples, record_framing, stored_files
from hopsml.training.data.record_framing import RecordSpan
from hopsml.training.data.stored_files import Paths, StoredFile

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_SHARD_BYTES = 16 << 20
_NAMES = re.compile(r".*\.tfrecords?\b.*|part-.*")  # of what writers of TFRecords leave in a folder

Features = Sequence[str] | Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class RecordGroup:
    """What is read as a whole; of a compressed file all of it, and ``span`` counts what is in it."""

    file: StoredFile
    span: RecordSpan
    is_compressed: bool


class TFRecordFiles:
    """A source of shards; it counts the files' records when it is made, and reads them when it is asked."""

    def __init__(
        self, given: Paths, features: Features | None, fill: Mapping[str, Any] | None, is_cached: bool
    ) -> None:
        """As ``hopsml.data.tfrecords``, which says what is raised."""
        self._features = None if features is None else tuple(features)
        self._shapes = _checked_shapes(features) if isinstance(features, Mapping) else {}
        self._fill = dict(fill or {})
        if unknown := sorted(set(self._fill) - set(self._features or self._fill)):
            raise ArgumentError(
                f"fill= names {', '.join(unknown)}, which features= leaves out; there are {', '.join(self._features or ())}"
            )
        what = "TFRecord file (*.tfrecord*, part-*)"
        found = stored_files.found(given, lambda name: _NAMES.fullmatch(name) is not None, what, is_cached)
        with concurrent.futures.ThreadPoolExecutor(stored_files.AT_ONCE, "hopsml-tfrecord") as readers:
            self._groups = [group for groups in readers.map(_groups_of, found) for group in groups]
        self._first: arrow_columns.Shapes | None = None

    @property
    def shards(self) -> tuple[int, ...]:
        """The rows of each."""
        return tuple(group.span.rows for group in self._groups)

    @property
    def row_bytes(self) -> float:
        """About how much memory a row takes: as much as its record."""
        return sum(group.span.end - group.span.begin for group in self._groups) / max(1, sum(self.shards))

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """One shard's columns, not to be written to.

        Raises ArgumentError naming a column that has no array, StorageError naming a file that cannot be read.
        """
        group = self._groups[shard]
        span, url = group.span, group.file.url
        content = _reader(group)(span.begin, span.end - span.begin)
        begins, lengths = record_framing.records(content, span, url)
        table = examples.table(content, begins.tolist(), lengths.tolist(), self._features, url, span.first)
        place = f"{url}, records {span.first} to {span.first + span.rows - 1},"
        found = arrow_columns.arrays(self._with_absent(table, span.rows, place), self._fill, place)
        arrow_columns.check_shapes(found, self._of_first(), place, f"the first record of {self._groups[0].file.url}")
        for name, shape in self._shapes.items():
            found[name] = _shaped(found[name], shape, name, place)
        return found

    def _of_first(self) -> arrow_columns.Shapes:
        """What the values of the very first record are like, but for the columns whose shape was named."""
        if self._first is None:
            group = self._groups[0]
            record = record_framing.first(_reader(group), group.span, group.file.url)
            table = examples.table(record, [0], [len(record)], self._features, group.file.url, group.span.first)
            found = arrow_columns.shapes(arrow_columns.arrays(table, {}, group.file.url))
            self._first = {name: shape for name, shape in found.items() if name not in self._shapes}
        return self._first

    def _with_absent(self, table: pa.Table, rows: int, place: str) -> pa.Table:
        """With the features that were asked for, and no record of these has."""
        import pyarrow as pa

        for name in self._features or self._fill:
            if name in table.column_names:
                continue
            if name not in self._fill:
                there = ", ".join(table.column_names)
                raise ArgumentError(
                    f"column '{name}' of {place} is in none of the records{f', which have {there}' * bool(there)}; leave it "
                    f"out of features=, or say what stands for it, fill={{{name!r}: ...}}"
                )
            values = _as_of_examples(pa.array([self._fill[name]] * rows))
            table = table.append_column(name, values) if table.column_names else pa.table({name: values})
        return table


def _reader(group: RecordGroup) -> record_framing.Read:
    """Of the records as they are, whether the file is compressed or not."""
    if not group.is_compressed:
        return group.file.read
    content = record_framing.decompressed(group.file.read(0, group.file.length), group.file.url)
    return lambda offset, length: content[offset : offset + length]


def _groups_of(file: StoredFile) -> list[RecordGroup]:
    if not file.length:
        return []
    beginning = file.read(0, min(record_framing.HEADER, file.length))
    if record_framing.is_gzip(beginning):
        content = record_framing.decompressed(file.read(0, file.length), file.url)
        whole = record_framing.spans(
            lambda offset, length: content[offset : offset + length], len(content), len(content) + 1, file.url
        )
        return [RecordGroup(file, span, True) for span in whole]
    return [
        RecordGroup(file, span, False) for span in record_framing.spans(file.read, file.length, _SHARD_BYTES, file.url)
    ]


def _as_of_examples(values: pa.Array) -> pa.Array:
    """In the types that Examples have."""
    import pyarrow as pa

    kinds = {pa.float64(): pa.float32(), pa.list_(pa.float64()): pa.list_(pa.float32()), pa.string(): pa.large_binary()}
    return values.cast(kinds.get(values.type, values.type))


def _checked_shapes(features: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, shape in features.items():
        if isinstance(shape, (str, int)) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ArgumentTypeError(
                f"features={{{name!r}: {shape!r}}}: the shape of a feature is a tuple of whole numbers, () for one value"
            )
        found[name] = tuple(shape)
    return found


def _shaped(array: NDArray[Any], shape: tuple[int, ...], name: str, place: str) -> NDArray[Any]:
    if math.prod(array.shape[1:]) != math.prod(shape):
        raise ArgumentError(
            f"column '{name}' of {place} has {math.prod(array.shape[1:])} value(s) in each record, and features= gives it "
            f"the shape {shape}; name the shape that it has"
        )
    return array.reshape(len(array), *shape)
