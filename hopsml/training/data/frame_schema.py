"""Whether a DataFrame can be data of a training, as its schema tells it: before anything is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_WITHOUT_ARRAY = ("map", "variant", "void")  # whatever lies in them

Field = Mapping[str, Any]  # of Spark's schemas, as JSON


def problem(fields: Sequence[Field], is_streaming: bool = False) -> str:
    """What keeps the rows from being batches, with the remedy; "" where nothing does."""
    if is_streaming:
        return "is a stream, which has no end; give what spark.read has read, or write the stream out before"
    if not fields:
        return "has no columns; select those that the training reads"
    counts = Counter(field["name"] for field in fields)
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


def _without_array(kind: Any, in_list: bool = False) -> str:
    """The type in it that no array can hold; "" where there is none."""
    if isinstance(kind, str):
        return kind if kind in _WITHOUT_ARRAY else ""
    match kind["type"]:
        case "array":
            return _without_array(kind["elementType"], in_list=True)
        case "struct" if in_list:
            return "array of struct"
        case "struct":
            return next(filter(None, (_without_array(field["type"]) for field in kind["fields"])), "")
        case "udt":
            return _without_array(kind.get("sqlType", ""), in_list)
        case other:
            return other if other in _WITHOUT_ARRAY else ""
