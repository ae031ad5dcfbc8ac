"""Types of a data set's columns: one type per column, the same in all files, or an error that names two files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

_VECTOR = ["type", "size", "indices", "values"]  # the fields of Spark ML's vectors
_WITH_ARRAY = (
    *("boolean", "integer", "floating", "decimal", "date32", "timestamp", "duration", "null"),
    *("string", "large_string", "binary", "large_binary", "fixed_size_binary"),
)
_REMEDY = "a batch needs all alike; rewrite the data with one schema"

Types = Mapping[str, "pa.DataType"]  # by column


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


def flat(schema: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield the name and type of each column made of these fields; a struct becomes columns ``struct.field``."""
    import pyarrow as pa

    for field in schema:
        name = f"{above}{field.name}"
        if pa.types.is_struct(field.type) and not is_vector(field.type):
            yield from flat(field.type, f"{name}.")
        else:
            yield name, field.type


def common(files: Mapping[str, Types], fill: Mapping[str, Any]) -> dict[str, pa.DataType]:
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
                    f"column '{name}' of {url} is of type {kind}, which has no array; leave the column out, or convert "
                    "it to numbers, text or lists first"
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
        return ArgumentError(f"column '{name}' has nothing but nulls in {url}{other}; {remedy}")
    there = known[1] if known else next(one for one, types in files.items() if name in types)
    return ArgumentError(f"column '{name}' is in {there}, and {url} has none: a batch needs all alike; {remedy}")


def _has_array(kind: pa.DataType) -> bool:
    """Return True for a type that ``columns.arrays`` can convert to an array."""
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
