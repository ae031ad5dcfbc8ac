"""The result of a job: the run that its driver announced, with state and metrics; and that of any stored run."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from hopsml.errors import ArgumentError, PathNotFound
from hopsml.states import ENDS
from hopsml.storage import job_record, urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir
from hopsml.tracking import catalog


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


def ended(run: str, project_url: str) -> dict[str, Any] | None:
    """State, directory and metrics of a run, given by id, path or URL; None while it has not begun or ended.

    Raises StorageError.
    """
    directory = RunDir(run if "/" in run else urls.join(project_url, EXPERIMENTS, run))
    try:
        stored = catalog.read(directory, brief=True)
    except PathNotFound:
        return None
    if stored.state not in ENDS:
        return None
    return {**of_run(directory), "state": stored.state}


def checked_states(name: str, states: Collection[str]) -> tuple[str, ...]:
    """Names of end states, validated. Raises ArgumentError for an unknown one."""
    for state in states:
        if state not in ENDS:
            raise ArgumentError(f"{name}: {state!r} is no state in which a run ends; those are {', '.join(ENDS)}")
    return tuple(states)
