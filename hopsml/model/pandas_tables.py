"""A DataFrame of pandas as a table of Arrow's: what pandas writes otherwise than Arrow is brought into its form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.model import columns
from hopsml.model.columns import InputColumns


def by_text(inputs: Any) -> InputColumns | None:
    """``inputs`` of ``predict`` with columns by their names as Arrow has them: pandas's may be numbers."""
    if isinstance(inputs, Mapping):
        return {name: _text(asked) for name, asked in inputs.items()}
    return None if inputs is None else _text(inputs)


def _text(asked: Any) -> Any:
    return [_name(one) for one in asked] if isinstance(asked, (list, tuple)) else _name(asked)


def _name(column: Any) -> Any:
    return str(column) if isinstance(column, int) and not isinstance(column, bool) else column


def arrow_of(df: Any) -> Any:
    """The columns of a DataFrame. NaN in numbers stays what it is: a model may know what to do with it.

    Raises ArgumentError for columns that Arrow cannot hold, and for two of one name.
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
            if isinstance(column.dtype, pd.SparseDtype):  # as get_dummies(sparse=True) makes them
                column = column.sparse.to_dense()
            found.append(_array(column))
            fields.append(_field(name, found[-1].type, column))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ArgumentError(
                f"the column {name!r} of the table has no common type: {error}; give numbers, texts, or arrays"
            ) from error
    return pa.Table.from_arrays(found, schema=pa.schema(fields))


def _field(name: str, kind: Any, column: Any) -> Any:
    """Return a column's Arrow field, with the missing value among objects: NaN, as pandas reads it from files, or None."""
    import pyarrow as pa

    field = pa.field(name, kind)
    missing = list(column[column.isna()][:1]) if column.dtype.kind == "O" else []
    if not missing or not (missing[0] is None or isinstance(missing[0], float)):
        return field
    return columns.with_missing(field, missing[0] is not None)


def _array(column: Any) -> Any:
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
    """Arrays of several dimensions, such as pictures, as lists in lists."""
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
