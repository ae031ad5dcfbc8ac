"""Types of a data set's columns: one for each column, the same in all files, or an error that names two of them."""

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
_REMEDY = "a batch needs all alike; write the data anew with one schema"

Types = Mapping[str, "pa.DataType"]  # by column


def is_vector(kind: pa.DataType) -> bool:
    """True for the struct that Spark ML writes a vector as."""
    import pyarrow as pa

    return pa.types.is_struct(kind) and [field.name for field in kind] == _VECTOR


def is_list(kind: pa.DataType) -> bool:
    """True for lists of any length, and of a fixed one."""
    import pyarrow as pa

    return any(check(kind) for check in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def is_list_of_values(kind: pa.DataType) -> bool:
    """True for lists of something other than lists: the number of their values is their shape."""
    return is_list(kind) and not is_list(kind.value_type)


def flat(schema: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Name and type of each column that rows of these fields become; a struct becomes columns ``struct.field``."""
    import pyarrow as pa

    for field in schema:
        name = f"{above}{field.name}"
        if pa.types.is_struct(field.type) and not is_vector(field.type):
            yield from flat(field.type, f"{name}.")
        else:
            yield name, field.type


def common(files: Mapping[str, Types], fill: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """Return the type of each column, in the order that all batches have.

    A column that is of type null in a file, or absent there, has the type of the other files where ``fill`` has a value
    for it, and the type of that value where no file tells.

    Args:
        files: the types of each file's columns, by the file's URL.
        fill: the value that stands for a null, by column.

    Raises:
        ArgumentError: a column becomes other arrays in one file than in another, or is of a type that becomes none; it is
            absent in a file, or has nothing but nulls there, and ``fill`` has no value for it.
    """
    import pyarrow as pa

    known = dict[str, tuple[pa.DataType, str]]()
    for url, types in files.items():
        for name, kind in types.items():
            if pa.types.is_null(kind):
                continue
            if not _has_array(kind):
                raise ArgumentError(
                    f"column '{name}' of {url} is of type {kind}, which has no array; leave the column out, or make "
                    "numbers, text or lists of it before"
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
    """True for a struct of which other files tell the fields, and this one says that it is null."""
    return any(one.startswith(f"{name}.") for one in known)


def _untold(name: str, url: str, known: tuple[pa.DataType, str] | None, files: Mapping[str, Types]) -> ArgumentError:
    """The error for a column that is absent in a file, or of type null there."""
    remedy = (
        f"say what stands for it, fill={{{name!r}: ...}}, write the data anew with one schema, or leave the column out"
    )
    if name in files[url]:
        other = f", and is {known[0]} in {known[1]}" if known else ""
        return ArgumentError(f"column '{name}' has nothing but nulls in {url}{other}; {remedy}")
    there = known[1] if known else next(one for one, types in files.items() if name in types)
    return ArgumentError(f"column '{name}' is in {there}, and {url} has none: a batch needs all alike; {remedy}")


def _has_array(kind: pa.DataType) -> bool:
    """True for what ``columns.arrays`` makes arrays of."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _has_array(kind.value_type)
    if is_list(kind):
        return not pa.types.is_struct(kind.value_type) and _has_array(kind.value_type)
    return is_vector(kind) or any(getattr(pa.types, f"is_{check}")(kind) for check in _WITH_ARRAY)


def _array_kind(kind: pa.DataType) -> str:
    """Name of the arrays that values become: files may differ in types of one name."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _array_kind(kind.value_type)
    if is_list(kind):
        return f"list<{_array_kind(kind.value_type)}>"  # of which length is compared elsewhere
    if pa.types.is_decimal(kind):
        return "double"
    if pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_timestamp(kind):  # of any zone: they are counted from one moment
        return f"timestamp[{kind.unit}]{', tz' * (kind.tz is not None)}"
    return str(kind)
