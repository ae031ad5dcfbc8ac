"""``hopsml.model.predict``: a model called for the rows of a DataFrame, of Spark's on its executors, or of pandas.

Each Python worker of Spark's loads a model once and keeps it: tasks that come to it later find it there. Rows travel in
Arrow's form, and columns become arrays without being touched row by row.
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

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model import columns, pandas_tables, registry
from hopsml.model.batch_size import BatchTuner
from hopsml.model.columns import Binding, InputColumns
from hopsml.model.description import LATEST, ModelDescription, Signature
from hopsml.model.flavors import contract
from hopsml.model.flavors.contract import LoadedModel
from hopsml.model.version import CACHE, Version
from hopsml.storage import trust

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    Table = TypeVar("Table", DataFrame, pd.DataFrame)
else:
    Table = TypeVar("Table")


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
    """The rows with the model's outputs as further columns, named as its signature has them.

    The version is looked up and the columns are compared with its signature at once; rows are computed when Spark is asked
    for them. A column is a number, or an array of numbers, nested as the tensor is or flat.

    Args:
        df: a DataFrame of Spark's, or of pandas.
        name: the model.
        version: its number, ``"latest"``, an alias, ``"best"``; see ``find``.
        batch_size: rows of one call of the model; by default the size that is fastest on the first rows.
        inputs: input of the model -> its column, or the list of columns that are put side by side; of a model with one
            input the column or the list alone. By default the column of the input's name; for a model with one input the
            only column that fits.
        prefix: of the names of the new columns.
        project: another project, by its name.

    Raises:
        ModelNotFound: (LookupError) no such model, version or alias.
        ArgumentError: (ValueError) a column is missing, or its type is not what the model takes; the model has no
            signature, or is not of a kind that can be called.
    """
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise ArgumentError(f"batch_size={batch_size!r}: it must be a whole number from 1, or None to find one out")
    found = registry.find(name, version, project)
    signature = _signature(found)
    kind = type(df).__module__.partition(".")[0]
    if kind == "pandas" and getattr(df, "ndim", 0) == 2:
        return _on_pandas(df, found, signature, inputs, prefix, batch_size)
    if kind != "pyspark" or not hasattr(df, "mapInArrow"):
        raise ArgumentTypeError(
            f"df={df!r:.80} is a {type(df).__name__}; it must be a DataFrame of Spark's or of pandas"
        )
    return _on_spark(df, found, signature, inputs, prefix, batch_size)


def _signature(version: Version) -> Signature:
    signature = version.description.signature
    if signature is None:
        raise ArgumentError(
            f"version {version.version} of the model '{version.name}' has no signature, so no column can be its input; "
            "export it with example=, or a Keras model"
        )
    return signature


@dataclass(frozen=True)
class Inference:
    """What a Python worker needs to know; it travels with the task."""

    url: str
    description: ModelDescription
    bindings: tuple[Binding, ...]
    fields: tuple[Any, ...]  # Arrow's, of the columns that are appended
    prefix: str
    batch_size: int | None
    cache: str  # folder for copies of models; "" for the usual one
    trusted: frozenset[str] = frozenset()  # users whose models the driver believes
    names: tuple[str, ...] = ()  # of the columns, where they travel under others


def _work(
    version: Version,
    signature: Signature,
    schema: Any,
    inputs: InputColumns | None,
    prefix: str,
    batch_size: int | None,
) -> Inference:
    bindings = columns.bind(signature, schema, inputs, contract.takes_missing(version.description))
    fields = columns.output_fields(signature, schema, prefix)
    return Inference(
        version.url,
        version.description,
        tuple(bindings),
        tuple(fields),
        prefix,
        batch_size,
        os.environ.get(CACHE, ""),
        trust.trusted(),
    )


def _on_pandas(
    df: Any, version: Version, signature: Signature, inputs: InputColumns | None, prefix: str, batch_size: int | None
) -> Any:
    import pyarrow as pa

    table = pandas_tables.arrow_of(df)
    if df.empty and df.shape[1]:  # of lists pandas tells no type then, and there is nothing to compute
        if inputs is not None or len(signature.inputs) > 1 or next(iter(signature.inputs.values())).features:
            unknown = pa.schema([(name, pa.null()) for name in table.column_names])
            columns.bind(signature, unknown, pandas_tables.by_text(inputs), takes_missing=True)
        fields = columns.output_fields(signature, table.schema, prefix)
        return df.assign(**{field.name: pa.array([], field.type).to_numpy(zero_copy_only=False) for field in fields})
    work = _work(version, signature, table.schema, pandas_tables.by_text(inputs), prefix, batch_size)
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    whole = pa.Table.from_batches(predicted(batches, work, _loaded(work, 0)), pa.schema([*table.schema, *work.fields]))
    result = df.copy(deep=False)
    for field in work.fields:
        result[field.name] = whole.column(field.name).to_pandas().to_numpy()
    return result


def _on_spark(
    df: Any, version: Version, signature: Signature, inputs: InputColumns | None, prefix: str, batch_size: int | None
) -> Any:
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    work = _work(version, signature, to_arrow_schema(df.schema), inputs, prefix, batch_size)
    added = from_arrow_schema(pa.schema(work.fields))
    whole = StructType([*df.schema.fields, *added.fields])
    if any("." in name or "`" in name for name in df.columns):  # Spark's mapInArrow takes the dot for a field's
        work = replace(work, names=tuple(df.columns))
        df = df.toDF(*(f"c{place}" for place in range(len(df.columns))))
    return df.mapInArrow(_body(work), whole)


def _body(work: Inference) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What Spark ships to its Python workers: it can be read where there is no hopsml, and says so there."""
    shipped = pickle.dumps(work)

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            from hopsml.model.batch import in_task
        except ImportError as error:
            import sys

            raise RuntimeError(
                f"hopsml.model.predict cannot compute here: {error} (in {sys.executable}, the Python of Spark's executors). "
                "hopsml and what the model was exported with must be there: let PYSPARK_PYTHON name an environment that "
                "has them on every node before the Spark session begins, or ship one with spark.archives"
            ) from None
        import pickle

        return in_task(batches, pickle.loads(shipped))

    return rows


# ------------------------------------------------------------------------------------------ in Spark's Python worker


def in_task(batches: Iterator[Any], work: Inference) -> Iterator[Any]:
    """The body of a task: batches of Arrow's in, the same rows with their predictions out."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is not None and "gpu" in task.resources():
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(task.resources()["gpu"].addresses)
    cores = max(1, task.cpus()) if task is not None else 0
    first = next(batches, None)
    if first is not None:  # a task without rows loads nothing
        yield from predicted(_chained(first, batches), work, _loaded(work, cores))


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


@dataclass
class _Kept:
    """A model that this process has loaded, and the size of batches that was found for it."""

    model: LoadedModel
    tuner: BatchTuner


MOST_KEPT = 3  # models in one process, which Spark and notebooks keep for hours; those that were used longest ago go
_kept: dict[tuple[str, str, int | None], _Kept] = {}
_lock = threading.Lock()


def _loaded(work: Inference, cores: int) -> _Kept:
    """The version, loaded the first time. ``cores``: how many it may compute with, 0 for as many as there are."""
    key = work.url, work.description.digest, work.batch_size
    with _lock:
        if key in _kept:
            _kept[key] = _kept.pop(key)  # the newest is last
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


def predicted(batches: Iterable[Any], work: Inference, kept: _Kept) -> Iterator[Any]:
    """Each batch of Arrow's with the outputs of the model as further columns."""
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
    """Slices of a batch; each as long as the tuner says at that moment."""
    done = 0
    while done < batch.num_rows:
        part = batch.slice(done, tuner.size)
        done += part.num_rows
        yield part


def _call(part: Any, work: Inference, kept: _Kept) -> dict[str, Any]:
    given = columns.tensors(work.bindings, part, contract.missing_of(kept.model))
    began = time.perf_counter()
    found = kept.model.predict(given)
    kept.tuner.took(part.num_rows, time.perf_counter() - began)
    arrays = {work.prefix + name: array for name, array in found.items()}
    return {field.name: columns.column_of(arrays[field.name], field) for field in work.fields}
