"""The result of a job: the run that its driver announced, with state and metrics."""

from __future__ import annotations

import json
from typing import Any

from hopsml.errors import PathNotFound
from hopsml.storage import job_record
from hopsml.storage.run_dir import RunDir


def of_record(url: str, application: str | None = None) -> dict[str, Any]:
    """``run_dir``, ``run_id``, ``state``, ``metrics``, ``error`` of the run that was announced at ``url``.

    Empty if nothing was announced, or by another ``application`` than this. Raises StorageError.
    """
    record = job_record.read(url)
    if record is None or (application is not None and record.get("application") != application):
        return {}
    return of_run(RunDir(str(record["run_dir"])))


def of_run(directory: RunDir) -> dict[str, Any]:
    """State, directory and metrics of a run; ``state`` is empty as long as it has not ended."""
    status = directory.read_status() or {}
    try:
        metrics = directory.read_json(directory.outputs_json)
    except PathNotFound:
        metrics = {}
    metrics.pop("log", None)
    return {
        "run_dir": directory.url,
        "run_id": directory.run_id,
        "state": status.get("state", ""),
        "error": status.get("error", ""),
        "metrics": metrics,
    }


def of_log(text: str) -> dict[str, Any]:
    """The JSON object in the last line of the output as metrics, for a script that made no run; {} if there is none."""
    lines = text.rstrip().splitlines()
    try:
        metrics = json.loads(lines[-1]) if lines else {}
    except ValueError:
        metrics = {}
    return metrics if isinstance(metrics, dict) else {}
