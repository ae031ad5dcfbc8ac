"""Conversion between table columns and the tensors of a model's signature, in both directions.

Pure functions of Arrow schemas and arrays. All errors that a schema reveals are raised before any row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from hopsml.core import suggestions
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model.description import Signature, TensorSpec
from hopsml.model.flavors.contract import MissingValues
from hopsml.training.elastic.commits import dtype_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = str | Sequence[str]
InputColumns = Mapping[str, Columns] | Columns
_IS_NAN = b"hopsml.is_nan"  # key in the metadata of a field
_WHERE = "printSchema() shows them"
_VECTOR = "is a vector of Spark ML; convert it with pyspark.ml.functions.vector_to_array"


@dataclass(frozen=True)
class Binding:
    """Input of a model, and the columns that it is read from; several columns are stacked."""

    name: str
    spec: TensorSpec
    columns: tuple[str, ...]


def bind_inputs(
    signature: Signature, schema: Any, given: InputColumns | None = None, takes_missing: bool = False
) -> list[Binding]:
    """Determine the columns from which each input is read.

    The order is: the columns given for the input; the column of the input's name; the columns of its features' names;
    for a model with one input, the only column of a suitable type.

    Args:
        signature: Signature of the model.
        schema: PyArrow schema of the table.
        given: Columns by input, or for a model with one input alone; None for the defaults.
        takes_missing: True if values may be missing, so that whole numbers may arrive as float64.

    Raises:
        ArgumentError: A column is missing or unsuitable; the message names the column or the input.
    """
    asked = _by_input(signature, given)
    for name in asked:
        if name not in signature.inputs:
            hint = suggestions.suggestion_text(name, signature.inputs, f"its inputs are {', '.join(signature.inputs)}")
            raise ArgumentError(f"inputs=: the model has no input {name!r}; {hint}")
    found = []
    for name, spec in signature.inputs.items():
        if spec.shape[:1] and spec.shape[0] is not None:
            raise ArgumentError(
                f"the model's input {name!r} takes exactly {spec.shape[0]} rows at a time; export the model with a "
                "free first dimension"
            )
        columns = _columns_of(name, spec, schema, asked.get(name), len(signature.inputs) == 1, takes_missing)
        for column in columns:
            if why := _misfit(schema.field(column).type, spec, len(columns), takes_missing):
                raise ArgumentError(f"the column {column!r} cannot be the model's input {name!r}: {why}")
        if len(columns) > 1 and spec.shape[1:] not in ((len(columns),), (None,)):
            raise ArgumentError(
                f"the model's input {name!r} is {_shown(spec)}, and cannot be combined from {len(columns)} columns"
            )
        found.append(Binding(name, spec, columns))
    return found


def _by_input(signature: Signature, given: InputColumns | None) -> Mapping[str, Columns]:
    """Return the columns given for each input."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(signature.inputs) != 1:
            names = ", ".join(signature.inputs)
            raise ArgumentError(
                f"inputs={given!r:.80}: the model has the inputs {names}; give the column of each by name"
            )
        given = {name: given for name in signature.inputs}
    for name, asked in given.items():
        if not isinstance(asked, (str, Sequence)) or not all(isinstance(column, str) for column in asked):
            raise ArgumentTypeError(
                f"inputs: {name!r}: {asked!r:.80} is a {type(asked).__name__}; it must be the name of a column, or a "
                "list of names"
            )
    return given


def _columns_of(
    name: str, spec: TensorSpec, schema: Any, given: Columns | None, is_only: bool, takes_missing: bool
) -> tuple[str, ...]:
    """Return the columns of one input, as described in ``bind_inputs``."""
    columns = (given,) if isinstance(given, str) else tuple(given or ())
    for column in columns:
        if column not in schema.names:
            raise ArgumentError(
                f"there is no column {column!r}; {suggestions.suggestion_text(column, schema.names, _WHERE)}"
            )
    if columns:
        return columns
    if name in schema.names:
        return (name,)
    if spec.features and set(spec.features) <= set(schema.names):
        return spec.features
    fitting = (
        [field.name for field in schema if not _misfit(field.type, spec, 1, takes_missing)]
        if is_only and not spec.features
        else []
    )
    if len(fitting) == 1:
        return (fitting[0],)
    vectors = [field.name for field in schema if _is_vector(field.type)] if is_only and len(spec.shape) == 2 else []
    missing = [feature for feature in spec.features if feature not in schema.names]
    why = (
        f"nor are there {', '.join(map(repr, missing))}" if missing
        else f"and {', '.join(map(repr, fitting))} all fit" if fitting
        else f"and {vectors[0]!r} {_VECTOR}" if vectors
        else f"and no other column is {_shown(spec)}" if is_only and not spec.features
        else f"there are: {', '.join(schema.names)}"
    )  # fmt: skip
    several = "" if len(spec.shape) != 2 or spec.shape == (None, 1) else f", or [{spec.shape[1] or 'its'} columns]"
    raise ArgumentError(
        f"there is no column {name!r} for the input of the model with this name, {why}; rename a column, or pass "
        f"inputs={{{name!r}: 'its column'{several}}}"
    )


def _is_vector(kind: Any) -> bool:
    """Return True if an Arrow type is a vector of Spark ML."""
    import pyarrow as pa

    return bool(pa.types.is_struct(kind) and kind.get_field_index("indices") >= 0)


def _shown(spec: TensorSpec) -> str:
    """Return a tensor's dtype and shape, without the batch dimension, as text."""
    sizes = ", ".join("any" if size is None else str(size) for size in spec.shape[1:])
    return f"{spec.dtype} of shape [{sizes}]" if sizes else f"one {spec.dtype} a row"


def _misfit(kind: Any, spec: TensorSpec, of: int, takes_missing: bool) -> str:
    """Return the reason for which a column of an Arrow type cannot be the tensor; "" if it can."""
    import pyarrow as pa

    depth, lists, value, size = len(spec.shape) - 1, 0, kind, None
    while pa.types.is_list(value) or pa.types.is_large_list(value) or pa.types.is_fixed_size_list(value):
        size = value.list_size if pa.types.is_fixed_size_list(value) else None
        lists, value = lists + 1, value.value_type
    if pa.types.is_dictionary(value):  # the values of a categorical column count
        value = value.value_type
    if pa.types.is_null(value) and takes_missing:
        return ""
    if _is_vector(value):
        return f"it {_VECTOR}"
    if not _takes(value, spec.dtype, takes_missing):
        return f"it is {kind}, but the model takes {_shown(spec)}"
    wanted = (0,) if of > 1 else tuple({depth, min(1, depth)})  # nested as the tensor, or flat
    if of == 1 and spec.shape[1:] == (1,):
        wanted = (0, 1)
    if lists not in wanted:
        return f"it is {kind}, but the model takes {_shown(spec)}"
    sizes = spec.shape[1:]
    if lists == 1 and size is not None and None not in sizes and size != prod(map(int, sizes)):  # type: ignore[arg-type]
        return f"its lists have {size} values, but the model takes {_shown(spec)}"
    return ""


def _takes(value: Any, dtype: str, takes_missing: bool) -> bool:
    """Return True if values of an Arrow type can be converted to this dtype without loss, such as of fractions.

    Whole numbers with missing values are float64; the check that they are whole takes place when they are read.
    """
    import pyarrow as pa

    if dtype == "str":
        return bool(pa.types.is_string(value) or pa.types.is_large_string(value))
    if pa.types.is_boolean(value):
        return True
    if dtype == "bool":
        return False
    if pa.types.is_integer(value):
        return True
    return bool(pa.types.is_floating(value) or pa.types.is_decimal(value)) and (takes_missing or "int" not in dtype)


# ------------------------------------------------------------------------------------------ conversion of rows


def model_inputs(
    bindings: Sequence[Binding], batch: Any, missing: MissingValues | None = None
) -> dict[str, NDArray[Any]]:
    """Convert the rows of an Arrow batch to the inputs of the model.

    Args:
        bindings: Columns of each input.
        batch: Arrow batch.
        missing: Replacements of missing values; None if no value may be missing.

    Raises:
        ArgumentError: A value is unsuitable; the message names the column and, for missing values, the row.
    """
    import numpy as np

    found = {}
    for binding in bindings:
        parts = [
            _tensor(batch.column(column), column, binding.spec, missing and _missing_in(batch, column, missing))
            for column in binding.columns
        ]
        if len(parts) > 1:
            found[binding.name] = np.stack(parts, axis=-1)
        else:
            found[binding.name] = _shaped(parts[0], binding)
    return found


def mark_null_kind(field: Any, is_nan: bool) -> Any:
    """Return an Arrow field that records if its nulls were NaN or None.

    Scikit-learn distinguishes them among texts.
    """
    return field.with_metadata({_IS_NAN: b"1" if is_nan else b""})


def _missing_in(batch: Any, column: str, missing: MissingValues) -> MissingValues:
    """Return the replacements of missing values for one column, as recorded in its field."""
    is_nan = (batch.schema.field(column).metadata or {}).get(_IS_NAN)
    return missing if is_nan is None else MissingValues(float("nan") if is_nan else None)


def _tensor(column: Any, name: str, spec: TensorSpec, missing: MissingValues | None) -> NDArray[Any]:
    """Convert a column to an array; the levels of lists become dimensions."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, sizes, values = len(column), list[int](), column
    while True:
        is_list = pa.types.is_nested(values.type)
        if values.null_count and (is_list or missing is None):
            raise ArgumentError(
                f"the column {name!r} has no value in {_first_null(column)}; fill it, or drop such rows"
            )
        if not is_list:
            break
        if pa.types.is_fixed_size_list(values.type):
            sizes.append(values.type.list_size)
        else:
            ends = pc.min_max(pc.list_value_length(values))
            least, most = ends["min"].as_py(), ends["max"].as_py()
            if least != most:
                raise ArgumentError(
                    f"the column {name!r} has lists of {least} to {most} values; the model takes {_shown(spec)}, the "
                    "same number for all rows of a batch; pad the lists"
                )
            sizes.append(int(least or 0))
        values = values.flatten()
    dtype = np.dtype(object) if spec.dtype == "str" else dtype_of(spec.dtype)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type):
        values = values.cast(pa.string() if spec.dtype == "str" else pa.float64())
    if pa.types.is_decimal(values.type):  # decimals: Spark SQL's type of literals with a point
        values = values.cast(pa.float64())
    array = values.to_numpy(zero_copy_only=False)
    if missing is not None and values.null_count and array.dtype.kind == "O":
        array = np.where(values.is_null().to_numpy(zero_copy_only=False), missing.other, array)
    if array.dtype.kind in "iuf" and dtype.kind in "iu" and array.size:
        _check_whole(array, dtype, name, spec)
    if not (array.dtype.kind == "f" and dtype.kind in "biu" and np.isnan(array).any()) and dtype.kind != "b":
        array = array.astype(dtype, copy=False)  # otherwise unchanged, with NaN or objects
    found: NDArray[Any] = array.reshape(rows, *sizes)
    return found


def _check_whole(array: NDArray[Any], dtype: Any, name: str, spec: TensorSpec) -> None:
    """Check that numbers are whole and within the range of the dtype."""
    import numpy as np

    limits = np.iinfo(dtype)
    there = array if array.dtype.kind != "f" else array[~np.isnan(array)]
    if not there.size:
        return
    if array.dtype.kind == "f" and (broken := there[(there != np.floor(there)) | np.isinf(there)]).size:
        raise ArgumentError(f"the column {name!r} contains {broken[0]}, but the model takes {_shown(spec)}")
    least, most = int(there.min()), int(there.max())
    if least < limits.min or most > limits.max:
        raise ArgumentError(
            f"the column {name!r} contains {most if most > limits.max else least}, but the model takes "
            f"{_shown(spec)}, {limits.min} to {limits.max}"
        )


def _first_null(column: Any) -> str:
    """Return the text that names the first row with a missing value."""
    for number, value in enumerate(column.to_pylist()):
        if value is None or (isinstance(value, list) and _holds_none(value)):
            return f"row {number} of a batch"
    return "a row"


def _holds_none(values: list[Any]) -> bool:
    """Return True if a nested list contains None."""
    return any(one is None or (isinstance(one, list) and _holds_none(one)) for one in values)


def _shaped(array: NDArray[Any], binding: Binding) -> NDArray[Any]:
    """Reshape an array to the shape of the input."""
    wanted = binding.spec.shape[1:]
    found = array.shape[1:]
    if len(found) == len(wanted) and all(size in (None, is_) for size, is_ in zip(wanted, found, strict=True)):
        return array
    free = sum(size is None for size in wanted)
    known = prod(size for size in wanted if size is not None)
    values = prod(found)
    if free > 1 or (values != known if not free else values % max(1, known)):
        raise ArgumentError(
            f"the column {binding.columns[0]!r} has {values} values per row, but the model's input {binding.name!r} "
            f"is {_shown(binding.spec)}"
        )
    return array.reshape(len(array), *(values // max(1, known) if size is None else size for size in wanted))


def output_fields(signature: Signature, schema: Any, prefix: str) -> list[Any]:
    """Return the Arrow fields of the columns that are appended.

    Raises:
        ArgumentError: A column of this name exists, or an output has a type that no column can hold.
    """
    import pyarrow as pa

    found = []
    for name, spec in signature.outputs.items():
        column = prefix + name
        if column in schema.names:
            raise ArgumentError(
                f"the table already has a column {column!r}, the name of the output {name!r}; pass a prefix, such as "
                "prefix='predicted_'"
            )
        kind = pa.string() if spec.dtype == "str" else _arrow_type(spec.dtype)
        for _ in spec.shape[1:]:
            kind = pa.list_(kind)
        found.append(pa.field(column, kind))
    return found


def _arrow_type(dtype: str) -> Any:
    """Return the Arrow type for an output's dtype, from the types that Spark supports."""
    import numpy as np
    import pyarrow as pa

    if dtype in ("bfloat16", "float16"):  # not supported by Spark
        return pa.float32()
    try:
        kind = pa.from_numpy_dtype(np.dtype(dtype))
    except (TypeError, pa.ArrowNotImplementedError) as error:
        raise ArgumentError(f"an output of the model has the type {dtype}, which no column can have") from error
    unsigned = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}  # not supported by Spark
    return unsigned.get(kind, kind)


def column_of(array: NDArray[Any], field: Any) -> Any:
    """Convert an output of a model to an Arrow array, with dimensions after the first one as lists."""
    import numpy as np
    import pyarrow as pa

    value = field.type
    while pa.types.is_list(value):
        value = value.value_type
    depth = _depth(field.type)
    if array.ndim - 1 != depth:
        raise ArgumentError(
            f"the model's output {field.name!r} has {array.ndim} dimensions, but its signature has {depth + 1}"
        )
    if pa.types.is_string(value):
        flat = pa.array([one.decode() if isinstance(one, bytes) else str(one) for one in array.ravel()], pa.string())
    else:
        flat = pa.array(np.ascontiguousarray(array).reshape(-1).astype(value.to_pandas_dtype(), copy=False), value)
    return nested_lists(flat, array.shape)


def nested_lists(flat: Any, shape: tuple[int, ...]) -> Any:
    """Return the values of an array of this shape as an Arrow array, with dimensions after the first one as lists."""
    import numpy as np
    import pyarrow as pa

    for size, count in _levels(shape):
        flat = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * size), flat)
    return flat


def _levels(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield length and number of the lists of each level, from the innermost."""
    for level in range(len(shape) - 1, 0, -1):
        yield shape[level], prod(shape[:level])


def _depth(kind: Any) -> int:
    """Return the number of list levels of an Arrow type."""
    import pyarrow as pa

    return 1 + _depth(kind.value_type) if pa.types.is_list(kind) else 0
