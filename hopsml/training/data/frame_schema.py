"""Check of a DataFrame's schema for types that cannot be training data, before anything is started."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Types that ``columns.arrays`` converts; all other types, also those of newer Spark versions, are rejected.
_WITH_ARRAY = re.compile(
    r"boolean|byte|short|integer|long|float|double|decimal\(.*\)|binary|date|timestamp|timestamp_ntz"
    r"|(string|char|varchar)\b.*|interval (day|hour|minute|second)( to (hour|minute|second))?"
)
_VECTOR, _MATRIX = "VectorUDT", "MatrixUDT"  # class names of Spark ML

Field = Mapping[str, Any]  # of a Spark schema, as JSON


def problem(fields: Sequence[Field], is_streaming: bool = False) -> str:
    """Return why the rows cannot form batches, with the remedy; an empty string if they can.

    Args:
        fields: fields of the DataFrame's schema, as JSON.
        is_streaming: whether the DataFrame is a stream, which is rejected.
    """
    if is_streaming:
        return "is a stream, which has no end; give what spark.read has read, or write the stream out before"
    if not fields:
        return "has no columns; select those that the training reads"
    counts = Counter(_names(fields))
    if twice := [name for name, count in counts.items() if count > 1]:
        return (
            f"has several columns called {', '.join(twice)}, of which a batch takes one; rename them, or df.drop(...)"
        )
    for field in fields:
        if kind := _without_array(field["type"]):
            return (
                f"has the column {field['name']} with values of type {kind}, of which there is no array; "
                f"df.drop({field['name']!r}), or make numbers, text or lists of it before"
            )
    return ""


def _names(fields: Sequence[Field], above: str = "") -> Iterator[str]:
    """Yield the names of the columns that the fields become; those of a struct are ``struct.field``."""
    for field in fields:
        name, kind = f"{above}{field['name']}", field["type"]
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            yield from _names(kind["fields"], f"{name}.")
        else:
            yield name


def _without_array(kind: Any, in_list: bool = False) -> str:
    """Return the first type within ``kind`` that no array can hold; an empty string if there is none."""
    if isinstance(kind, str):
        return "" if _WITH_ARRAY.fullmatch(kind) else kind
    match kind["type"]:
        case "array":
            return _without_array(kind["elementType"], in_list=True)
        case "struct" if in_list:
            return "array of struct"
        case "struct":
            return next(filter(None, (_without_array(field["type"]) for field in kind["fields"])), "")
        case "udt":
            name = str(kind.get("class", "")).rpartition(".")[2]
            if name == _VECTOR:
                return f"array of {name}" if in_list else ""
            return name if name == _MATRIX else _without_array(kind.get("sqlType", ""), in_list)
        case other:
            return str(other)
