"""Conversion of Arrow columns to NumPy arrays whose first axis counts rows, and common types of several files' columns.

A column has one type, the same in all files, or an error names two files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


_VECTOR = ["type", "size", "indices", "values"]  # the fields of Spark ML's vectors
_WITH_ARRAY = (
    *("boolean", "integer", "floating", "decimal", "date32", "timestamp", "duration", "null"),
    *("string", "large_string", "binary", "large_binary", "fixed_size_binary"),
)
_REMEDY = "all rows of a batch must have the same type; rewrite the data with one schema"

Types = Mapping[str, "pa.DataType"]  # by column
_SPARSE, _DENSE = 0, 1


def is_vector(kind: pa.DataType) -> bool:
    """Return True for the struct that Spark ML writes a vector as."""
    import pyarrow as pa

    return pa.types.is_struct(kind) and [field.name for field in kind] == _VECTOR


def is_list(kind: pa.DataType) -> bool:
    """Return True for lists of any length, and of a fixed one."""
    import pyarrow as pa

    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def is_list_of_values(kind: pa.DataType) -> bool:
    """Return True for lists whose values are not lists: their shape is the number of values."""
    return is_list(kind) and not is_list(kind.value_type)


def flatten_fields(schema: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield the name and type of each column made of these fields; a struct becomes columns ``struct.field``."""
    import pyarrow as pa

    for field in schema:
        name = f"{above}{field.name}"
        if pa.types.is_struct(field.type) and not is_vector(field.type):
            yield from flatten_fields(field.type, f"{name}.")
        else:
            yield name, field.type


def common_types(files: Mapping[str, Types], fill: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Return the type of each column, in the column order of all batches.

    A column that is of type null in a file, or absent there, gets the type of the other files if ``fill`` has a value
    for it, and the type of that value if no file has a type.

    Args:
        files: the types of each file's columns, by the file's URL.
        fill: the value that replaces nulls, by column.

    Raises:
        ArgumentError: the files' types of a column are converted to different arrays, or a type to none; or a column is
            absent or has nothing but nulls in a file, and ``fill`` has no value for it.
    """
    import pyarrow as pa

    known = dict[str, tuple[pa.DataType, str]]()
    for url, types in files.items():
        for name, kind in types.items():
            if pa.types.is_null(kind):
                continue
            if not _has_array(kind):
                raise ArgumentError(
                    f"column '{name}' of {url} is of type {kind}, which cannot be converted to an array; drop the "
                    "column, or convert it to numbers, text or lists first"
                )
            first, there = known.setdefault(name, (kind, url))
            if _array_kind(first) != _array_kind(kind):
                raise ArgumentError(f"column '{name}' is {first} in {there} and {kind} in {url}: {_REMEDY}")
    names = dict.fromkeys(
        name for types in files.values() for name in types if name in known or not _within(name, known)
    )
    for name in names:
        for url, types in files.items():
            if name not in fill and (name not in types or pa.types.is_null(types[name])):
                raise _untold(name, url, known.get(name), files)
    return {name: known[name][0] if name in known else pa.scalar(fill[name]).type for name in names}


def _within(name: str, known: Mapping[str, Any]) -> bool:
    """Return True for a struct that is null in this file and has fields in other files."""
    return any(one.startswith(f"{name}.") for one in known)


def _untold(name: str, url: str, known: tuple[pa.DataType, str] | None, files: Mapping[str, Types]) -> ArgumentError:
    """Return the error for a column that is absent in a file, or of type null there."""
    remedy = (
        f"give a value for nulls, fill={{{name!r}: ...}}, rewrite the data with one schema, or leave the column out"
    )
    if name in files[url]:
        other = f", and is {known[0]} in {known[1]}" if known else ""
        return ArgumentError(f"column '{name}' has only nulls in {url}{other}; {remedy}")
    there = known[1] if known else next(one for one, types in files.items() if name in types)
    return ArgumentError(
        f"column '{name}' is in {there}, but not in {url}, and all rows of a batch must have it; {remedy}"
    )


def _has_array(kind: pa.DataType) -> bool:
    """Return True for a type that ``columns.table_to_arrays`` can convert to an array."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _has_array(kind.value_type)
    if is_list(kind):
        return not pa.types.is_struct(kind.value_type) and _has_array(kind.value_type)
    return is_vector(kind) or any(getattr(pa.types, f"is_{check}")(kind) for check in _WITH_ARRAY)


def _array_kind(kind: pa.DataType) -> str:
    """Return the name of the array kind that values are converted to; types with the same name may be mixed."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _array_kind(kind.value_type)
    if is_list(kind):
        return f"list<{_array_kind(kind.value_type)}>"  # lengths are compared elsewhere
    if pa.types.is_decimal(kind):
        return "double"
    if pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_timestamp(kind):  # all time zones count from the same epoch
        return f"timestamp[{kind.unit}]{', tz' * (kind.tz is not None)}"
    return str(kind)


def table_to_arrays(
    table: pa.Table,
    fill: Mapping[str, Any],
    place: str,
    nulls: str = "",
    types: Types = MappingProxyType({}),
) -> dict[str, NDArray[Any]]:
    """Return each column of a table as an array, by name; a struct's fields become columns ``struct.field``.

    Numbers, booleans, dates and times become arrays of NumPy's types, decimals float64, text and bytes arrays of
    objects; lists of one length (nested ones too) and Spark ML's vectors become arrays with more axes.

    Args:
        table: the rows.
        fill: value that replaces nulls, by column.
        place: origin of the table, for messages.
        nulls: remedy for nulls, for messages.
        types: types of the columns that the table has only as nulls, without a type.

    Raises:
        ArgumentError: a column has nulls without a fill value, lists of different lengths, or a type that has no array;
            the message names the column.
    """
    found: dict[str, NDArray[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        found |= _Column(name, fill, place, nulls, types).arrays(_in_one(column))
    return found


class RowForm(NamedTuple):
    """Data type and shape of a column in the reference rows, with which all workers compare theirs."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one row
    place: str  # origin of these rows, for messages


Forms = Mapping[str, RowForm]  # by column


def row_forms(found: Mapping[str, NDArray[Any]], place: str) -> dict[str, RowForm]:
    """Return the data type and shape of each column's rows."""
    return {name: RowForm(array.dtype, array.shape[1:], place) for name, array in found.items()}


def check_row_forms(found: Mapping[str, NDArray[Any]], first: Forms, place: str) -> None:
    """Raise ArgumentError for a column whose rows differ in type or shape from the reference rows of all workers.

    Without this check, lists of one length on one worker and of another length on the next would not be noticed until
    they are reduced.

    Args:
        found: the arrays to check, by column.
        first: the reference rows, by column.
        place: origin of the rows, for messages.
    """
    for name, here in row_forms(found, place).items():
        if (there := first.get(name)) is None:
            other = next((form.place for form in first.values()), "the others")
            raise _unlike(f"column '{name}' of {place} is absent in {other}")
        if here.dtype != there.dtype:
            raise _unlike(f"column '{name}' of {place} is {here.dtype}, and in {there.place} it is {there.dtype}")
        if here.shape != there.shape:
            raise ArgumentError(
                f"column '{name}' of {place} holds {_described(here.shape)}, and in {there.place} there are "
                f"{_described(there.shape)}: all rows of a batch must have the same shape; pad or cut them first, or "
                "drop the column"
            )
    if missing := sorted(set(first) - set(found)):
        raise _unlike(f"column '{missing[0]}' is absent in {place} and is in {first[missing[0]].place}")


def _unlike(what: str) -> ArgumentError:
    """Return the error for columns that differ between parts of the data."""
    return ArgumentError(
        f"{what}: all rows of a batch must have the same type; rewrite the data with one schema, or "
        "leave the column out"
    )


def _described(shape: tuple[int, ...]) -> str:
    """Describe the shape of a row, for messages."""
    if len(shape) > 1:
        return f"arrays of shape {shape}"
    return f"lists of {shape[0]} value(s)" if shape else "single values"


class _Column:
    """Converter of one column of a table."""

    def __init__(self, name: str, fill: Mapping[str, Any], place: str, nulls: str, types: Types) -> None:
        self._name, self._fill, self._place, self._nulls, self._types = name, fill, place, nulls, types

    def arrays(self, content: pa.Array) -> dict[str, NDArray[Any]]:
        """Return the column as an array by its name, or a struct's fields as several."""
        import pyarrow as pa

        if pa.types.is_null(content.type) and self._name in self._types:
            content = pa.nulls(len(content), self._types[self._name])
        if is_vector(content.type):
            return {self._name: self._vectors(content)}
        if not pa.types.is_struct(content.type):
            return {self._name: self._array(content)}
        found: dict[str, NDArray[Any]] = {}
        for field, values in zip(content.type, content.flatten(), strict=True):
            name = f"{self._name}.{field.name}"
            found |= _Column(name, self._fill, self._place, self._nulls, self._types).arrays(values)
        return found

    def _array(self, content: pa.Array) -> NDArray[Any]:
        """Convert an Arrow array that is no struct."""
        import numpy as np
        import pyarrow as pa

        kind = content.type
        if pa.types.is_dictionary(kind):
            return self._array(content.dictionary_decode())
        if pa.types.is_decimal(kind):
            return self._array(content.cast(pa.float64()))
        if content.null_count:
            content = self._without_nulls(content)
        if is_list(kind):
            return self._lists(content)
        if pa.types.is_boolean(kind):
            return _bits(content)
        if pa.types.is_temporal(kind):
            return self._times(content)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return _numbers(content, np.dtype(kind.to_pandas_dtype()))
        if _is_text(kind):
            objects = np.empty(len(content), object)
            objects[:] = content.to_pylist()
            return objects
        raise self._refused(
            f"is of type {kind}, which cannot be converted to an array", "drop the column, or convert it before"
        )

    def _without_nulls(self, content: pa.Array) -> pa.Array:
        """Replace nulls by the fill value. Raises ArgumentError without a suitable one."""
        if self._name not in self._fill:
            raise self._refused(
                f"has {content.null_count} null(s) in {len(content)} rows",
                self._nulls or f"say what stands for them, fill={{{self._name!r}: ...}}, or leave such rows out before",
            )
        import numpy as np
        import pyarrow as pa

        value = self._fill[self._name]
        try:
            stands = pa.scalar(value, content.type)
            if _has_integers(content.type) and not np.array_equal(
                stands.as_py(), value
            ):  # pyarrow truncates 0.5 to 0 without an error
                raise pa.ArrowInvalid(f"it would be {stands.as_py()!r}")
            return content.fill_null(stands)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise self._refused(
                f"is of type {content.type}, which {value!r} is not ({error})", "fill it before"
            ) from None

    def _lists(self, content: pa.Array) -> NDArray[Any]:
        """Convert lists, which must have one length, to an array with one more axis."""
        import pyarrow as pa
        import pyarrow.compute

        if pa.types.is_fixed_size_list(content.type):
            least = most = content.type.list_size
        else:
            lengths = pa.compute.min_max(content.value_lengths()).as_py()
            least, most = lengths["min"] or 0, lengths["max"] or 0
        if least != most:
            raise self._refused(
                f"has lists of {least} to {most} values, but all lists of a batch must have the same length",
                "pad or cut them before, or drop the column",
            )
        values = self._array(content.flatten())
        return values.reshape(len(content), most, *values.shape[1:])

    def _vectors(self, content: pa.Array) -> NDArray[Any]:
        """Convert Spark ML's vectors, dense or sparse, to a two-dimensional array."""
        import numpy as np

        if content.null_count:
            content = self._without_nulls(content)
        kinds, sizes, indices, values = content.flatten()
        found: NDArray[Any] = np.empty(0)
        rows = list(zip(kinds.to_pylist(), sizes.to_pylist(), indices.to_pylist(), values.to_pylist(), strict=True))
        lengths = {size if kind == _SPARSE else len(dense) for kind, size, _, dense in rows}
        if len(lengths) > 1:
            raise self._refused(
                f"has vectors of {min(lengths)} to {max(lengths)} values", "give them the same length before"
            )
        found = np.zeros((len(rows), *lengths) if lengths else (0, 0))
        for row, (kind, _, places, given) in zip(found, rows, strict=True):
            row[slice(None) if kind == _DENSE else places] = given
        return found

    def _times(self, content: pa.Array) -> NDArray[Any]:
        """Convert dates, times and durations to NumPy's types."""
        import numpy as np
        import pyarrow as pa

        kind = content.type
        if pa.types.is_date32(kind):
            return _numbers(content.cast(pa.int32()), np.dtype("int32")).astype("datetime64[D]")
        if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            name = "datetime64" if pa.types.is_timestamp(kind) else "timedelta64"
            return _numbers(content.cast(pa.int64()), np.dtype("int64")).view(f"{name}[{kind.unit}]")
        raise self._refused(
            f"is of type {kind}, which cannot be converted to an array", "convert it to a timestamp or a number before"
        )

    def _refused(self, what: str, remedy: str) -> ArgumentError:
        """Return an error that names the column and its origin."""
        return ArgumentError(f"column '{self._name}' of {self._place} {what}; {remedy}")


def _has_integers(kind: Any) -> bool:
    """Return True for a type of integers, or of lists of these."""
    import pyarrow as pa

    return bool(pa.types.is_integer(getattr(kind, "value_type", kind)))


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array, without a copy if it has a single chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_text(kind: Any) -> bool:
    """Return True for a type of text or bytes."""
    import pyarrow as pa

    checks = ("is_string", "is_large_string", "is_binary", "is_large_binary", "is_fixed_size_binary")
    return any(getattr(pa.types, check)(kind) for check in checks)


def _numbers(content: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a read-only view of the column's memory; pyarrow's own conversion imports pandas, which takes seconds."""
    import numpy as np

    buffer = content.buffers()[1]
    if buffer is None:
        return np.zeros(0, dtype)
    return np.frombuffer(buffer, dtype, len(content), content.offset * dtype.itemsize)


def _bits(content: pa.Array) -> NDArray[np.bool_]:
    """Return Arrow's packed bits as an array of booleans."""
    import numpy as np

    buffer = content.buffers()[1]
    if buffer is None:
        return np.zeros(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return bits[content.offset : content.offset + len(content)].view(np.bool_)
