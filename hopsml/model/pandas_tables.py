"""Conversion of pandas DataFrames to Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.model import columns
from hopsml.model.columns import InputColumns


def by_text(inputs: Any) -> InputColumns | None:
    """Return ``inputs`` of ``predict`` with column names as text, as in Arrow; those of pandas may be numbers."""
    if isinstance(inputs, Mapping):
        return {name: _text(asked) for name, asked in inputs.items()}
    return None if inputs is None else _text(inputs)


def _text(asked: Any) -> Any:
    """Return one column name, or a list of them, as text."""
    return [_name(one) for one in asked] if isinstance(asked, (list, tuple)) else _name(asked)


def _name(column: Any) -> Any:
    """Return a column name as text if it is a number."""
    return str(column) if isinstance(column, int) and not isinstance(column, bool) else column


def arrow_of(df: Any) -> Any:
    """Convert a DataFrame to an Arrow table; NaN among numbers is retained, because models may accept it.

    Raises:
        ArgumentError: A column has no common type, or two columns have the same name.
    """
    import pandas as pd
    import pyarrow as pa

    if not df.columns.is_unique:
        twice = df.columns[df.columns.duplicated()][0]
        raise ArgumentError(f"the table has more than one column {str(twice)!r}; rename one, or leave it out")
    found, fields, names = [], [], [str(name) for name in df.columns]
    for place, name in enumerate(names):
        try:
            column = df.iloc[:, place]
            if isinstance(column.dtype, pd.SparseDtype):  # as get_dummies(sparse=True) creates them
                column = column.sparse.to_dense()
            found.append(_array(column))
            fields.append(_field(name, found[-1].type, column))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ArgumentError(
                f"the column {name!r} of the table has no common type: {error}; give numbers, texts, or arrays"
            ) from error
    return pa.Table.from_arrays(found, schema=pa.schema(fields))


def _field(name: str, kind: Any, column: Any) -> Any:
    """Return a column's Arrow field with the kind of missing value among objects: NaN, as read from files, or None."""
    import pyarrow as pa

    field = pa.field(name, kind)
    missing = list(column[column.isna()][:1]) if column.dtype.kind == "O" else []
    if not missing or not (missing[0] is None or isinstance(missing[0], float)):
        return field
    return columns.with_missing(field, missing[0] is not None)


def _array(column: Any) -> Any:
    """Convert a column to an Arrow array."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(column.dtype, np.dtype):
        return pa.Array.from_pandas(column)
    if column.dtype.kind == "f":
        return pa.array(column.to_numpy(), from_pandas=False)
    first = next((one for one in column if one is not None), None) if column.dtype.kind == "O" else None
    if isinstance(first, np.ndarray) and first.ndim > 1:
        return _of_arrays(column)
    array = pa.Array.from_pandas(column)
    if pa.types.is_list(array.type) and pc.list_flatten(array).null_count:
        array = pa.array([None if isinstance(one, float) else one for one in column], array.type, from_pandas=False)
    return array


def _of_arrays(column: Any) -> Any:
    """Convert a column of multidimensional arrays, such as images, to nested lists."""
    import numpy as np
    import pyarrow as pa

    shapes = sorted({np.shape(one) for one in column})
    if len(shapes) > 1:
        raise ArgumentError(
            f"the column {str(column.name)!r} of the table has arrays of the shapes {', '.join(map(str, shapes[:3]))}; make "
            "them of one shape, such as by padding"
        )
    stacked = np.stack(list(column))
    return columns.nested(pa.array(stacked.reshape(-1)), stacked.shape)
