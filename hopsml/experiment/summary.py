"""The end of a run for people: a dozen lines; and for scripts: one JSON line."""

from __future__ import annotations

import json
from typing import Any, Protocol

from hopsml.experiment.plain import as_json
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir, step_of


class Finished(Protocol):
    """What is told of a run: a ``Result``."""

    run_id: str
    run_dir: str
    state: str
    seconds: float
    workers: list[dict[str, Any]]
    ring_order: list[str]
    metrics: dict[str, Any]
    merge_scope: int | str
    scoped_allocator: bool
    steps_per_second: float


def text(result: Finished) -> str:
    """Workers and their slots, ring order, merge setting, speed, metrics, and what lies in the run directory.

    The last line is ``json_line``, so that a script can read it.
    """
    directory = RunDir(result.run_dir)
    rows = [
        ("state", f"{result.state} after {result.seconds:.1f} s"),
        ("workers", f"{len(result.workers)}: " + ", ".join(_slot(worker) for worker in result.workers)),
        ("ring order", " -> ".join(result.ring_order)),
        ("merging", _merging(result)),
        ("speed", f"{result.steps_per_second:.1f} steps/s" if result.steps_per_second else "no steps were reported"),
        *((name, _short(value)) for name, value in result.metrics.items() if name != "log"),
        ("run directory", result.run_dir),
        ("  events", _files(directory.events)),
        ("  checkpoints", _checkpoints(directory.checkpoints)),
        ("  logs", _files(directory.logs)),
        ("  result", "status.json, .outputs.json"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join([*(f"{name:{width}}  {value}" for name, value in rows), json_line(result)])


def json_line(result: Finished, **more: Any) -> str:
    """One line: the metrics, ``workers`` (how many), ``run_id``, ``run_dir``, ``state`` and whatever is added."""
    content = {
        **{name: value for name, value in result.metrics.items() if name != "log"},
        "workers": len(result.workers),
        "ring_order": result.ring_order,
        "merge_scope": result.merge_scope,
        "steps_per_second": round(result.steps_per_second, 2),
        "seconds": result.seconds,
        "run_id": result.run_id,
        "run_dir": result.run_dir,
        "state": result.state,
        **more,
    }
    return json.dumps(as_json(content))


def _slot(worker: dict[str, Any]) -> str:
    gpus = ",".join(map(str, worker["gpu_indices"]))
    return (
        f"rank {worker['rank']} on {worker['host']} (executor {worker['executor']}, {f'GPU {gpus}' if gpus else 'CPU'})"
    )


def _merging(result: Finished) -> str:
    scope = result.merge_scope
    words = {1: "no merging, one collective a gradient", "all": "all gradients in one collective"}
    how = "by the scoped allocator" if result.scoped_allocator else "by concatenation"
    return f"merge scope {scope}: {words.get(scope) or f'{scope} gradients in one collective, {how}'}"


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)[:100]


def _files(url: str) -> str:
    found = [file for file in _walk(url) if not file.is_dir]
    kilobytes = sum(file.length for file in found) / 1000
    return f"{len(found)} files, {kilobytes:.0f} kB"


def _checkpoints(url: str) -> str:
    steps = sorted(step for file in _list(url) if (step := step_of(urls.name(file.url))) is not None)
    return f"{len(steps)}, the last at step {steps[-1]}" if steps else "none"


def _walk(url: str) -> list[filesystem.FileStatus]:
    return list(filesystem.walk(url)) if filesystem.exists(url) else []


def _list(url: str) -> list[filesystem.FileStatus]:
    return filesystem.for_url(url).list_dir(url) if filesystem.exists(url) else []
