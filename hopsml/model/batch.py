"""Batch inference: ``hopsml.model.predict`` calls a model for the rows of a Spark or pandas DataFrame.

Each Python worker of Spark loads a model once and caches it for later tasks. Rows are transferred in Arrow format, and
columns are converted to arrays without a loop over rows. The rows in one call of a model are tuned on the first batches.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from hopsml.core.variables import SETTINGS
from hopsml.core.versions import PANDAS, check_installed
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model import columns, registry
from hopsml.model.columns import Binding, InputColumns
from hopsml.model.description import LATEST, ModelDescription, Signature
from hopsml.model.flavors import contract
from hopsml.model.flavors.contract import LoadedModel
from hopsml.model.version import Version
from hopsml.storage import trust
from hopsml.submission import spark_connect
from hopsml.training.data import push

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    Table = TypeVar("Table", DataFrame, pd.DataFrame)
else:
    Table = TypeVar("Table")

# Batch sizes that are tried, in rows of one call of a model.
FIRST = 256
FACTOR = 4
LARGEST = 65_536
WORTH = 1.05  # minimum speed-up that justifies a larger batch, which takes more memory
MOST_BYTES = 64 << 20  # maximum size of the inputs of one batch
SAMPLES = 2  # calls with each size; the fastest one counts
MOST_KEPT = 3  # cached models per process, as Spark and notebooks live for hours; least recently used ones go
_lock = threading.Lock()


def predict(
    df: Table,
    name: str,
    version: int | str = LATEST,
    batch_size: int | None = None,
    *,
    inputs: Mapping[str, str | Sequence[str]] | str | Sequence[str] | None = None,
    prefix: str = "",
    project: str | None = None,
) -> Table:
    """Return the rows with the model's outputs as additional columns, named as in its signature.

    The version is looked up, and the columns are compared with its signature, immediately; Spark computes the rows on
    demand. A column holds numbers or arrays of numbers; arrays may be nested like the tensor, or flat.

    Args:
        df: DataFrame of Spark or pandas.
        name: Name of the model.
        version: Version number, ``"latest"``, an alias, or ``"best"``; see ``find``.
        batch_size: Rows in one call of the model; by default the fastest size on the first rows.
        inputs: Name of an input -> its column, or the list of columns that are stacked; for a model with one input, the
            column or list alone. By default an input is read from the column of the same name; for a model with one
            input, from the only suitable column.
        prefix: Prefix of the names of the new columns.
        project: Name of another project.

    Raises:
        ModelNotFound: (LookupError) The model, version or alias does not exist.
        ArgumentError: (ValueError) A column is missing or has an unsuitable type, or the model has no signature or
            cannot be called.
        ArgumentTypeError: ``df`` is not a DataFrame.
    """
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise ArgumentError(
            f"batch_size={batch_size!r}: it must be a whole number from 1, or None to choose one automatically"
        )
    spark_connect.check_frame(df, "df")
    found = registry.find(name, version, project)
    signature = _signature(found)
    kind = type(df).__module__.partition(".")[0]
    if kind == "pandas" and getattr(df, "ndim", 0) == 2:
        return _on_pandas(df, found, signature, inputs, prefix, batch_size)
    if kind != "pyspark" or not hasattr(df, "mapInArrow"):
        raise ArgumentTypeError(f"df={df!r:.80} is a {type(df).__name__}; it must be a DataFrame of Spark or pandas")
    return _on_spark(df, found, signature, inputs, prefix, batch_size)


def _signature(version: Version) -> Signature:
    """Return the signature of a version."""
    signature = version.description.signature
    if signature is None:
        raise ArgumentError(
            f"version {version.version} of the model '{version.name}' has no signature, so its inputs are unknown; "
            "export the model with example=, or export a Keras model"
        )
    return signature


@dataclass(frozen=True)
class InferenceParameters:
    """Parameters of a batch inference, which are shipped to Spark's Python workers.

    Attributes:
        url: URL of the version's directory.
        description: Description of the version.
        bindings: Columns of each input.
        fields: Arrow fields of the appended columns.
        prefix: Prefix of the names of the appended columns.
        batch_size: Rows in one call of the model; None to determine it.
        cache: Folder for local copies of models; "" for the default.
        trusted: Users whose models the driver trusts.
        names: Original names of the columns if they are renamed for Spark.
    """

    url: str
    description: ModelDescription
    bindings: tuple[Binding, ...]
    fields: tuple[Any, ...]
    prefix: str
    batch_size: int | None
    cache: str
    trusted: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()


def _work(
    version: Version,
    signature: Signature,
    schema: Any,
    inputs: InputColumns | None,
    prefix: str,
    batch_size: int | None,
) -> InferenceParameters:
    """Return the parameters of the inference after comparing the columns with the signature."""
    bindings = columns.bind_inputs(signature, schema, inputs, contract.takes_missing(version.description))
    fields = columns.output_fields(signature, schema, prefix)
    return InferenceParameters(
        version.url,
        version.description,
        tuple(bindings),
        tuple(fields),
        prefix,
        batch_size,
        SETTINGS.model_cache,
        trust.trusted_owners(),
    )


def _on_pandas(
    df: Any, version: Version, signature: Signature, inputs: InputColumns | None, prefix: str, batch_size: int | None
) -> Any:
    """Return a pandas DataFrame with the predictions."""
    import pyarrow as pa

    check_installed(PANDAS)
    table = arrow_of(df)
    if df.empty and df.shape[1]:  # in this case pandas has no type of list elements, and there are no rows to compute
        if inputs is not None or len(signature.inputs) > 1 or next(iter(signature.inputs.values())).features:
            unknown = pa.schema([(name, pa.null()) for name in table.column_names])
            columns.bind_inputs(signature, unknown, with_text_names(inputs), takes_missing=True)
        fields = columns.output_fields(signature, table.schema, prefix)
        return df.assign(**{field.name: pa.array([], field.type).to_numpy(zero_copy_only=False) for field in fields})
    work = _work(version, signature, table.schema, with_text_names(inputs), prefix, batch_size)
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    whole = pa.Table.from_batches(
        predict_batches(batches, work, _loaded(work, 0)), pa.schema([*table.schema, *work.fields])
    )
    result = df.copy(deep=False)
    for field in work.fields:
        result[field.name] = whole.column(field.name).to_pandas().to_numpy()
    return result


def _on_spark(
    df: Any, version: Version, signature: Signature, inputs: InputColumns | None, prefix: str, batch_size: int | None
) -> Any:
    """Return a Spark DataFrame with the predictions."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    _check_session(df)
    push.check_pandas()
    work = _work(version, signature, to_arrow_schema(df.schema), inputs, prefix, batch_size)
    added = from_arrow_schema(pa.schema(work.fields))
    whole = StructType([*df.schema.fields, *added.fields])
    if any("." in name or "`" in name for name in df.columns):  # mapInArrow would parse the dot as a field access
        work = replace(work, names=tuple(df.columns))
        df = df.toDF(*(f"c{place}" for place in range(len(df.columns))))
    return df.mapInArrow(_body(work), whole)


def _check_session(df: Any) -> None:
    """Raise ArgumentError for a DataFrame whose Spark session has been stopped."""
    context = getattr(getattr(df, "sparkSession", None), "_sc", None)
    if context is not None and context._jsc is None:
        raise ArgumentError(
            "df is a DataFrame of a Spark session that has been stopped; create a session, by experiment.spark() or "
            "SparkSession.builder.getOrCreate(), and the DataFrame in it, and call predict again"
        )


def _body(work: InferenceParameters) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function for Spark's Python workers, which reports an error if hopsml is missing there.

    It imports hopsml only when it is called, so that it can be unpickled without hopsml.
    """
    shipped = pickle.dumps(work)

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            from hopsml.model.batch import predict_in_task
        except ImportError as error:
            import sys

            raise RuntimeError(
                f"hopsml.model.predict cannot compute here: {error} (in {sys.executable}, the Python of Spark's "
                "executors). hopsml and the packages of the model must be installed there; set PYSPARK_PYTHON to an "
                "environment with them on every node before the Spark session starts, or ship one with spark.archives"
            ) from None
        import pickle

        return predict_in_task(batches, pickle.loads(shipped))

    return rows


# ------------------------------------------------------------------------------------------ in Spark's Python worker


def predict_in_task(batches: Iterator[Any], work: InferenceParameters) -> Iterator[Any]:
    """Run a Spark task: add the predictions to each of its Arrow batches."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is not None and "gpu" in task.resources():
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(task.resources()["gpu"].addresses)
    cores = max(1, task.cpus()) if task is not None else 0
    first = next(batches, None)
    if first is not None:  # a task without rows does not load the model
        yield from predict_batches(_chained(first, batches), work, _loaded(work, cores))


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """Yield ``first``, then the rest."""
    yield first
    yield from rest


@dataclass
class _Kept:
    """Loaded model in this process, with the tuner of its batch size."""

    model: LoadedModel
    tuner: BatchTuner


_kept: dict[tuple[str, str, int | None], _Kept] = {}


def _loaded(work: InferenceParameters, cores: int) -> _Kept:
    """Return the version from the cache, loading it at the first call."""
    key = work.url, work.description.digest, work.batch_size
    with _lock:
        if key in _kept:
            _kept[key] = _kept.pop(key)  # move to the end: most recently used
        else:
            while len(_kept) >= MOST_KEPT:
                del _kept[next(iter(_kept))]
            if cores:
                contract.limit_threads(work.description, cores)
            files = Version(work.url, work.description).local_files(work.cache or None, work.trusted)
            model = contract.load(files, work.description)
            row_bytes = sum(8 * prod(size or 1 for size in binding.spec.shape[1:]) for binding in work.bindings)
            _kept[key] = _Kept(model, BatchTuner(row_bytes, work.batch_size))
        return _kept[key]


def predict_batches(batches: Iterable[Any], work: InferenceParameters, kept: _Kept) -> Iterator[Any]:
    """Yield each Arrow batch with the outputs of the model as additional columns.

    Args:
        batches: Arrow batches; empty ones are omitted.
        work: Parameters of the inference.
        kept: The loaded model.
    """
    import pyarrow as pa

    for batch in batches:
        if not batch.num_rows:
            continue
        if work.names:
            batch = pa.RecordBatch.from_arrays(batch.columns, list(work.names))
        parts = [_call(part, work, kept) for part in _parts(batch, kept.tuner)]
        arrays = [pa.concat_arrays([part[field.name] for part in parts]) for field in work.fields]
        schema = pa.schema([*batch.schema, *work.fields])
        yield pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=schema)


def _parts(batch: Any, tuner: BatchTuner) -> Iterator[Any]:
    """Yield slices of a batch, each with the tuner's current size."""
    done = 0
    while done < batch.num_rows:
        part = batch.slice(done, tuner.size)
        done += part.num_rows
        yield part


def _call(part: Any, work: InferenceParameters, kept: _Kept) -> dict[str, Any]:
    """Call the model for one slice, and return the outputs as Arrow arrays."""
    given = columns.model_inputs(work.bindings, part, contract.missing_replacements(kept.model))
    began = time.perf_counter()
    found = kept.model.predict(given)
    kept.tuner.record_call(part.num_rows, time.perf_counter() - began)
    arrays = {work.prefix + name: array for name, array in found.items()}
    return {field.name: columns.column_of(arrays[field.name], field) for field in work.fields}


class BatchTuner:
    """Tuner that enlarges batches while that increases the rows per second.

    Attributes:
        size: Number of rows for the next call.
        settled: True if the size is final.
    """

    def __init__(self, row_bytes: int, fixed: int | None = None) -> None:
        """Initialize the tuner with its first size.

        Args:
            row_bytes: Size of one row of inputs, in bytes.
            fixed: Size given by the user, which is not tuned.
        """
        self._most = max(1, min(LARGEST, MOST_BYTES // max(1, row_bytes)))
        self.size = fixed if fixed is not None else min(FIRST, self._most)  # rows of the next call
        self.settled = fixed is not None
        self._best, self._rate, self._seen = self.size, 0.0, list[float]()
        self._warm = False

    def record_call(self, rows: int, seconds: float) -> None:
        """Record the duration of a call; the first call, and calls with fewer rows than ``size``, are ignored."""
        if self.settled or rows != self.size:
            return
        if not self._warm:
            self._warm = True
            return
        self._seen.append(rows / max(seconds, 1e-9))
        if len(self._seen) < SAMPLES:
            return
        rate, self._seen = max(self._seen), []
        if rate < self._rate * WORTH:
            self.size, self.settled = self._best, True
            return
        self._best, self._rate = self.size, rate
        larger = min(self.size * FACTOR, self._most)
        self.settled = larger == self.size
        self.size = larger


# -- pandas


def with_text_names(inputs: Any) -> InputColumns | None:
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
        raise ArgumentError(f"the table has more than one column {str(twice)!r}; rename one of them, or drop it")
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
    return columns.mark_null_kind(field, missing[0] is not None)


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
            f"the column {str(column.name)!r} of the table has arrays of different shapes "
            f"({', '.join(map(str, shapes[:3]))}); give them one shape, for instance by padding"
        )
    stacked = np.stack(list(column))
    return columns.nested_lists(pa.array(stacked.reshape(-1)), stacked.shape)
