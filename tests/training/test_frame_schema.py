"""Which DataFrames can be data of a training, by their schemas as Spark writes them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hopsml.training.data import frame_schema

pytestmark = pytest.mark.fast

VECTOR = {"type": "udt", "class": "VectorUDT", "sqlType": {"type": "struct", "fields": []}}
MAP = {"type": "map", "keyType": "string", "valueType": "integer"}


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


@pytest.mark.parametrize(
    "kind",
    [
        "long",
        "string",
        "binary",
        "date",
        "timestamp",
        "decimal(10,2)",
        VECTOR,
        array(array("float")),
        struct(field("x", "double")),
    ],
)
def test_what_arrays_hold_is_taken(kind: Any) -> None:
    assert frame_schema.problem([field("id", "long"), field("c", kind)]) == ""


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ([], "has no columns; select those"),
        ([field("a", "long"), field("b", "long"), field("a", "string")], "has several columns called a, of which"),
        ([field("m", MAP)], r"has the column m with values of type map, .*; df.drop\('m'\)"),
        ([field("m", struct(field("x", MAP)))], "column m with values of type map"),
        ([field("m", array(MAP))], "column m with values of type map"),
        ([field("m", array(struct(field("x", "long"))))], "column m with values of type array of struct"),
        ([field("n", "void")], "column n with values of type void"),
    ],
)
def test_what_they_cannot_hold_is_named(fields: list[dict[str, Any]], word: str) -> None:
    assert re.search(word, frame_schema.problem(fields))


def test_a_stream_has_no_end() -> None:
    assert "is a stream, which has no end" in frame_schema.problem([field("id", "long")], is_streaming=True)
