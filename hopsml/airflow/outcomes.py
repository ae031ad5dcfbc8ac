"""Results of jobs and of stored runs: the run's directory, state and metrics."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from hopsml.core.states import ENDS
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import job_record, urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir
from hopsml.tracking import catalog


def of_record(url: str, application: str | None = None) -> dict[str, Any]:
    """Return the result of the run that a driver has recorded at ``url``, with the keys of ``of_run``.

    Args:
        url: the record's file.
        application: YARN's application id that the record must have; None: any.

    Returns:
        The result; empty if there is no record, or that of another application.

    Raises:
        StorageError: the store cannot be read.
    """
    record = job_record.read(url)
    if record is None or (application is not None and record.get("application") != application):
        return {}
    return of_run(RunDir(str(record["run_dir"])))


def of_run(directory: RunDir) -> dict[str, Any]:
    """Return ``run_dir``, ``run_id``, ``state``, ``error`` and ``metrics`` of a run.

    ``state`` is empty until it has ended.
    """
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
    """Return the JSON object in the last line of the output as metrics, for a script without a run.

    Empty if there is none.
    """
    lines = text.rstrip().splitlines()
    try:
        metrics = json.loads(lines[-1]) if lines else {}
    except ValueError:
        metrics = {}
    return metrics if isinstance(metrics, dict) else {}


def ended(run: str, project_url: str) -> dict[str, Any] | None:
    """Return the result of a run, with the keys of ``of_run``; None while it has not begun or not ended.

    Args:
        run: id, path or URL of the run.
        project_url: project in which ids are resolved.

    Raises:
        StorageError: the store cannot be read.
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
    """Validate the names of end states, and return them. Raises ArgumentError for an unknown one."""
    for state in states:
        if state not in ENDS:
            raise ArgumentError(f"{name}: {state!r} is no state in which a run ends; those are {', '.join(ENDS)}")
    return tuple(states)
