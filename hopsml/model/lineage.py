"""Lineage of a model: its run, the commit of its code and its data, as far as they are recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import PathNotFound, StorageError
from hopsml.model.description import Lineage
from hopsml.storage import urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir, parse_lines
from hopsml.tracking import code, inputs


def of_run(run_url: str, noted: list[dict[str, Any]] | None = None) -> Lineage:
    """Return the lineage from the record of a run.

    Args:
        run_url: URL of the run directory.
        noted: Inputs that the training function recorded and that may not be on the store yet; None to read them from
            the store.
    """
    directory = RunDir(run_url)
    around = _record(directory, directory.environment_json)
    repository = (around.get("code") or {}).get("git") or {}
    data = [*(around.get("inputs") or []), *(directory.read_lines(directory.inputs) if noted is None else noted)]
    return Lineage(directory.run_id, run_url, str(repository.get("commit", "")), repository.get("dirty"), _unique(data))


def of_worker(context: WorkerContext) -> Lineage:
    """Return the lineage in a worker: the run's record so far, with the inputs recorded in this process."""
    try:
        text = (context.events_dir.parent / "inputs.jsonl").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return of_run(context.run_url, parse_lines(text))


def of_driver() -> Lineage:
    """Return the lineage outside a run: the code of this process, and the inputs that it recorded."""
    script = code.script()
    repository, _ = code.git(script.parent if script is not None else Path.cwd())
    return Lineage("", "", str(repository.get("commit", "")), repository.get("dirty"), _unique(inputs.declared()))


def run_above(url: str) -> str:
    """Return the URL of the run directory that contains a file; "" if none does."""
    while (above := urls.parent(url)) != url and above not in ("", "."):
        if urls.name(above) == EXPERIMENTS:
            return url
        url = above
    return ""


def _record(directory: RunDir, url: str) -> dict[str, Any]:
    """Return the content of a run's JSON file; empty if it cannot be read."""
    try:
        return directory.read_json(url)
    except (PathNotFound, StorageError):  # it is written during the run; a missing lineage must not prevent the export
        return {}


def _unique(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each input once, as last recorded, as plain JSON."""
    found = {str(one.get("url", "")): one for one in data}
    return [json.loads(json.dumps(one, default=str)) for one in found.values()]
