"""Table of a search's trials: columns from rows, and conversion to Parquet and pandas."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hopsml.cluster.shared.plain import as_json
from hopsml.search.metric import METRIC, name_of

PARAMS, METRICS = "params_", "metrics_"
_FIRST = (
    "number", "trial_id", "state", "value", "step", "seconds", "attempts", "failures", "lost", "parent", "error",
)  # fmt: skip


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return columns by name: facts of each trial, ``params_<name>``, ``metrics_<name>`` of its outputs.

    A column holds numbers, Booleans or texts of one kind; columns of several kinds, lists and dicts are converted to
    text.
    """
    params = _names(row["config"] for row in rows)
    metrics = _names(row["outputs"] for row in rows if isinstance(row.get("outputs"), dict))
    metrics = [name for name in metrics if name != "log"]
    table: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in _FIRST}
    table |= {PARAMS + name: _uniform([row["config"].get(name) for row in rows]) for name in params}
    for name in metrics:
        table[METRICS + name] = _uniform([_output(row, name) for row in rows])
    return table


def parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a Parquet file with the table."""
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns(rows)), sink)
    return sink.getvalue()


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the table as a pandas ``DataFrame``; imports pandas."""
    import pandas

    return pandas.DataFrame(columns(rows))


def outputs_of(row: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return a trial's outputs as the dict that the predecessor returned, in which a number is called "metric".

    For a trial that has returned nothing, as a stopped one, it has the last reported value of ``metric``.
    """
    outputs = row.get("outputs")
    if outputs is None:
        return {name_of(metric): row["value"]}
    return dict(outputs) if isinstance(outputs, dict) else {METRIC: outputs}


def summary(rows: Iterable[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return the predecessor's ``.summary.json``: every combination that has ended, with its outputs."""
    return {
        "combinations": [
            {"parameters": as_json(row["config"]), "outputs": as_json(outputs_of(row, metric))}
            for row in rows
            if row["state"] in ("completed", "stopped", "failed")
        ]
    }


def _output(row: Mapping[str, Any], name: str) -> Any:
    outputs = row.get("outputs")
    return outputs.get(name) if isinstance(outputs, dict) else None


def _names(dicts: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(name) for one in dicts for name in one))


def _uniform(values: list[Any]) -> list[Any]:
    plain = [as_json(value) for value in values]
    kinds = {type(value) for value in plain if value is not None}
    if kinds <= {int, float}:
        return [float(value) if value is not None and float in kinds else value for value in plain]
    if len(kinds) == 1 and kinds <= {bool, str}:
        return plain
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in plain]
