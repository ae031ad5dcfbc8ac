"""Flavor of scikit-learn: a pickled estimator, called by ``predict`` and, if it exists, ``predict_proba``.

A pickle runs code when it is loaded: ``Version.local_files`` rejects one whose owner is not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.model.description import ModelDescription, Signature, TensorSpec
from hopsml.model.flavors.contract import (
    LoadedModel,
    MissingValues,
    RefusedValuesError,
    SavedModel,
    UnsavableModel,
    on_chief,
    package_versions,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

INPUT = "X"
_FILE = "model.pickle"
keeps = on_chief
_MOST_PARTS = 10_000  # maximum number of inspected parts of an estimator
_DEEPEST = 12  # maximum nesting of parts: an object may refer to itself


def save(model: Any, folder: Path, example: Any) -> SavedModel:
    """Pickle an estimator by cloudpickle, including functions and classes of a notebook.

    Args:
        model: The fitted estimator.
        folder: Target folder.
        example: Inputs from which the signature is derived, or None.

    Raises:
        ArgumentError: The estimator is not fitted, or does not accept the example.
        UnsavableModel: The estimator cannot be pickled.
    """
    import cloudpickle

    _check_fitted(model)
    try:
        data = cloudpickle.dumps(model)
    except Exception as error:
        raise UnsavableModel(
            f"{type(model).__name__} cannot be pickled: {_culprit(model)} ({type(error).__name__}: {error}); remove "
            "objects of this process from that part, such as a file, a lock or a connection"
        ) from error
    (folder / _FILE).write_bytes(data)
    return SavedModel(
        {"sklearn": _FILE}, _signature(model, example), package_versions("sklearn", "numpy", "scipy", "cloudpickle")
    )


def _check_fitted(model: Any) -> None:
    """Check that an estimator of scikit-learn is fitted; the state of other classes cannot be checked."""
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    last = model
    while getattr(last, "steps", None):  # of a pipeline
        last = last.steps[-1][1]
    if not type(last).__module__.startswith("sklearn.") or not hasattr(last, "fit"):
        return
    try:
        check_is_fitted(last)
    except NotFittedError as error:
        raise ArgumentError(f"{type(last).__name__} has not been fitted: call fit() before export()") from error


def limit_threads(count: int) -> None:
    """Limit the threads of the numerical libraries that scikit-learn uses."""
    import sklearn  # noqa: F401 loads the libraries
    import threadpoolctl

    threadpoolctl.threadpool_limits(count)


def load(folder: Path, description: ModelDescription) -> LoadedModel:
    """Load a pickled estimator.

    Raises:
        ArgumentError: A package that the estimator requires is missing, or the version has no signature.
    """
    import pickle

    path = folder / description.artifacts["sklearn"]
    try:
        model = pickle.loads(path.read_bytes())
    except ImportError as error:
        raise ArgumentError(
            f"version {description.version} of the model '{description.name}' cannot be loaded here: {error}; it was made "
            f"with {', '.join(f'{name} {version}' for name, version in description.requirements.items())}"
        ) from error
    return _Estimator(model, description)


class _Estimator:
    """Loaded estimator with its signature."""

    def __init__(self, model: Any, description: ModelDescription) -> None:
        if description.signature is None:
            raise ArgumentError(
                f"version {description.version} of the model '{description.name}' has no signature; export it with example="
            )
        self._model, self.signature = model, description.signature
        self.missing = MissingValues(float("nan") if _learned_nan(model) else None)

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Call the methods of the estimator that the signature names."""
        import numpy as np

        rows = inputs[INPUT] if self.signature.inputs.keys() == {INPUT} else _table(inputs)
        try:
            found = _outputs(self._model, rows, self.signature.outputs)
        except Exception as error:
            if about := _about(error, inputs):
                raise RefusedValuesError(f"{about}: {type(error).__name__}: {error}") from error
            raise
        return {name: np.asarray(array) for name, array in found.items()}


def _about(error: Exception, inputs: Mapping[str, NDArray[Any]]) -> str:
    """Return the text that names the inputs with values that caused the estimator's error; "" if none did.

    Most estimators fail on a missing or infinite value, with various errors; for other values the text of their
    ValueError names the value.
    """
    missing = {name: row for name, array in inputs.items() if (row := _first_missing(array)) is not None}
    if missing:
        return "; ".join(
            f"input '{name}' has a missing or infinite value in row {row}, which the model does not accept"
            for name, row in missing.items()
        )
    if not isinstance(error, ValueError):
        return ""
    told = [name for name, array in inputs.items() if _is_told(array, str(error))]
    return f"the model does not accept the values of the input{'s' * (len(told or inputs) > 1)} " + ", ".join(
        f"'{name}'" for name in told or inputs
    )


def _first_missing(array: NDArray[Any]) -> int | None:
    """Return the first row with a missing or infinite value; None if there is none."""
    import numpy as np

    if array.dtype.kind == "f":
        bad = ~np.isfinite(array)
    elif array.dtype.kind == "O":
        bad = np.array([one is None or one != one for one in array.flat], bool).reshape(array.shape)
    else:
        return None
    return int(bad.reshape(len(array), -1).any(axis=1).argmax()) if bad.any() else None


def _is_told(array: NDArray[Any], text: str) -> bool:
    """Return True if an error names a text of the input, such as a category that an encoder does not know."""
    return array.dtype.kind == "O" and any(repr(one) in text for one in set(array.flat))


def _learned_nan(model: Any) -> bool:
    """Return True if the estimator has learned NaN as the missing value among texts, in categories or an imputer.

    Other estimators have learned None, or have seen no missing value.
    """
    seen, parts = set[int](), [model]
    while parts:
        part = parts.pop()
        if id(part) in seen or len(seen) > _MOST_PARTS:
            continue
        seen.add(id(part))
        if isinstance(part, (list, tuple)):
            parts += part
        elif isinstance(part, dict):
            parts += part.values()
        elif hasattr(part, "get_params"):
            if _holds_objects(getattr(part, "statistics_", None)) and _is_nan(getattr(part, "missing_values", None)):
                return True
            categories = getattr(part, "categories_", ())
            known = categories if isinstance(categories, (list, tuple)) else ()
            if any(_holds_objects(one) and any(map(_is_nan, one)) for one in known):
                return True
            parts += vars(part).values()
    return False


def _holds_objects(array: Any) -> bool:
    """Return True for an array of Python objects."""
    return getattr(getattr(array, "dtype", None), "kind", "") == "O"


def _is_nan(value: Any) -> bool:
    """Return True for a floating-point NaN."""
    return isinstance(value, float) and value != value


def _table(columns: Mapping[str, NDArray[Any]]) -> Any:
    """Return arrays as a pandas DataFrame."""
    import pandas as pd

    return pd.DataFrame(dict(columns), copy=False)


def _outputs(model: Any, rows: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Call the wanted methods of the estimator."""
    import numpy as np

    if (names := getattr(model, "feature_names_in_", None)) is not None:  # it warns of rows without column names
        import pandas as pd

        rows = pd.DataFrame(rows, columns=names, copy=False)
    found = {name: getattr(model, name)(rows) for name in wanted}
    # For several targets the probabilities are a list with one array per target.
    return {
        name: np.stack(one, axis=1) if isinstance(one, list) and _alike(one) else one for name, one in found.items()
    }


def _alike(parts: list[Any]) -> bool:
    """Return True if arrays have the same shape."""
    return all(getattr(part, "ndim", 0) > 0 for part in parts) and len({part.shape for part in parts}) == 1


def _signature(model: Any, example: Any) -> Signature | None:
    """Derive the signature from a call with the example, or with one row of zeros if the number of features is known.

    A table whose columns are not all numeric, and a dict of columns, have one input per column.
    """
    import numpy as np

    features = getattr(model, "n_features_in_", None)
    if example is None and features is None:
        return None
    wanted = {name: None for name in ("predict", "predict_proba") if hasattr(model, name)}
    if not wanted:
        if example is None:
            return None
        raise ArgumentError(
            f"{type(model).__name__} has neither predict nor predict_proba, so it cannot be served; omit example=, "
            "or export a pipeline that ends in an estimator"
        )
    if _has_columns(example):
        arrays = _columns(example, getattr(model, "feature_names_in_", None))
        taken = {name: TensorSpec(_dtype_of(array), (None,)) for name, array in arrays.items()}
        rows = _table(arrays)
    else:
        rows = np.zeros((1, int(features or 0))) if example is None else _array(example)
        names = tuple(map(str, getattr(model, "feature_names_in_", ())))
        taken = {INPUT: TensorSpec(_dtype_of(rows), (None, *rows.shape[1:]), names)}
    try:
        # Probabilities of targets with different numbers of classes cannot form an array.
        found = {
            name: one for name, one in _outputs(model, rows, wanted).items() if name == "predict" or _is_array(one)
        }
        found = {name: np.asarray(one) for name, one in found.items()}
    except Exception as error:
        if example is None:
            return None  # for example, a pipeline that takes text
        raise ArgumentError(f"the model does not accept the example: {type(error).__name__}: {error}") from error
    return Signature(taken, {name: _spec(value) for name, value in found.items()})


def _has_columns(example: Any) -> bool:
    """Return True if each column of the example is an input; a numeric table is one array."""
    if isinstance(example, Mapping):
        return example.keys() != {INPUT}
    return hasattr(example, "dtypes") and any(getattr(kind, "kind", "O") not in "biuf" for kind in example.dtypes)


def _columns(example: Any, names: Any) -> dict[str, NDArray[Any]]:
    """Return the columns by which the estimator was fitted, or all."""
    import pandas as pd

    table = pd.DataFrame(dict(example)) if isinstance(example, Mapping) else example
    missing = [str(name) for name in names if name not in table] if names is not None else []
    if missing:
        raise ArgumentError(
            f"example= has no column {missing[0]!r}, with which the model was fitted; it has "
            f"{', '.join(map(str, table))}"
        )
    found = {}
    for name in table.columns if names is None else names:
        column = table[name].dropna()
        if column.dtype == object:
            column = column.infer_objects()
        array = column.to_numpy(getattr(column.dtype, "numpy_dtype", None))
        if not _can_be_asked(array):
            raise ArgumentError(
                f"example=: the column {str(name)!r} is {column.dtype}; a request can contain only numbers, Booleans "
                "and texts; convert the column to one of these, and convert it back in the pipeline"
            )
        if len(column) < len(table):  # missing numbers are NaN
            array = _with_missing(table[name], array.dtype.kind)
        found[str(name)] = array
    return found


def _with_missing(column: Any, kind: str) -> NDArray[Any]:
    """Convert a column with missing values: NaN among numbers; None or NaN, unchanged, among texts and booleans."""
    import numpy as np
    import pandas as pd

    if kind in "iuf":
        return np.asarray(column.astype(object).where(column.notna(), float("nan")), float)
    array = np.array(column.to_numpy(object))
    array[[one is pd.NA for one in array]] = None
    return array


def _array(example: Any) -> NDArray[Any]:
    """Return the example as one array."""
    import numpy as np

    rows = example[INPUT] if isinstance(example, Mapping) else example
    extended = any(not isinstance(kind, np.dtype) for kind in getattr(rows, "dtypes", ()))
    found = rows.to_numpy(float, na_value=float("nan")) if extended else np.asarray(rows)
    if found.ndim and _can_be_asked(found):
        return found.astype(object) if found.dtype.kind in "US" else found
    raise ArgumentError(
        f"example={example!r:.80}: it must be rows of numbers, or of texts; for a table with both pass a "
        "pandas.DataFrame, or a dict of columns"
    )


def _can_be_asked(array: NDArray[Any]) -> bool:
    """Return True if a request can contain the values of an array."""
    return array.dtype.kind in "biufU" or (array.dtype.kind == "O" and all(isinstance(one, str) for one in array.flat))


def _dtype_of(array: NDArray[Any]) -> str:
    """Return the dtype of an input."""
    if array.dtype.kind in "biuf":
        return str(array.dtype)
    there = [one for one in array.flat if one is not None and not _is_nan(one)]
    return "bool" if there and all(isinstance(one, bool) for one in there) else "str"


def _is_array(value: Any) -> bool:
    """Return True if an output is one array, not a list of arrays."""
    return not isinstance(value, list) or all(not hasattr(part, "shape") for part in value)


def _spec(array: NDArray[Any]) -> TensorSpec:
    """Return the specification of an output."""
    dtype = "str" if array.dtype.kind in "OUS" and _can_be_asked(array.astype(object)) else str(array.dtype)
    return TensorSpec(dtype, (None, *map(int, array.shape[1:])))


def _culprit(model: Any) -> str:
    """Return the text that names the innermost part that cannot be pickled."""
    import cloudpickle

    def fails(part: Any) -> bool:
        try:
            cloudpickle.dumps(part)
        except Exception:  # noqa: BLE001 any exception of pickling
            return True
        return False

    place, part = "", model
    for _ in range(_DEEPEST):
        inner = next(((name, one) for name, one in _parts(part) if fails(one)), None)
        if inner is None:
            break
        place, part = f"{place}.{inner[0]}".lstrip("."), inner[1]
    return f"the part {place}" if place else "its own state"


def _parts(model: Any) -> list[tuple[str, Any]]:
    """Return the named parts of a model."""
    if isinstance(model, (list, tuple)):
        named = all(isinstance(one, tuple) and one and isinstance(one[0], str) for one in model)
        return [(one[0], one[1]) for one in model] if named else [(str(k), one) for k, one in enumerate(model)]
    return list(getattr(model, "__dict__", {}).items())
