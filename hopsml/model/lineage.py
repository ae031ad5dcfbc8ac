"""Where a model comes from: the run, the commit of its code, the data, as far as they are recorded."""

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
    """From a run's record. ``noted``: inputs that its function has noted and that may not be on the store yet."""
    directory = RunDir(run_url)
    around = _record(directory, directory.environment_json)
    repository = (around.get("code") or {}).get("git") or {}
    data = [*(around.get("inputs") or []), *(directory.read_lines(directory.inputs) if noted is None else noted)]
    return Lineage(directory.run_id, run_url, str(repository.get("commit", "")), repository.get("dirty"), _unique(data))


def of_worker(context: WorkerContext) -> Lineage:
    """Inside a run: its record so far, with the inputs that the function has noted in this process."""
    try:
        text = (context.events_dir.parent / "inputs.jsonl").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return of_run(context.run_url, parse_lines(text))


def of_driver() -> Lineage:
    """Outside of a run: the code that this process runs, and the inputs that it has noted."""
    script = code.script()
    repository, _ = code.git(script.parent if script is not None else Path.cwd())
    return Lineage("", "", str(repository.get("commit", "")), repository.get("dirty"), _unique(inputs.declared()))


def run_above(url: str) -> str:
    """URL of the run in whose directory a file lies; "" where it lies in none."""
    while (above := urls.parent(url)) != url and above not in ("", "."):
        if urls.name(above) == EXPERIMENTS:
            return url
        url = above
    return ""


def _record(directory: RunDir, url: str) -> dict[str, Any]:
    try:
        return directory.read_json(url)
    except (PathNotFound, StorageError):  # written while the run is under way; a model is worth more than its lineage
        return {}


def _unique(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each input once, as it was noted last; as plain JSON."""
    found = {str(one.get("url", "")): one for one in data}
    return [json.loads(json.dumps(one, default=str)) for one in found.values()]
