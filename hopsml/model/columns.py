"""Columns of a table and the tensors of a model's signature: which column is which input, and what comes out as columns.

Pure, over Arrow's schemas and arrays. Everything that a schema can tell is told before a row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from hopsml import suggestions
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model.description import Signature, TensorSpec
from hopsml.model.flavors.contract import MissingValues

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = str | Sequence[str]
InputColumns = Mapping[str, Columns] | Columns
_IS_NAN = b"hopsml.is_nan"  # in the metadata of a field
_WHERE = "printSchema() shows them"
_VECTOR = "is a vector of Spark's ML; pyspark.ml.functions.vector_to_array makes an array of it"


@dataclass(frozen=True)
class Binding:
    """One input, and the column that it is read from; several columns are put side by side."""

    name: str
    spec: TensorSpec
    columns: tuple[str, ...]


def bind(
    signature: Signature, schema: Any, given: InputColumns | None = None, takes_missing: bool = False
) -> list[Binding]:
    """Which columns (``schema``: pyarrow's) each input is read from.

    Given by the input's name, or alone where there is one input; else the column of the input's name; else the columns of
    the features' names; else, of a model with one input, the only column whose type fits. ``takes_missing``: whether values
    may be missing, so that whole numbers may come as float64. Raises ArgumentError naming the column or the input.
    """
    asked = _by_input(signature, given)
    for name in asked:
        if name not in signature.inputs:
            hint = suggestions.instead(name, signature.inputs, f"its inputs are {', '.join(signature.inputs)}")
            raise ArgumentError(f"inputs: the model has no input {name!r}; {hint}")
    found = []
    for name, spec in signature.inputs.items():
        if spec.shape[:1] and spec.shape[0] is not None:
            raise ArgumentError(
                f"the model's input {name!r} takes exactly {spec.shape[0]} rows at once; export it with "
                "a free first dimension"
            )
        columns = _columns_of(name, spec, schema, asked.get(name), len(signature.inputs) == 1, takes_missing)
        for column in columns:
            if why := _misfit(schema.field(column).type, spec, len(columns), takes_missing):
                raise ArgumentError(f"the column {column!r} cannot be the model's input {name!r}: {why}")
        if len(columns) > 1 and spec.shape[1:] not in ((len(columns),), (None,)):
            raise ArgumentError(f"the model's input {name!r} is {_shown(spec)}, and not made of {len(columns)} columns")
        found.append(Binding(name, spec, columns))
    return found


def _by_input(signature: Signature, given: InputColumns | None) -> Mapping[str, Columns]:
    """What was asked for each input. Raises ArgumentError, ArgumentTypeError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(signature.inputs) != 1:
            names = ", ".join(signature.inputs)
            raise ArgumentError(
                f"inputs={given!r:.80}: the model has several inputs, {names}; give each its column by name"
            )
        given = {name: given for name in signature.inputs}
    for name, asked in given.items():
        if not isinstance(asked, (str, Sequence)) or not all(isinstance(column, str) for column in asked):
            raise ArgumentTypeError(
                f"inputs: {name!r}: {asked!r:.80} is a {type(asked).__name__}; it must be a column's name, or a list of them"
            )
    return given


def _columns_of(
    name: str, spec: TensorSpec, schema: Any, given: Columns | None, is_only: bool, takes_missing: bool
) -> tuple[str, ...]:
    columns = (given,) if isinstance(given, str) else tuple(given or ())
    for column in columns:
        if column not in schema.names:
            raise ArgumentError(f"there is no column {column!r}; {suggestions.instead(column, schema.names, _WHERE)}")
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
        else f"and {', '.join(map(repr, fitting))} would all do" if fitting
        else f"and {vectors[0]!r} {_VECTOR}" if vectors
        else f"and no other column is {_shown(spec)}" if is_only and not spec.features
        else f"there are: {', '.join(schema.names)}"
    )  # fmt: skip
    several = "" if len(spec.shape) != 2 or spec.shape == (None, 1) else f", or [{spec.shape[1] or 'its'} columns]"
    raise ArgumentError(
        f"there is no column {name!r} for the model's input of that name, {why}; rename a column, or pass "
        f"inputs={{{name!r}: 'its column'{several}}}"
    )


def _is_vector(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind) and kind.get_field_index("indices") >= 0)


def _shown(spec: TensorSpec) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in spec.shape[1:])
    return f"{spec.dtype} of shape [{sizes}]" if sizes else f"one {spec.dtype} a row"


def _misfit(kind: Any, spec: TensorSpec, of: int, takes_missing: bool) -> str:
    """Why a column of this Arrow type, one of ``of`` that are put together, cannot be the tensor; "" if it can."""
    import pyarrow as pa

    depth, lists, value, size = len(spec.shape) - 1, 0, kind, None
    while pa.types.is_list(value) or pa.types.is_large_list(value) or pa.types.is_fixed_size_list(value):
        size = value.list_size if pa.types.is_fixed_size_list(value) else None
        lists, value = lists + 1, value.value_type
    if pa.types.is_dictionary(value):  # a category is its value
        value = value.value_type
    if pa.types.is_null(value) and takes_missing:
        return ""
    if _is_vector(value):
        return f"it {_VECTOR}"
    if not _takes(value, spec.dtype, takes_missing):
        return f"it is {kind}, and the model takes {_shown(spec)}"
    wanted = (0,) if of > 1 else tuple({depth, min(1, depth)})  # nested as the tensor, or flat
    if of == 1 and spec.shape[1:] == (1,):
        wanted = (0, 1)
    if lists not in wanted:
        return f"it is {kind}, and the model takes {_shown(spec)}"
    sizes = spec.shape[1:]
    if lists == 1 and size is not None and None not in sizes and size != prod(map(int, sizes)):  # type: ignore[arg-type]
        return f"its lists have {size} values, and the model takes {_shown(spec)}"
    return ""


def _takes(value: Any, dtype: str, takes_missing: bool) -> bool:
    """Whether values of an Arrow type become this dtype without losing what they are: no fractions to whole numbers.

    Whole numbers with missing ones among them are float64: whether all are whole is seen when they are read.
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


# ------------------------------------------------------------------------------------------ rows in, rows out


def tensors(bindings: Sequence[Binding], batch: Any, missing: MissingValues | None = None) -> dict[str, NDArray[Any]]:
    """Convert the rows of an Arrow batch to the signature's inputs. ArgumentError names the column and its row.

    ``missing``: the replacement of missing values; None: there must be none.
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


def with_missing(field: Any, is_nan: bool) -> Any:
    """Return an Arrow field that records if its nulls were NaN or None: scikit-learn distinguishes them among texts."""
    return field.with_metadata({_IS_NAN: b"1" if is_nan else b""})


def _missing_in(batch: Any, column: str, missing: MissingValues) -> MissingValues:
    is_nan = (batch.schema.field(column).metadata or {}).get(_IS_NAN)
    return missing if is_nan is None else MissingValues(float("nan") if is_nan else None)


def _tensor(column: Any, name: str, spec: TensorSpec, missing: MissingValues | None) -> NDArray[Any]:
    """With the lists as further dimensions."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, sizes, values = len(column), list[int](), column
    while True:
        is_list = pa.types.is_nested(values.type)
        if values.null_count and (is_list or missing is None):
            raise ArgumentError(
                f"the column {name!r} has no value in {_first_null(column)}; fill it, or leave such rows out"
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
                    f"the column {name!r} has lists of {least} to {most} values; the model takes {_shown(spec)}, the same "
                    "for all rows of a batch: pad them"
                )
            sizes.append(int(least or 0))
        values = values.flatten()
    dtype = np.dtype(object) if spec.dtype == "str" else _dtype(spec.dtype)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type):
        values = values.cast(pa.string() if spec.dtype == "str" else pa.float64())
    if pa.types.is_decimal(values.type):  # as numbers with a point are in Spark's SQL
        values = values.cast(pa.float64())
    array = values.to_numpy(zero_copy_only=False)
    if missing is not None and values.null_count and array.dtype.kind == "O":
        array = np.where(values.is_null().to_numpy(zero_copy_only=False), missing.other, array)
    if array.dtype.kind in "iuf" and dtype.kind in "iu" and array.size:
        _check_whole(array, dtype, name, spec)
    if not (array.dtype.kind == "f" and dtype.kind in "biu" and np.isnan(array).any()) and dtype.kind != "b":
        array = array.astype(dtype, copy=False)  # otherwise unchanged, with NaN or objects among them
    found: NDArray[Any] = array.reshape(rows, *sizes)
    return found


def _check_whole(array: NDArray[Any], dtype: Any, name: str, spec: TensorSpec) -> None:
    """Raise ArgumentError for numbers that are not whole, or outside of the dtype's range."""
    import numpy as np

    limits = np.iinfo(dtype)
    there = array if array.dtype.kind != "f" else array[~np.isnan(array)]
    if not there.size:
        return
    if array.dtype.kind == "f" and (broken := there[(there != np.floor(there)) | np.isinf(there)]).size:
        raise ArgumentError(f"the column {name!r} holds {broken[0]}, and the model takes {_shown(spec)}")
    least, most = int(there.min()), int(there.max())
    if least < limits.min or most > limits.max:
        raise ArgumentError(
            f"the column {name!r} holds {most if most > limits.max else least}, and the model takes {_shown(spec)}, "
            f"{limits.min} to {limits.max}"
        )


def _dtype(name: str) -> Any:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # bfloat16 and the like; TensorFlow and JAX bring it

        return np.dtype(getattr(ml_dtypes, name))


def _first_null(column: Any) -> str:
    for number, value in enumerate(column.to_pylist()):
        if value is None or (isinstance(value, list) and _holds_none(value)):
            return f"row {number} of a batch"
    return "a row"


def _holds_none(values: list[Any]) -> bool:
    return any(one is None or (isinstance(one, list) and _holds_none(one)) for one in values)


def _shaped(array: NDArray[Any], binding: Binding) -> NDArray[Any]:
    wanted = binding.spec.shape[1:]
    found = array.shape[1:]
    if len(found) == len(wanted) and all(size in (None, is_) for size, is_ in zip(wanted, found, strict=True)):
        return array
    free = sum(size is None for size in wanted)
    known = prod(size for size in wanted if size is not None)
    values = prod(found)
    if free > 1 or (values != known if not free else values % max(1, known)):
        raise ArgumentError(
            f"the column {binding.columns[0]!r} has {values} values a row; the model's input {binding.name!r} is "
            f"{_shown(binding.spec)}"
        )
    return array.reshape(len(array), *(values // max(1, known) if size is None else size for size in wanted))


def output_fields(signature: Signature, schema: Any, prefix: str) -> list[Any]:
    """Arrow's fields of the columns that are appended. Raises ArgumentError where one is there already."""
    import pyarrow as pa

    found = []
    for name, spec in signature.outputs.items():
        column = prefix + name
        if column in schema.names:
            raise ArgumentError(
                f"the output {name!r} would be a second column {column!r}; pass prefix='predicted_' or so"
            )
        kind = pa.string() if spec.dtype == "str" else _arrow_type(spec.dtype)
        for _ in spec.shape[1:]:
            kind = pa.list_(kind)
        found.append(pa.field(column, kind))
    return found


def _arrow_type(dtype: str) -> Any:
    import numpy as np
    import pyarrow as pa

    if dtype in ("bfloat16", "float16"):  # Spark knows neither
        return pa.float32()
    try:
        kind = pa.from_numpy_dtype(np.dtype(dtype))
    except (TypeError, pa.ArrowNotImplementedError) as error:
        raise ArgumentError(f"an output of the model is {dtype}, which no column can hold") from error
    unsigned = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}  # Spark knows none
    return unsigned.get(kind, kind)


def column_of(array: NDArray[Any], field: Any) -> Any:
    """An output of a model as an Arrow array, its further dimensions as lists."""
    import numpy as np
    import pyarrow as pa

    value = field.type
    while pa.types.is_list(value):
        value = value.value_type
    depth = _depth(field.type)
    if array.ndim - 1 != depth:
        raise ArgumentError(f"the model's output {field.name!r} has {array.ndim} dimensions, its signature {depth + 1}")
    if pa.types.is_string(value):
        flat = pa.array([one.decode() if isinstance(one, bytes) else str(one) for one in array.ravel()], pa.string())
    else:
        flat = pa.array(np.ascontiguousarray(array).reshape(-1).astype(value.to_pandas_dtype(), copy=False), value)
    return nested(flat, array.shape)


def nested(flat: Any, shape: tuple[int, ...]) -> Any:
    """The values of an array of this shape as an Arrow array, the dimensions behind the first one as lists."""
    import numpy as np
    import pyarrow as pa

    for size, count in _levels(shape):
        flat = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * size), flat)
    return flat


def _levels(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Length and number of the lists of each level, the innermost first."""
    for level in range(len(shape) - 1, 0, -1):
        yield shape[level], prod(shape[:level])


def _depth(kind: Any) -> int:
    import pyarrow as pa

    return 1 + _depth(kind.value_type) if pa.types.is_list(kind) else 0
