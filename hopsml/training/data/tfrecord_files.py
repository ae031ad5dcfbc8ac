"""Source of TFRecord files of ``tf.train.Example`` on any store; about 16 MB of successive records form a shard.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these, the record, and its masked CRC-32C
(tensorflow/core/lib/io/record_writer.h).
"""

from __future__ import annotations

import concurrent.futures
import gzip
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import google_crc32c

from hopsml.errors import ArgumentError, ArgumentTypeError, StorageError
from hopsml.training.data import columns as arrow_columns
from hopsml.training.data import examples, stored_files
from hopsml.training.data.stored_files import Paths, StoredFile

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


HEADER, FOOTER = 12, 4  # bytes before and after a record
BEGINNING = 1 << 16  # bytes that are read for a first record; a larger record takes a second request
_PIECE = 1 << 20  # bytes that are read together of small records
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_GZIP = b"\x1f\x8b\x08"
_MASK_DELTA = 0xA282EAD8

Read = Callable[[int, int], bytes]  # offset, length
_SHARD_BYTES = 16 << 20
_NAMES = re.compile(r".*\.tfrecords?\b.*|part-.*")  # file names that writers of TFRecords use
Features = Sequence[str] | Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class RecordSpan:
    """Byte range of successive records of a file that are read together."""

    begin: int  # byte offset of the first record's length field
    end: int
    first: int  # number of the first record in its file
    rows: int


def is_gzip(beginning: bytes) -> bool:
    """Return True if a file with this beginning is GZIP-compressed.

    The length checksum rules out a TFRecord of such a length.
    """
    return beginning.startswith(_GZIP) and not _is_length(beginning)


def decompress(content: bytes, url: str) -> bytes:
    """Return the whole content of a GZIP file. Raises StorageError with its URL."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"{url} is not a complete GZIP file: {error}; write it again", url) from error


def split_records(read: Read, length: int, most_bytes: int, url: str) -> list[RecordSpan]:
    """Split a file's records into spans of about ``most_bytes``; of large records only the lengths are read.

    Args:
        read: reads (offset, length) of the file.
        length: bytes of the file.
        most_bytes: size from which on a span ends.
        url: of the file, for messages.

    Raises:
        StorageError: a length is damaged, or the file is truncated; the message names the file, the record and its byte
            offset.
    """
    found, begin, first, at, number = list[RecordSpan](), 0, 0, 0, 0
    for number, at in enumerate(_ends(read, length, url), 1):
        if at - begin >= most_bytes:
            found.append(RecordSpan(begin, at, first, number - first))
            begin, first = at, number
    if at > begin:
        found.append(RecordSpan(begin, at, first, number - first))
    return found


def _ends(read: Read, length: int, url: str) -> Iterator[int]:
    """Yield the byte offset of the end of each record."""
    at, number, piece, piece_at = 0, 0, b"", 0
    while at < length:
        if length - at < HEADER:
            raise _cut_off(url, number, at, length)
        if at + HEADER > piece_at + len(piece):
            is_small = at <= number * (_PIECE // 4) or not number
            piece_at, piece = at, read(at, min(_PIECE if is_small else HEADER, length - at))
        header = piece[at - piece_at : at - piece_at + HEADER]
        if not _is_length(header):
            raise _damaged(url, number, at, "its length does not match its checksum")
        size = HEADER + _LENGTH.unpack_from(header)[0] + FOOTER
        if size > length - at:
            raise _cut_off(url, number, at, length)
        at += size
        number += 1
        yield at


def record_offsets(content: bytes, span: RecordSpan, url: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offset of each record within a span's content, and its length.

    Raises:
        StorageError: a record is damaged, or the span does not have the records that it had.
    """
    import numpy as np

    begins, lengths, at = list[int](), list[int](), 0
    while at + HEADER <= len(content):
        (size,) = _LENGTH.unpack_from(content, at)
        begins.append(at + HEADER)
        lengths.append(size)
        at += HEADER + size + FOOTER
    if at != len(content) or len(begins) != span.rows:
        raise StorageError(
            f"{url} was changed while it was read: the records between bytes {span.begin} and {span.end} differ from "
            "those before; write new data under a new name",
            url,
        )
    where, sizes = np.array(begins, np.int64), np.array(lengths, np.int64)
    if (bad := _first_damaged(content, where, sizes)) is not None:
        offset = span.begin + begins[bad] - HEADER
        raise _damaged(url, span.first + bad, offset, "its content does not match its checksum")
    return where, sizes


def first_record(read: Read, span: RecordSpan, url: str) -> bytes:
    """Return the first record of a span. Raises StorageError, as ``record_offsets`` does."""
    content = read(span.begin, min(BEGINNING, span.end - span.begin))
    size = first_record_end(content)
    content = content[:size] if size <= len(content) else read(span.begin, size)
    record_offsets(content, RecordSpan(span.begin, span.begin + size, span.first, 1), url)
    return content[HEADER:-FOOTER]


def first_record_end(content: bytes) -> int:
    """Return the byte offset of the end of the first record, which may lie beyond ``content``."""
    return HEADER + int(_LENGTH.unpack_from(content)[0]) + FOOTER


def _first_damaged(content: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> int | None:
    """Return the index of the first record with a wrong checksum; None if all are right."""
    for number, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        end = begin + length
        header = content[begin - HEADER : begin]
        if not _is_length(header) or _masked_crc32c(content[begin:end]) != _CRC.unpack_from(content, end)[0]:
            return number
    return None


def _masked_crc32c(content: bytes) -> int:
    """Return TFRecord's CRC-32C, which is masked because it is stored within data that is itself checksummed."""
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _is_length(header: bytes) -> bool:
    """Return True if a record's header has the right checksum of its length."""
    is_whole = len(header) >= HEADER
    return is_whole and _masked_crc32c(header[: _LENGTH.size]) == _CRC.unpack_from(header, _LENGTH.size)[0]


def _damaged(url: str, number: int, offset: int, why: str) -> StorageError:
    """Return the error for a damaged record."""
    return StorageError(
        f"{url}: record {number} (counted from 0), at byte {offset}, is damaged, or the file does not contain "
        f"TFRecords: {why}; write the file again",
        url,
    )


def _cut_off(url: str, number: int, offset: int, length: int) -> StorageError:
    """Return the error for a truncated file."""
    return StorageError(
        f"{url} ends after {length} bytes, within record {number} (counted from 0), which begins at byte {offset}: "
        "it was cut off, or is still being written; write it again",
        url,
    )


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
                f"fill= has the column {', '.join(unknown)}, which features= omits; its columns are "
                f"{', '.join(self._features or ())}"
            )
        what = "TFRecord file (*.tfrecord*, part-*)"
        found = stored_files.find_files(given, lambda name: _NAMES.fullmatch(name) is not None, what, is_cached)
        with concurrent.futures.ThreadPoolExecutor(stored_files.AT_ONCE, "hopsml-tfrecord") as readers:
            read = list(readers.map(_groups_of, found))
        self._groups = [group for groups, _ in read for group in groups]
        firsts = {groups[0].file.url: record for groups, record in read if groups}
        tables = {
            url: examples.decode_examples(record, [0], [len(record)], self._features, url, 0)
            for url, record in firsts.items()
        }
        self._types = self._common_types(tables)
        self._forms = self._common_forms(tables)

    def __repr__(self) -> str:
        return stored_files.describe_files(group.file for group in self._groups)

    def _flat(self, name: str, value: Any) -> Any:
        """Flatten a fill value of a feature with a given shape to the list that records contain."""
        import numpy as np

        return np.ravel(value).tolist() if len(self._shapes.get(name, ())) > 1 else value

    def _common_types(self, tables: Mapping[str, pa.Table]) -> arrow_columns.Types:
        """Return the features' types in the first records of all files.

        ``tables`` are these records by URL. A feature that no record has gets the type of its fill value. Raises
        ArgumentError with the files' names if files differ.
        """
        import pyarrow as pa

        values = {
            url: {name: getattr(kind, "value_type", kind) for name, kind in arrow_columns.flatten_fields(table.schema)}
            | {name: pa.null() for name in self._fill if name not in table.column_names}
            for url, table in tables.items()
        }
        of_fill = {name: _of_examples(kind) for name, kind in arrow_columns.common_types(values, self._fill).items()}
        there = [{name: kind for name, kind in arrow_columns.flatten_fields(table.schema)} for table in tables.values()]
        return {name: next((one[name] for one in there if name in one), of_fill[name]) for name in sorted(of_fill)}

    def _common_forms(self, tables: Mapping[str, pa.Table]) -> arrow_columns.Forms:
        """Return type and shape of the features in the files' first records.

        Raises ArgumentError with the names of two files that differ.
        """
        found: dict[str, arrow_columns.RowForm] = {}
        for url, table in tables.items():
            place = f"{url}, records 0 to 0,"
            arrays = self._arrays(table, 1, place)
            found = found or arrow_columns.row_forms(arrays, f"the first record of {url}")
            arrow_columns.check_row_forms(arrays, found, place)
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
        begins, lengths = record_offsets(content, span, url)
        table = examples.decode_examples(content, begins.tolist(), lengths.tolist(), self._features, url, span.first)
        place = f"{url}, records {span.first} to {span.first + span.rows - 1},"
        found = self._arrays(table, span.rows, place)
        arrow_columns.check_row_forms(found, self._forms, place)
        return found

    def _arrays(self, table: pa.Table, rows: int, place: str) -> dict[str, NDArray[Any]]:
        """Return the features as arrays, by name, including filled ones that none of these records has."""
        import pyarrow as pa

        for name in self._features or ():
            if name not in table.column_names and name not in self._fill:
                there = ", ".join(table.column_names)
                raise ArgumentError(
                    f"column '{name}' of {place} is in none of the records{f', which have {there}' * bool(there)}; "
                    f"remove it from features=, or give a value for it, fill={{{name!r}: ...}}"
                )
        absent = pa.table({name: pa.nulls(rows) for name in self._fill if name not in table.column_names})
        found = arrow_columns.table_to_arrays(table, self._fill, place)
        found |= arrow_columns.table_to_arrays(absent, self._fill, place, types=self._types)
        for name, shape in self._shapes.items():
            found[name] = _shaped(found[name], shape, name, place)
        return dict(sorted(found.items()))


def _reader(group: RecordGroup) -> Read:
    """Return a function that reads (offset, length) of the records, decompressed if necessary."""
    if not group.is_compressed:
        return group.file.read
    return _slices(decompress(group.file.read(0, group.file.length), group.file.url))


def _slices(content: bytes) -> Read:
    """Return a function that reads (offset, length) of a buffer."""
    return lambda offset, length: content[offset : offset + length]


def _groups_of(file: StoredFile) -> tuple[list[RecordGroup], bytes]:
    """Return the groups of records of a file that are read together, and its first record; b"" if it has none."""
    if not file.length:
        return [], b""
    beginning = file.read(0, min(BEGINNING, file.length))
    is_compressed = is_gzip(beginning[:HEADER])
    if is_compressed:
        content = decompress(file.read(0, file.length), file.url)
        spans = split_records(_slices(content), len(content), len(content) + 1, file.url)
        near = _slices(content)
    else:
        spans = split_records(file.read, file.length, _SHARD_BYTES, file.url)
        is_near = spans and first_record_end(beginning) <= len(beginning)
        near = _slices(beginning) if is_near else file.read
    groups = [RecordGroup(file, span, is_compressed) for span in spans]
    return groups, first_record(near, spans[0], file.url) if spans else b""


def _of_examples(kind: pa.DataType) -> pa.DataType:
    """Return the type with which an Example stores values of this type."""
    import pyarrow as pa

    if arrow_columns.is_list(kind):
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
            f"column '{name}' of {place} has {math.prod(array.shape[1:])} value(s) in each record, but the shape "
            f"{shape} in features=; correct the shape"
        )
    return array.reshape(len(array), *shape)
