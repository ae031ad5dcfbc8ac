"""Conversion of JSON values to checked arrays and back; error messages name the input and its type. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hopsml.core import suggestions
from hopsml.serving.receiving import bad_request

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopsml.model.description import TensorSpec
    from hopsml.model.flavors.contract import MissingValues
    from hopsml.serving.loaded_versions import Arrays

_FITTING = {"f": "fiu", "i": "iu", "u": "iu", "b": "b", "c": "fiuc"}  # kind of a dtype -> kinds it may be made of
_KINDS = {
    "f": "numbers",
    "i": "whole numbers",
    "u": "whole numbers",
    "b": "true and false",
    "U": "text",
    "O": "null, which NaN becomes in JSON",
}
TEXT = "str"


def parse_array(name: str, value: Any, tensor: TensorSpec, missing: MissingValues | None = None) -> NDArray[Any]:
    """Convert nested lists to an array of the input's dtype and shape.

    Args:
        name: Name of the input.
        value: Nested lists, or a single value.
        tensor: Dtype and shape of the input.
        missing: Replacements of null for a model that accepts missing values; None if no value may be missing.

    Raises:
        RequestRefused: (400) The value does not fit.
    """
    import numpy as np

    if tensor.dtype == TEXT:
        found = _of_texts(name, value, missing)
    else:
        try:
            found = np.asarray(value)
        except ValueError:
            raise bad_request(
                f"input '{name}': its rows differ in shape, but the model takes {describe_tensor(tensor)}"
            ) from None
        nulls = _nulls(found) if missing is not None and found.dtype.kind == "O" else np.zeros(0, bool)
        if missing is not None and nulls.any():
            found = _with_missing(name, found, nulls, np.dtype(tensor.dtype), missing)
        else:
            found = _cast(name, found, np.dtype(tensor.dtype))
    return check_shape(name, found, tensor)


def _nulls(found: NDArray[Any]) -> NDArray[Any]:
    """Return a mask of the objects that are None."""
    import numpy as np

    return np.asarray(np.frompyfunc(lambda one: one is None, 1, 1)(found), bool)


def _with_missing(
    name: str, found: NDArray[Any], nulls: NDArray[Any], wanted: Any, missing: MissingValues
) -> NDArray[Any]:
    """Check the present values, and insert NaN among numbers, or the model's missing value among booleans."""
    import numpy as np

    there = np.array(found[~nulls].tolist()) if not nulls.all() else np.zeros(0, wanted)
    there = _cast(name, there, wanted)
    if wanted.kind == "b":
        whole = np.full(found.shape, missing.other, object)
    else:
        whole = np.full(found.shape, np.nan, wanted if wanted.kind == "f" else np.float64)
    whole[~nulls] = there
    return whole


def _cast(name: str, found: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any]:  # type: ignore[name-defined]  # noqa: F821
    """Convert an array to a dtype, if no value is lost."""
    import numpy as np

    if found.size and found.dtype.kind not in _FITTING.get(wanted.kind, ""):
        holds = _KINDS.get(found.dtype.kind, str(found.dtype))
        raise bad_request(
            f"input '{name}': it contains {holds}, but the model takes {_KINDS.get(wanted.kind, '')} ({wanted.name})"
        )
    if wanted.kind in "iu" and found.size:
        limits = np.iinfo(wanted)
        if int(found.min()) < limits.min or int(found.max()) > limits.max:
            raise bad_request(
                f"input '{name}': its values from {found.min()} to {found.max()} do not fit into {wanted.name} "
                f"({limits.min} to {limits.max})"
            )
    with np.errstate(over="ignore"):
        cast = found.astype(wanted, copy=False)
    if wanted.kind == "f" and not np.isfinite(cast).all():
        raise bad_request(
            f"input '{name}': it contains a number outside of the range of {wanted.name} ({np.finfo(wanted).max:.4g})"
        )
    return np.ascontiguousarray(cast) if cast.ndim else cast


def _of_texts(name: str, value: Any, missing: MissingValues | None) -> NDArray[Any]:
    """Return an array of texts from nested lists; ``{"b64": ...}`` denotes bytes, as in TensorFlow Serving."""
    import numpy as np

    try:
        found = np.asarray(_decoded(value), object)
    except (ValueError, RecursionError):  # RecursionError: hundreds of nested lists
        raise bad_request(f"input '{name}': its rows differ in shape") from None
    if missing is not None:
        nulls = _nulls(found)
        found[nulls] = missing.other
    else:
        nulls = np.zeros(found.shape, bool)
    for wrong in (one for one in found[~nulls].flat if not isinstance(one, (str, bytes))):
        holds = "null" if wrong is None else f"{str(wrong)[:40]}, rows of different lengths perhaps"
        raise bad_request(f"input '{name}': it must contain text, but contains {holds}")
    return found


def _decoded(value: Any) -> Any:
    """Decode ``{"b64": ...}`` in nested lists."""
    import base64
    import binascii

    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if isinstance(value, dict) and value.keys() == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise bad_request(f"{{'b64': {str(value['b64'])[:40]!r}}}: the value is not base64") from None
    return value


def check_shape(name: str, array: NDArray[Any], tensor: TensorSpec) -> NDArray[Any]:
    """Return the array if it has the shape of the input.

    Raises:
        RequestRefused: (400) It has another shape, or no rows.
    """
    fits = len(array.shape) == len(tensor.shape) and all(
        wanted in (None, size) for size, wanted in zip(array.shape, tensor.shape, strict=True)
    )
    if not fits:
        raise bad_request(
            f"input '{name}': it has the shape {shape_text(array.shape)}, but the model takes {describe_tensor(tensor)}"
        )
    if array.shape and not array.shape[0]:
        raise bad_request(f"input '{name}': it has no rows")
    return array


def shape_text(shape: Iterable[int | None]) -> str:
    """Return a shape as text, such as ``(any, 64)``."""
    return f"({', '.join('any' if size is None else str(size) for size in shape)})"


def describe_tensor(tensor: TensorSpec) -> str:
    """Return dtype and shape as text, such as ``float32 (any, 64)``."""
    return f"{tensor.dtype} {shape_text(tensor.shape)}"


def check_input_names(given: Iterable[str], inputs: Mapping[str, TensorSpec]) -> None:
    """Check that exactly the model's inputs are given.

    Raises:
        RequestRefused: (400) An input is unknown or missing.
    """
    names = list(given)
    for name in names:
        if name not in inputs:
            raise bad_request(
                f"'{name[:80]}' is not an input of the model; {suggestions.suggestion_text(name, inputs, _listed(inputs))}"
            )
    missing = [name for name in inputs if name not in names]
    if missing:
        raise bad_request(f"input '{missing[0]}' is missing; {_listed(inputs)}")


def check_row_counts(arrays: Arrays) -> Arrays:
    """Return the arrays if all have the same number of rows.

    Raises:
        RequestRefused: (400) The numbers differ.
    """
    first, rows = next(((name, len(array)) for name, array in arrays.items() if array.ndim), ("", 0))
    for name, array in arrays.items():
        if array.ndim and len(array) != rows:
            raise bad_request(
                f"input '{name}' has {len(array)} rows, but '{first}' has {rows}; all inputs must have the same "
                "number of rows"
            )
    return arrays


def _listed(inputs: Mapping[str, TensorSpec]) -> str:
    """Return the text that lists the inputs of the model."""
    return "the model takes " + ", ".join(f"{name} ({describe_tensor(tensor)})" for name, tensor in inputs.items())


def to_json_value(array: NDArray[Any]) -> Any:
    """Convert an output to what orjson encodes with OPT_SERIALIZE_NUMPY: an array of numbers, or nested lists.

    Float types that orjson lacks become float64; bytes become text, or ``{"b64": ...}`` if they are not UTF-8.
    """
    import numpy as np

    if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 and array.dtype != np.float16:
        return np.ascontiguousarray(array)
    if array.dtype.kind in "OSU":
        return _texts(array.tolist())
    return array.astype(np.float64).tolist()


def _texts(value: Any) -> Any:
    """Convert texts and bytes in nested lists for JSON."""
    import base64

    if isinstance(value, list):
        return [_texts(one) for one in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    return value
