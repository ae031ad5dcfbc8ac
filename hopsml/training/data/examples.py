"""Decoder of ``tf.train.Example`` records to Arrow columns, without TensorFlow or Protocol Buffers.

``tf.train.Example`` (tensorflow/core/example/example.proto) is a map of names to lists of bytes, floats or 64-bit
integers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

# A field's tag is its number times 8 plus its wire type: variable-length integer, 8 bytes, length-delimited, or 4
# bytes.
_VARIABLE, _EIGHT, _TOLD, _FOUR = 0, 1, 2, 5
# First and second field of the messages Features, its map entries, and Feature lists.
_FIRST, _SECOND = 1 << 3 | _TOLD, 2 << 3 | _TOLD
_BYTES, _FLOATS, _INTEGERS = 1 << 3 | _TOLD, 2 << 3 | _TOLD, 3 << 3 | _TOLD  # list of a feature, by type
_KINDS = {_BYTES: "bytes", _FLOATS: "floats", _INTEGERS: "integers"}
_ALONE = {_FLOATS: 1 << 3 | _FOUR, _INTEGERS: 1 << 3 | _VARIABLE}  # tag of a number that is not packed


@dataclass
class _FeatureColumn:
    """Values of one feature in all records: the encoded pieces of their lists, concatenated."""

    name: str
    kind: int
    pieces: list[bytes] = field(default_factory=list)
    # Per record: the number of pieces for bytes, the number of encoded bytes for numbers.
    sizes: list[int] = field(default_factory=list)

    def fill_up(self, records: int) -> None:
        """Extend the column to ``records`` records, with no values in the added ones."""
        self.sizes += [0] * (records - len(self.sizes))


@dataclass(frozen=True)
class _RecordLayout:
    """Byte offsets of the values in a record; they apply to another record if all other bytes are equal."""

    rest: list[tuple[int, int, bytes]]  # begin, end, content
    values: list[tuple[_FeatureColumn, list[tuple[int, int]], int]]  # byte ranges of the pieces; size, as in the column

    def is_of(self, content: bytes, at: int) -> bool:
        """Return True if the record at offset ``at`` has this layout."""
        return all(content[at + begin : at + end] == same for begin, end, same in self.rest)

    def append_record(self, content: bytes, at: int, number: int) -> None:
        """Append the values of the record at offset ``at`` to the columns; ``number`` is its index."""
        for column, pieces, size in self.values:
            if len(column.sizes) < number:
                column.fill_up(number)
            for begin, end in pieces:
                column.pieces.append(content[at + begin : at + end])
            column.sizes.append(size)


def decode_examples(
    content: bytes,
    begins: Sequence[int],
    lengths: Sequence[int],
    features: Collection[str] | None,
    place: str,
    first: int,
) -> pa.Table:
    """Return the records as a table with one column per feature.

    A feature with at most one value per record becomes a column of values, else of lists. A record that lacks a
    feature, or has an empty list for it, has a null. A feature that no record has becomes no column.

    Args:
        content: the bytes that contain the records.
        begins: byte offset of each record.
        lengths: bytes of each record.
        features: names of the features to read; None: all.
        place: the file, for messages.
        first: number of the first record in the file, for messages.

    Raises:
        ArgumentError: a record is not a ``tf.train.Example``, or a feature changes its type.
    """
    import pyarrow as pa

    wanted = None if features is None else {name.encode() for name in features}
    columns: dict[bytes, _FeatureColumn] = {}
    layouts: dict[int, _RecordLayout] = {}  # the latest layout of records of each length
    for number, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        layout = layouts.get(length)
        if layout is None or not layout.is_of(content, begin):
            try:
                layout = layouts[length] = _layout(content[begin : begin + length], columns, wanted)
            except TypeError as error:
                raise ArgumentError(
                    f"{error} record {first + number} (counted from 0) of {place}: all records of a batch must have "
                    "the same type; rewrite the data with one type, or drop the column"
                ) from None
            except (ValueError, IndexError) as error:
                raise ArgumentError(
                    f"record {first + number} (counted from 0) of {place} is not a tf.train.Example: {error}; "
                    "hopsml.data.tfrecords reads only these; read other records with tf.data.TFRecordDataset"
                ) from error
        layout.append_record(content, begin, number)
    for column in columns.values():
        column.fill_up(len(begins))
    arrays = {column.name: _array(column, place) for column in columns.values()}
    return pa.table(dict(sorted(arrays.items())))


def _layout(record: bytes, columns: dict[bytes, _FeatureColumn], wanted: Collection[bytes] | None) -> _RecordLayout:
    """Return the layout of a record, and add columns for its new features.

    Raises ValueError or IndexError for a record that is not an Example, TypeError for a feature that changes its type.
    """
    values: dict[bytes, tuple[_FeatureColumn, list[tuple[int, int]], int]] = {}
    for name, kind, at, end in _features(record, 0, len(record)):
        if at == end or (wanted is not None and name not in wanted):
            continue
        column = columns.setdefault(name, _FeatureColumn(name.decode(), kind))
        if column.kind != kind:
            raise TypeError(f"column '{column.name}' holds {_KINDS[column.kind]} in one record, and {_KINDS[kind]} in")
        values[name] = column, *_pieces(record, at, end, column)  # if a name occurs twice the last occurrence counts
    used = sorted(piece for _, pieces, _ in values.values() for piece in pieces)
    bounds = [0, *(bound for piece in used for bound in piece), len(record)]
    rest = [
        (begin, end, record[begin:end]) for begin, end in zip(bounds[::2], bounds[1::2], strict=True) if begin < end
    ]
    return _RecordLayout(rest, list(values.values()))


def _pieces(record: bytes, at: int, end: int, column: _FeatureColumn) -> tuple[list[tuple[int, int]], int]:
    """Return the byte ranges of a list's values, and their size.

    The size is the number of values for bytes, the number of encoded bytes for numbers.
    """
    pieces, size = [], 0
    for tag, begin, behind in _fields(record, at, end):
        if tag != _FIRST and tag != _ALONE.get(column.kind):
            raise ValueError(f"feature '{column.name}' has a field that no list of {_KINDS[column.kind]} has")
        pieces.append((begin, behind))
        size += 1 if column.kind == _BYTES else behind - begin
    return pieces, size


def _features(content: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield the name of each feature of a record, its type, and the byte range of its list.

    Features without a type are skipped.
    """
    for tag, begin, behind in _fields(content, at, end):
        if tag == _SECOND:
            raise ValueError("it is a SequenceExample")
        if tag != _FIRST:
            raise ValueError(f"it has a field {tag >> 3}")
        for _, entry, entry_end in _fields(content, begin, behind):
            name, feature = b"", (0, 0)
            for part, part_at, part_end in _fields(content, entry, entry_end):
                if part == _FIRST:
                    name = content[part_at:part_end]
                elif part == _SECOND:
                    feature = part_at, part_end
            for kind, list_at, list_end in _fields(content, *feature):
                if kind not in _KINDS:
                    raise ValueError(f"feature '{name.decode()}' holds neither bytes nor floats nor integers")
                yield name, kind, list_at, list_end


def _fields(content: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the tag of each field and the byte range of its content.

    Raises ValueError if the fields do not fill the message.
    """
    while at < end:
        tag = content[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(content, at - 1)
        how = tag & 7
        if how == _TOLD:
            size = content[at]
            at += 1
            if size >= 0x80:
                size, at = _varint(content, at - 1)
        elif how == _VARIABLE:
            size = _varint(content, at)[1] - at
        elif how in (_FOUR, _EIGHT):
            size = 4 if how == _FOUR else 8
        else:
            raise ValueError(f"its byte {at - 1} begins no field")
        if at + size > end:
            raise ValueError("a field of it goes on behind its end")
        yield tag, at, at + size
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length integer, and the offset of its end."""
    value = 0
    for place in range(10):
        byte = content[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a number of it has more than ten bytes")


def _array(column: _FeatureColumn, place: str) -> pa.Array:
    """Return a column of values if no record has several, else of lists; records without values have nulls."""
    import numpy as np
    import pyarrow as pa

    sizes = np.array(column.sizes, np.int64)
    if column.kind == _BYTES:
        values, counts = np.fromiter(map(len, column.pieces), np.int64, len(column.pieces)), sizes
    elif column.kind == _INTEGERS:
        values, counts = _integers(column, sizes, place)
    else:
        if (sizes % 4).any():
            raise ArgumentError(f"column '{column.name}' of {place} has damaged floats; write the file again")
        values, counts = np.frombuffer(b"".join(column.pieces), "<f4"), sizes // 4
    content = b"".join(column.pieces) if column.kind == _BYTES else None
    is_there = counts > 0
    if counts.max(initial=0) <= 1:
        in_place = np.zeros(len(counts), values.dtype)
        in_place[is_there] = values
        return _arrow(in_place, content, is_there)
    inner = _arrow(values, content, None)
    buffers = [_bits(is_there), pa.py_buffer(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(inner.type), len(counts), buffers, children=[inner])


def _arrow(values: NDArray[Any], content: bytes | None, is_there: NDArray[np.bool_] | None) -> pa.Array:
    """Return an Arrow array of numbers, or of pieces of ``content`` with these lengths.

    ``pa.array`` would import pandas.
    """
    import numpy as np
    import pyarrow as pa

    validity = None if is_there is None else _bits(is_there)
    if content is None:
        kind = pa.int64() if values.dtype == np.int64 else pa.float32()
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(values)])
    ends = np.concatenate([[0], np.cumsum(values)]).astype(np.int64)
    return pa.Array.from_buffers(pa.large_binary(), len(values), [validity, pa.py_buffer(ends), pa.py_buffer(content)])


def _bits(is_there: NDArray[np.bool_]) -> pa.Buffer | None:
    """Return the Arrow validity bitmap; None if all values are valid."""
    import numpy as np
    import pyarrow as pa

    return None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))


def _integers(column: _FeatureColumn, sizes: NDArray[np.int64], place: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Decode all variable-length integers of a column, and return them and their number in each record.

    An integer is encoded in 7 bits per byte, the lowest first; its last byte is below 0x80.
    """
    import numpy as np

    coded = np.frombuffer(b"".join(column.pieces), np.uint8)
    is_last = coded < 0x80
    ends = np.flatnonzero(is_last) + 1
    begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    bounds = np.cumsum(sizes)
    counted = np.concatenate([[0], np.cumsum(is_last)])[np.concatenate([[0], bounds])]
    is_whole = is_last[bounds[sizes > 0] - 1].all()
    if not is_whole or (ends - begins).max(initial=0) > 10:
        raise ArgumentError(f"column '{column.name}' of {place} has damaged integers; write the file again")
    values = (coded[begins] & 0x7F).astype(np.uint64)
    for place_of_byte in range(1, int((ends - begins).max(initial=0))):
        longer = ends - begins > place_of_byte
        byte = (coded[begins[longer] + place_of_byte] & 0x7F).astype(np.uint64)
        values[longer] |= byte << np.uint64(7 * place_of_byte)
    return values.view(np.int64), np.diff(counted)
