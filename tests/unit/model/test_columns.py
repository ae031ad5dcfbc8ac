"""Tests of the mapping from columns to inputs, and of arrays from and to Arrow, without a model."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model.columns import bind_inputs, column_of, model_inputs, output_fields
from hopsml.model.description import Signature, TensorSpec

pytestmark = pytest.mark.fast

IMAGE = TensorSpec("float32", (None, 2, 3))
SCALAR = TensorSpec("float32", (None,))


def signature(**inputs: TensorSpec) -> Signature:
    return Signature(inputs, {"digit": TensorSpec("float32", (None, 10))})


def table(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_each_input_is_bound_to_the_column_of_its_name() -> None:
    batch = table(extra=[1, 2], image=[[[1.0] * 3] * 2, [[2.0] * 3] * 2], other=["a", "b"])
    bindings = bind_inputs(signature(image=IMAGE, extra=SCALAR), batch.schema)
    assert [one.columns for one in bindings] == [("image",), ("extra",)]
    found = model_inputs(bindings, batch)
    assert found["image"].shape == (2, 2, 3) and found["extra"].tolist() == [1.0, 2.0]
    assert {array.dtype.name for array in found.values()} == {"float32"}


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float32(), 6), pa.large_list(pa.int8())])
def test_flat_array_is_reshaped_to_the_tensor_shape(kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([[1, 2, 3, 4, 5, 6], [0] * 6, [6, 5, 4, 3, 2, 1]], kind)], ["image"])
    found = model_inputs(bind_inputs(signature(image=IMAGE), batch.schema), batch.slice(1))["image"]
    assert found.tolist() == [[[0, 0, 0], [0, 0, 0]], [[6, 5, 4], [3, 2, 1]]]


def test_input_can_be_combined_from_named_columns() -> None:
    batch = table(b=[1, 2], a=[3.0, 4.0], c=[True, False])
    rows = TensorSpec("float64", (None, 2))
    found = model_inputs(bind_inputs(signature(X=rows), batch.schema, {"X": ["a", "b"]}), batch)["X"]
    assert found.tolist() == [[3.0, 1.0], [4.0, 2.0]]
    alone = bind_inputs(signature(X=rows), batch.schema, ["b", "a"])
    assert alone == bind_inputs(signature(X=rows), batch.schema, {"X": ["b", "a"]})
    assert bind_inputs(signature(X=SCALAR), batch.schema, "a")[0].columns == ("a",)
    named = TensorSpec("float64", (None, 3), features=("a", "b", "c"))
    assert bind_inputs(signature(X=named), batch.schema)[0].columns == ("a", "b", "c")


def test_only_input_is_bound_to_the_only_matching_column() -> None:
    schema = table(id=[1], pixels=[[1.0]], label=["a"]).schema
    assert bind_inputs(signature(keras_tensor=TensorSpec("float32", (None, None))), schema)[0].columns == ("pixels",)


FLOATS = pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("inputs", "given", "words"),
    [
        ({"image": IMAGE}, {"image": "pixel"}, "no column 'pixel'; did you mean pixels"),
        ({"image": IMAGE}, {"imag": "pixels"}, "no input 'imag'; did you mean image"),
        ({"image": SCALAR}, None, "no column 'image' .*'id', 'x' all fit; rename a column, or pass inputs="),
        ({"text": TensorSpec("bool", (None,))}, None, "no other column is one bool a row"),
        ({"id": SCALAR, "far": SCALAR}, None, "no column 'far' .*there are: id, x, pixels, label"),
        ({"label": SCALAR}, None, "column 'label' cannot be .*it is string, but the model takes one float32 a row"),
        (
            {"x": TensorSpec("int64", (None,))},
            None,
            "column 'x' cannot be .*it is double, but the model takes one int64",
        ),
        ({"x": IMAGE}, None, r"it is double, but the model takes float32 of shape \[2, 3\]"),
        ({"pixels": SCALAR}, None, "it is list<item: double>, but the model takes one float32"),
        (
            {"X": TensorSpec("float32", (None, 3))},
            {"X": ["id", "x"]},
            r"shape \[3\], and cannot be combined from 2 columns",
        ),
        ({"X": TensorSpec("float32", (32, 3))}, {"X": "pixels"}, "exactly 32 rows at a time"),
        ({"X": TensorSpec("int64", (None, 3))}, None, r"inputs=\{'X': 'its column', or \[3 columns\]\}"),
        ({"x": SCALAR, "id": SCALAR}, ["x", "id"], "inputs=.*the model has the inputs x, id; give the column of each"),
        ({"X": TensorSpec("float32", (None, 2), ("id", "y"))}, None, "no column 'X' .*nor are there 'y'"),
    ],
)
def test_mismatched_columns_are_refused_before_reading(inputs: dict[str, TensorSpec], given: Any, words: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("pixels", FLOATS), ("label", pa.string())])
    with pytest.raises(ArgumentError, match=words):
        bind_inputs(signature(**inputs), schema, given)


@pytest.mark.parametrize("given", [3, {"X": 3}, {"X": [1, 2]}])
def test_columns_must_be_given_by_name(given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="it must be the name of a column, or a list of names"):
        bind_inputs(signature(X=SCALAR), table(x=[1.0]).schema, given)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[1.0] * 6, [1.0] * 5], "'image' has lists of 5 to 6 values.*pad the lists"),
        (
            [[1.0] * 5, [1.0] * 5],
            r"'image' has 5 values per row, but the model's input 'image' is float32 of shape \[2, 3\]",
        ),
        ([[1.0] * 6, None], "'image' has no value in row 1 of a batch"),
        ([[1.0] * 6, [1.0] * 5 + [None]], "'image' has no value in row 1 of a batch"),
    ],
)
def test_mismatched_rows_are_refused_with_their_column(values: list[Any], words: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, FLOATS)], ["image"])
    with pytest.raises(ArgumentError, match=words):
        model_inputs(bind_inputs(signature(image=IMAGE), batch.schema), batch)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool", "float16"])
def test_outputs_become_columns_of_equal_values(shape: tuple[int, ...], dtype: str) -> None:
    given = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(dtype)
    made = Signature({}, {"out": TensorSpec(dtype, (None, *shape[1:]))})
    (field,) = output_fields(made, pa.schema([]), "p_")
    column = column_of(given, field)
    assert field.name == "p_out" and column.type == field.type and column.to_pylist() == given.tolist()


def test_spark_ml_vector_error_names_vector_to_array() -> None:
    vector = pa.struct(
        [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", FLOATS)]
    )
    with pytest.raises(ArgumentError, match=r"convert it with pyspark\.ml\.functions\.vector_to_array"):
        bind_inputs(signature(features=TensorSpec("float32", (None, 4))), pa.schema([("features", vector)]))
    with pytest.raises(ArgumentError, match=r"and 'features' is a vector of Spark ML; .*vector_to_array"):
        bind_inputs(
            signature(X=TensorSpec("float32", (None, 4))), pa.schema([("id", pa.int64()), ("features", vector)])
        )


def test_decimals_are_converted_to_floats() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([Decimal("1.50"), Decimal("-2.25")], pa.decimal128(10, 2))], ["x"])
    assert model_inputs(bind_inputs(signature(x=SCALAR), batch.schema), batch)["x"].tolist() == [1.5, -2.25]
    with pytest.raises(ArgumentError, match=r"it is decimal128.*the model takes one int64 a row"):
        bind_inputs(signature(x=TensorSpec("int64", (None,))), batch.schema)


def test_text_columns_are_passed_and_returned_as_text() -> None:
    made = Signature({"text": TensorSpec("str", (None,))}, {"label": TensorSpec("str", (None,))})
    batch = table(text=["a", "b"])
    assert model_inputs(bind_inputs(made, batch.schema), batch)["text"].tolist() == ["a", "b"]
    (field,) = output_fields(made, batch.schema, "")
    assert column_of(np.array([b"x", "y"], object), field).to_pylist() == ["x", "y"]


def test_output_with_the_name_of_a_column_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"already has a column 'digit'.*pass a prefix"):
        output_fields(signature(), pa.schema([("digit", pa.int64())]), "")
