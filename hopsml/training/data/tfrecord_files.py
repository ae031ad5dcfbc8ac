"""Source of TFRecord files of ``tf.train.Example`` on any store; about 16 MB of successive records form a shard."""

from __future__ import annotations

import concurrent.futures
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.data import column_types, examples, record_framing, stored_files
from hopsml.training.data import columns as arrow_columns
from hopsml.training.data.record_framing import RecordSpan
from hopsml.training.data.stored_files import Paths, StoredFile

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_SHARD_BYTES = 16 << 20
_NAMES = re.compile(r".*\.tfrecords?\b.*|part-.*")  # file names that writers of TFRecords use

Features = Sequence[str] | Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class RecordGroup:
    """Records that are read together.

    In a compressed file these are all records, and ``span`` counts bytes of the decompressed content.
    """

    file: StoredFile
    span: RecordSpan
    is_compressed: bool


class TFRecordFiles:
    """Source of shards of TFRecord files.

    It counts the files' records when it is created, and reads rows on request.
    """

    def __init__(
        self, given: Paths, features: Features | None, fill: Mapping[str, Any] | None, is_cached: bool
    ) -> None:
        """Find the files and count their records; arguments and errors are those of ``hopsml.data.tfrecords``."""
        self._features = None if features is None else tuple(features)
        self._shapes = _checked_shapes(features) if isinstance(features, Mapping) else {}
        self._fill = {name: self._flat(name, value) for name, value in (fill or {}).items()}
        if unknown := sorted(set(self._fill) - set(self._features or self._fill)):
            raise ArgumentError(
                f"fill= names {', '.join(unknown)}, which features= leaves out; there are {', '.join(self._features or ())}"
            )
        what = "TFRecord file (*.tfrecord*, part-*)"
        found = stored_files.found(given, lambda name: _NAMES.fullmatch(name) is not None, what, is_cached)
        with concurrent.futures.ThreadPoolExecutor(stored_files.AT_ONCE, "hopsml-tfrecord") as readers:
            read = list(readers.map(_groups_of, found))
        self._groups = [group for groups, _ in read for group in groups]
        firsts = {groups[0].file.url: record for groups, record in read if groups}
        tables = {
            url: examples.table(record, [0], [len(record)], self._features, url, 0) for url, record in firsts.items()
        }
        self._types = self._common_types(tables)
        self._forms = self._common_forms(tables)

    def _flat(self, name: str, value: Any) -> Any:
        """Flatten a fill value of a feature with a given shape to the list that records contain."""
        import numpy as np

        return np.ravel(value).tolist() if len(self._shapes.get(name, ())) > 1 else value

    def _common_types(self, tables: Mapping[str, pa.Table]) -> column_types.Types:
        """Return the features' types in the first records of all files.

        ``tables`` are these records by URL. A feature that no record has gets the type of its fill value. Raises
        ArgumentError with the files' names if files differ.
        """
        import pyarrow as pa

        values = {
            url: {name: getattr(kind, "value_type", kind) for name, kind in column_types.flat(table.schema)}
            | {name: pa.null() for name in self._fill if name not in table.column_names}
            for url, table in tables.items()
        }
        of_fill = {name: _of_examples(kind) for name, kind in column_types.common(values, self._fill).items()}
        there = [{name: kind for name, kind in column_types.flat(table.schema)} for table in tables.values()]
        return {name: next((one[name] for one in there if name in one), of_fill[name]) for name in sorted(of_fill)}

    def _common_forms(self, tables: Mapping[str, pa.Table]) -> arrow_columns.Forms:
        """Return type and shape of the features in the files' first records.

        Raises ArgumentError with the names of two files that differ.
        """
        found: dict[str, arrow_columns.RowForm] = {}
        for url, table in tables.items():
            place = f"{url}, records 0 to 0,"
            arrays = self._arrays(table, 1, place)
            found = found or arrow_columns.forms(arrays, f"the first record of {url}")
            arrow_columns.check_forms(arrays, found, place)
        return found

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of rows of each shard."""
        return tuple(group.span.rows for group in self._groups)

    @property
    def row_bytes(self) -> float:
        """Approximate memory that a row takes: the average size of a record, in bytes."""
        return sum(group.span.end - group.span.begin for group in self._groups) / max(1, sum(self.shard_sizes))

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return one shard's columns, which are read-only.

        Raises:
            ArgumentError: a column has no array, or differs from the first records; the message names the column.
            StorageError: a file, which the message names, cannot be read.
        """
        group = self._groups[shard]
        span, url = group.span, group.file.url
        content = _reader(group)(span.begin, span.end - span.begin)
        begins, lengths = record_framing.records(content, span, url)
        table = examples.table(content, begins.tolist(), lengths.tolist(), self._features, url, span.first)
        place = f"{url}, records {span.first} to {span.first + span.rows - 1},"
        found = self._arrays(table, span.rows, place)
        arrow_columns.check_forms(found, self._forms, place)
        return found

    def _arrays(self, table: pa.Table, rows: int, place: str) -> dict[str, NDArray[Any]]:
        """Return the features as arrays, by name, including filled ones that none of these records has."""
        import pyarrow as pa

        for name in self._features or ():
            if name not in table.column_names and name not in self._fill:
                there = ", ".join(table.column_names)
                raise ArgumentError(
                    f"column '{name}' of {place} is in none of the records{f', which have {there}' * bool(there)}; leave it "
                    f"out of features=, or say what stands for it, fill={{{name!r}: ...}}"
                )
        absent = pa.table({name: pa.nulls(rows) for name in self._fill if name not in table.column_names})
        found = arrow_columns.arrays(table, self._fill, place)
        found |= arrow_columns.arrays(absent, self._fill, place, types=self._types)
        for name, shape in self._shapes.items():
            found[name] = _shaped(found[name], shape, name, place)
        return dict(sorted(found.items()))


def _reader(group: RecordGroup) -> record_framing.Read:
    """Return a function that reads (offset, length) of the records, decompressed if necessary."""
    if not group.is_compressed:
        return group.file.read
    return _slices(record_framing.decompressed(group.file.read(0, group.file.length), group.file.url))


def _slices(content: bytes) -> record_framing.Read:
    """Return a function that reads (offset, length) of a buffer."""
    return lambda offset, length: content[offset : offset + length]


def _groups_of(file: StoredFile) -> tuple[list[RecordGroup], bytes]:
    """Return the groups of records of a file that are read together, and its first record; b"" if it has none."""
    if not file.length:
        return [], b""
    beginning = file.read(0, min(record_framing.BEGINNING, file.length))
    is_compressed = record_framing.is_gzip(beginning[: record_framing.HEADER])
    if is_compressed:
        content = record_framing.decompressed(file.read(0, file.length), file.url)
        spans = record_framing.spans(_slices(content), len(content), len(content) + 1, file.url)
        near = _slices(content)
    else:
        spans = record_framing.spans(file.read, file.length, _SHARD_BYTES, file.url)
        is_near = spans and record_framing.end_of_first(beginning) <= len(beginning)
        near = _slices(beginning) if is_near else file.read
    groups = [RecordGroup(file, span, is_compressed) for span in spans]
    return groups, record_framing.first(near, spans[0], file.url) if spans else b""


def _of_examples(kind: pa.DataType) -> pa.DataType:
    """Return the type with which an Example stores values of this type."""
    import pyarrow as pa

    if column_types.is_list(kind):
        return pa.list_(_of_examples(kind.value_type))
    if pa.types.is_floating(kind):
        return pa.float32()
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.large_binary() if pa.types.is_string(kind) or pa.types.is_binary(kind) else kind


def _checked_shapes(features: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of features. Raises ArgumentTypeError for an invalid one."""
    found = {}
    for name, shape in features.items():
        if isinstance(shape, (str, int)) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ArgumentTypeError(
                f"features={{{name!r}: {shape!r}}}: the shape of a feature is a tuple of whole numbers, () for one value"
            )
        found[name] = tuple(shape)
    return found


def _shaped(array: NDArray[Any], shape: tuple[int, ...], name: str, place: str) -> NDArray[Any]:
    """Reshape a column's rows. Raises ArgumentError if the number of values differs."""
    if math.prod(array.shape[1:]) != math.prod(shape):
        raise ArgumentError(
            f"column '{name}' of {place} has {math.prod(array.shape[1:])} value(s) in each record, and features= gives it "
            f"the shape {shape}; name the shape that it has"
        )
    return array.reshape(len(array), *shape)
