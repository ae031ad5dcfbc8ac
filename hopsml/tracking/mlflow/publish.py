"""Steps of sending a run to MLflow: begin it, complete it from its run directory, register its model.

Each step can be repeated at any time, by any process: it finds the existing state.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hopsml.core import redact
from hopsml.core.states import Lifecycle
from hopsml.errors import PathNotFound
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import SYSTEM_METRICS, RunDir
from hopsml.tracking import catalog
from hopsml.tracking.catalog import StoredRun
from hopsml.tracking.mlflow import entries, order
from hopsml.tracking.mlflow.entries import Row
from hopsml.tracking.mlflow.order import Order
from hopsml.tracking.mlflow.store import MlflowRefused, MlflowUnreachable, Store

ARTIFACT = "hopsml.json"
_SYSTEM_FILE = re.compile(r"^g\d+-rank(\d+)" + re.escape(SYSTEM_METRICS) + "$")


def open_run(store: Store, wanted: Order, directory: RunDir, record: Mapping[str, Any]) -> Order:
    """Open the run in MLflow, with its parent, arguments and references; returns the order with MLflow's id."""
    started = float(record.get("started") or 0.0)
    experiment = _experiment(store, wanted)
    parent = _parent(store, wanted, experiment, record) or wanted.parent_run_id
    tags = entries.tags(directory.url, record, referenced_folders(directory))
    if parent:
        tags["mlflow.parentRunId"] = parent
    run_id = store.open_run(experiment, order.run_key(directory.url), wanted.run_name, tags, started)
    opened = replace(wanted, run_id=run_id, experiment_id=experiment)
    store.log(run_id, entries.params(record.get("arguments") or {}), tags)
    return opened


def complete_run(store: Store, wanted: Order, directory: RunDir, *, history: bool) -> tuple[Order, list[str]]:
    """Send everything from the run directory that is not in MLflow yet, and end the run there.

    Args:
        store: MLflow's client.
        wanted: the run's order.
        directory: the run directory.
        history: send the reports, too, because not all of them were sent during the run.

    Returns:
        The order with the state ``SENT``, and messages about steps that failed.
    """
    stored = catalog.read(directory)
    notes: list[str] = []
    opened = open_run(store, wanted, directory, stored.run) if history or not wanted.run_id else wanted
    run_id, experiment = opened.run_id, opened.experiment_id
    reports = directory.read_json_lines(directory.metrics)
    if history:
        store.log(run_id, rows=entries.report_rows(reports))
        for rank, lines in read_system_metrics(directory):
            store.log(run_id, rows=entries.system_rows(rank, lines))
    ended = _ended(stored)
    last_step = max((int(line["step"]) for line in reports if isinstance(line.get("step"), int)), default=0)
    store.log(run_id, rows=entries.metric_rows(stored.outputs, ended, last_step))
    log_evaluation(store, opened, entries.report_rows(reports))  # all: the evaluated run may be new in MLflow
    notes += _attach(store, run_id, directory)
    if opened.register_as and stored.state == Lifecycle.FINISHED:
        notes += _register(store, opened, directory)
    store.log(run_id, tags=entries.tags_at_end(stored.state, stored.status or {}, stored.environment))
    store.finish(run_id, entries.mlflow_status(stored.state), ended)
    store.delete_duplicate_runs(experiment, order.run_key(directory.url), run_id)
    _finish_parent(store, opened, ended)
    return replace(opened, state=order.SENT, note="; ".join(notes)), notes


def log_evaluation(store: Store, wanted: Order, rows: Sequence[Row]) -> None:
    """Log an evaluator's metrics also in the run whose checkpoints it evaluates, if that is on the same server."""
    if not wanted.evaluates or not rows:
        return
    judged = order.read(RunDir(wanted.evaluates))
    if judged is not None and judged.run_id and judged.tracking_uri == redact.text(wanted.tracking_uri):
        with contextlib.suppress(MlflowRefused):  # the evaluated run was deleted there, which must not fail this one
            store.log(judged.run_id, rows=entries.evaluation_rows(rows, wanted.evaluates_as))


def register_export(store: Store, name: str, directory: RunDir, run_id: str) -> str:
    """Register the run's export directory as a version of the model ``name``, and return the version's number."""
    tags = {"hopsml.run_id": directory.run_id, "hopsml.run_dir": directory.url}
    return store.register_version(name, directory.export, run_id, tags)


def referenced_folders(directory: RunDir) -> dict[str, str]:
    """Return name -> URL of the folders to which MLflow refers instead of holding copies."""
    return {
        "events": directory.events,
        "checkpoints": directory.checkpoints,
        "export": directory.export,
        "logs": directory.logs,
    }


def read_system_metrics(directory: RunDir) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return rank and system metrics of every worker whose agent wrote any."""
    try:
        names = [entry.name for entry in filesystem.for_url(directory.logs).list_dir(directory.logs)]
    except PathNotFound:
        return []
    found = [(match, name) for name in names if (match := _SYSTEM_FILE.match(name))]
    return [(int(match.group(1)), directory.read_json_lines(urls.join(directory.logs, name))) for match, name in found]


def _experiment(store: Store, wanted: Order) -> str:
    """Return the id of the experiment: the parent's if there is one, since MLflow nests only within one experiment."""
    if wanted.parent_run_id:
        return store.run_experiment_id(wanted.parent_run_id)
    if wanted.experiment_id:
        return wanted.experiment_id
    return store.experiment_id(wanted.experiment)


def _parent(store: Store, wanted: Order, experiment: str, record: Mapping[str, Any]) -> str:
    """Return the run above the members of a group; the first member opens it."""
    group = wanted.group
    if group is None:
        return ""
    tags = {
        "hopsml.verb": str(record.get("verb")),
        "hopsml.application": str(record.get("application")),
        "hopsml.combinations": str(group.count),
        "hopsml.state": "RUNNING",
    }
    if wanted.parent_run_id:
        tags["mlflow.parentRunId"] = wanted.parent_run_id
    return store.open_run(experiment, group.key, group.name, tags, float(record.get("started") or 0.0))


def _finish_parent(store: Store, opened: Order, ended: float) -> None:
    """End the group's run with the last member, or at once if one failed."""
    if opened.group is None or opened.group.ends_itself:
        return
    for parent in store.find_runs(opened.experiment_id, opened.group.key)[:1]:
        members = store.ended_child_statuses(opened.experiment_id, parent)
        status = entries.group_status(members, opened.group.count)
        if status != "RUNNING":
            state = Lifecycle.CANCELLED if status == "KILLED" else status
            store.log(parent, tags={"hopsml.state": state})
            store.finish(parent, status, ended)


def _ended(stored: StoredRun) -> float:
    """Return when the run ended; for a lost one, when something last changed in its directory."""
    if stored.status is not None:
        return float(stored.status.get("ended") or 0.0)
    return catalog.last_change_s(stored.directory)


def _attach(store: Store, run_id: str, directory: RunDir) -> list[str]:
    """Write the references as an artifact of the run, and return messages about a failure.

    Artifact stores can fail independently, and the same data is in the tags, so this is no reason to wait. A server
    that is unreachable fails the next step.
    """
    content = {"run_id": directory.run_id, "run_dir": directory.url, **referenced_folders(directory)}
    try:
        store.log_text(run_id, ARTIFACT, json.dumps(content, indent=1) + "\n")
    except (MlflowUnreachable, MlflowRefused) as error:
        return [f"the artifact {ARTIFACT} could not be written ({error})"]
    return []


def _register(store: Store, opened: Order, directory: RunDir) -> list[str]:
    try:
        if not filesystem.for_url(directory.export).list_dir(directory.export):
            raise PathNotFound(f"{directory.export} is empty", directory.export)
    except PathNotFound:
        return [
            f"no model '{opened.register_as}' was registered, since the run exported nothing into {directory.export}"
        ]
    try:
        register_export(store, opened.register_as, directory, opened.run_id)
    except MlflowRefused as error:
        return [f"no model '{opened.register_as}' was registered: {error}"]
    return []
