"""Tests of the DataFrame schemas that a training accepts, as Spark writes them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hopsml.training.data import push

pytestmark = pytest.mark.fast

VECTOR = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT", "sqlType": {"type": "struct", "fields": []}}
MATRIX = VECTOR | {"class": "org.apache.spark.ml.linalg.MatrixUDT"}
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
        "timestamp_ntz",
        "string collate UNICODE",
        "varchar(3)",
        "interval day to second",
        "interval minute",
        array("date"),
        array("string"),
        struct(field("x", struct(field("y", VECTOR)))),
        {"type": "udt", "class": "Point", "sqlType": array("double")},
        VECTOR,
        array(array("float")),
        struct(field("x", "double")),
    ],
)
def test_schema_accepts_columns_with_array_representation(kind: Any) -> None:
    assert push.unsupported_rows_reason([field("id", "long"), field("c", kind)]) == ""


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ([], "has no columns; select those"),
        ([field("a", "long"), field("b", "long"), field("a", "string")], "has several columns with the name a;"),
        ([field("m", MAP)], r"has the column m with values of type map, .*; call df.drop\('m'\)"),
        ([field("m", struct(field("x", MAP)))], "column m with values of type map"),
        ([field("m", array(MAP))], "column m with values of type map"),
        ([field("m", array(struct(field("x", "long"))))], "column m with values of type array of struct"),
        ([field("n", "void")], "column n with values of type void"),
        ([field("n", array("void"))], "column n with values of type void"),
        ([field("v", "variant")], "column v with values of type variant"),
        ([field("i", "interval year to month")], "column i with values of type interval year to month"),
        ([field("i", "interval year")], "column i with values of type interval year"),
        ([field("i", array("interval month"))], "column i with values of type interval month"),
        ([field("i", struct(field("x", array("interval year"))))], "column i with values of type interval year"),
        ([field("i", "interval")], "column i with values of type interval, "),
        ([field("t", "time(6)")], r"column t with values of type time\(6\)"),
        ([field("g", "geometry(4326)")], r"column g with values of type geometry\(4326\)"),
        ([field("m", MATRIX)], "column m with values of type MatrixUDT"),
        ([field("m", struct(field("x", MATRIX)))], "column m with values of type MatrixUDT"),
        ([field("m", array(MATRIX))], "column m with values of type MatrixUDT"),
        ([field("v", array(VECTOR))], "column v with values of type array of VectorUDT"),
        ([field("u", {"type": "udt", "class": "U", "sqlType": MAP})], "column u with values of type map"),
        ([field("s", struct(field("a", "long"))), field("s.a", "long")], r"several columns with the name s\.a;"),
        ([field("s", struct(field("a", "long"), field("a", "long")))], r"several columns with the name s\.a;"),
    ],
)
def test_schema_names_columns_without_array_representation(fields: list[dict[str, Any]], word: str) -> None:
    assert re.search(word, push.unsupported_rows_reason(fields))


def test_schema_refuses_a_streaming_dataframe() -> None:
    assert "is a stream, which has no end" in push.unsupported_rows_reason([field("id", "long")], is_streaming=True)
