"""Tests of Arrow columns as arrays: values, types, and refusals with the column's name."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopsml.errors import ArgumentError
from hopsml.training.data import columns

pytestmark = pytest.mark.fast

VECTOR = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)


def arrays(values: Any, kind: Any = None, **fill: Any) -> dict[str, Any]:
    return columns.table_to_arrays(pa.table({"c": pa.array(values, kind)}), fill, "file:///data/part-0")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, 2, 3], pa.int8(), np.array([1, 2, 3], np.int8)),
        ([1.5, 2.5], pa.float32(), np.array([1.5, 2.5], np.float32)),
        ([1.5, 2.5], pa.float16(), np.array([1.5, 2.5], np.float16)),
        ([True, False, True], pa.bool_(), np.array([True, False, True])),
        ([[1, 2], [3, 4]], pa.list_(pa.int32()), np.array([[1, 2], [3, 4]], np.int32)),
        ([[1, 2], [3, 4]], pa.list_(pa.float32(), 2), np.array([[1, 2], [3, 4]], np.float32)),
        ([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int64())), np.array([[[1], [2]], [[3], [4]]])),
        (["a", "\u00fc"], pa.string(), np.array(["a", "\u00fc"], object)),
        ([b"a", b"\x00"], pa.binary(), np.array([b"a", b"\x00"], object)),
        (["a", "b", "a"], pa.dictionary(pa.int8(), pa.string()), np.array(["a", "b", "a"], object)),
        ([datetime.date(2026, 1, 2)], pa.date32(), np.array(["2026-01-02"], "datetime64[D]")),
        ([datetime.datetime(2026, 1, 2, 3)], pa.timestamp("us"), np.array(["2026-01-02T03"], "datetime64[us]")),
        ([decimal.Decimal("1.25")], pa.decimal128(5, 2), np.array([1.25])),
        ([], pa.int64(), np.zeros(0, np.int64)),
        ([], pa.list_(pa.float32()), np.zeros((0, 0), np.float32)),
        ([], pa.bool_(), np.zeros(0, bool)),
    ],
)
def test_arrow_columns_become_arrays_of_matching_values_and_types(values: Any, kind: Any, expected: Any) -> None:
    found = arrays(values, kind)["c"]
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [pa.int16(), pa.bool_(), pa.list_(pa.int16()), pa.list_(pa.int16(), 2), pa.string()])
def test_sliced_table_yields_only_its_own_rows(kind: Any) -> None:
    values: list[Any] = [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0]
    if pa.types.is_boolean(kind):
        values = list(map(bool, values))
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        values = [[value, 5] for value in values]
    elif pa.types.is_string(kind):
        values = list(map(str, values))
    table = pa.table({"c": pa.array(values, kind)})
    found = columns.table_to_arrays(table.slice(3, 5), {}, "here")["c"]
    assert found.tolist() == values[3:8]


def test_chunked_column_becomes_one_array() -> None:
    table = pa.concat_tables([pa.table({"c": [1, 2]}), pa.table({"c": [3]})])
    assert columns.table_to_arrays(table, {}, "here")["c"].tolist() == [1, 2, 3]


def test_struct_fields_become_columns_and_ml_vectors_become_rows() -> None:
    nested = [{"a": 1, "in": {"b": 2.0}}, {"a": 3, "in": {"b": 4.0}}]
    found = arrays(nested)
    assert {name: list(column) for name, column in found.items()} == {"c.a": [1, 3], "c.in.b": [2.0, 4.0]}
    dense = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]}
    sparse = {"type": 0, "size": 3, "indices": [0, 2], "values": [5.0, 6.0]}
    assert arrays([dense, sparse], VECTOR)["c"].tolist() == [[1, 2, 3], [5, 0, 6]]


def test_fill_values_replace_nulls_in_each_column_type() -> None:
    assert arrays([1, None, 3], c=0)["c"].tolist() == [1, 0, 3]
    assert arrays([1.5, None], pa.float32(), c=0.1)["c"].tolist() == [1.5, np.float32(0.1)]
    assert arrays([[1, 2], None], c=(0, np.int64(1)))["c"].tolist() == [[1, 2], [0, 1]]
    assert arrays(["a", None], c="")["c"].tolist() == ["a", ""]
    assert columns.table_to_arrays(pa.table({"s": [{"x": 1.0}, {"x": None}]}), {"s.x": -1.0}, "here")[
        "s.x"
    ].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("values", "kind", "fill", "word"),
    [
        ([1, None], pa.int32(), {}, r"has 1 null\(s\) in 2 rows; say what stands for them, fill={'c': ...}"),
        ([1, None], pa.int32(), {"c": "x"}, r"is of type int32, which 'x' is not"),
        ([1, None], pa.int32(), {"c": 0.5}, r"is of type int32, which 0.5 is not \(it would be 0\)"),
        ([[1], None], pa.list_(pa.int32()), {"c": [0.5]}, r"which \[0.5\] is not \(it would be \[0\]\)"),
        ([[1], [2, 3]], pa.list_(pa.int32()), {}, r"has lists of 1 to 2 values, but all lists of a batch"),
        ([[1], None], pa.list_(pa.int32()), {}, r"has 1 null\(s\) in 2 rows"),
        ([[1], [None]], pa.list_(pa.int32()), {}, r"has 1 null\(s\) in 2 rows"),
        ([{"a": 1}, None], pa.struct({"a": pa.int32()}), {}, r"null"),
        ([datetime.time(1)], pa.time64("us"), {}, r"is of type time64\[us\], which cannot be converted to an array"),
        (
            [[("a", 1)]],
            pa.map_(pa.string(), pa.int32()),
            {},
            r"is of type map<string, int32>, which cannot be converted to an array",
        ),
        (
            [
                {"type": 1, "size": None, "indices": None, "values": [1.0]},
                {"type": 0, "size": 2, "indices": [0], "values": [5.0]},
            ],
            VECTOR,
            {},
            r"has vectors of 1 to 2 values",
        ),
    ],
)
def test_column_without_array_representation_is_refused_by_name(values: Any, kind: Any, fill: Any, word: str) -> None:
    with pytest.raises(ArgumentError, match=r"column 'c(\.a)?' of file:///data/part-0 .*" + word):
        arrays(values, kind, **fill)


def test_reading_parquet_does_not_import_pandas(tmp_path: Path) -> None:
    """The import takes two seconds in each worker."""
    columns_of = {"a": [1, 2], "b": [[1.0], [2.0]], "c": ["x", "y"], "d": [True, False]}
    pq.write_table(pa.table(columns_of), tmp_path / "a.parquet")
    script = (
        "import sys, hopsml\n"
        f"(batch,) = hopsml.data.parquet({str(tmp_path)!r}).batch(2)\n"
        "print(len(batch), 'pandas' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "4 False\n"
