"""The end of a run for people: a dozen lines; and for scripts: one JSON line."""

from __future__ import annotations

import json
from typing import Any, Protocol

from hopsml.cluster.shared.plain import as_json
from hopsml.errors import StorageError
from hopsml.experiment import in_force, last_records
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir, step_of
from hopsml.tracking import strict_json

_RECORDS = ("status.json", ".outputs.json")


class EndedRun(Protocol):
    """What a summary needs of a run that has ended: a ``Result``."""

    run_id: str
    run_dir: str
    state: str
    seconds: float
    workers: list[dict[str, Any]]
    ring_order: list[str]
    metrics: dict[str, Any]
    in_force: dict[str, Any]
    steps_per_second: float
    unrecorded: dict[str, str]


def text(result: EndedRun) -> str:
    """Workers and their slots, ring order, merge setting, speed, metrics, and what lies in the run directory.

    The last line is ``json_line``, so that a script can read it. Of several combinations the summary of each.
    """
    if several := getattr(result, "runs", None):
        return "\n\n".join([*map(text, several), f"run directory of all {len(several)}  {result.run_dir}"])
    warning = in_force.warning(result.in_force)
    rows = [
        *([("WARNING", warning)] if warning else []),
        *([("WARNING", last_records.words(result.unrecorded))] if result.unrecorded else []),
        ("state", f"{result.state} after {result.seconds:.1f} s"),
        ("workers", f"{len(result.workers)}: " + ", ".join(_slot(worker) for worker in result.workers)),
        ("ring order", " -> ".join(result.ring_order)),
        ("merging", in_force.merging(result.in_force)),
        ("speed", f"{result.steps_per_second:.1f} steps/s" if result.steps_per_second else "no steps were reported"),
        *((name, _short(value)) for name, value in result.metrics.items() if name != "log"),
        ("run directory", result.run_dir),
        *_contents(RunDir(result.run_dir)),
        ("  result", ", ".join(name for name in _RECORDS if name not in result.unrecorded) or "not recorded"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join([*(f"{name:{width}}  {value}" for name, value in rows), json_line(result)])


def json_line(result: EndedRun, **more: Any) -> str:
    """One line: the metrics, ``workers`` (how many), ``run_id``, ``run_dir``, ``state`` and whatever is added; a loss that
    is no number any more is the text "NaN" (``hopsml.tracking.strict_json``).

    Of several combinations: ``runs``, a list of those, and what there is of them all.
    """
    if several := getattr(result, "runs", None):
        runs = [json.loads(json_line(one)) for one in several]
        whole = {"runs": runs, "run_id": result.run_id, "run_dir": result.run_dir, "state": result.state}
        return strict_json.dumps(as_json({**whole, **more}), ascii_only=True)
    content = {
        **{name: value for name, value in result.metrics.items() if name != "log"},
        "workers": len(result.workers),
        "ring_order": result.ring_order,
        "in_force": result.in_force,
        "steps_per_second": round(result.steps_per_second, 2),
        "seconds": result.seconds,
        "run_id": result.run_id,
        "run_dir": result.run_dir,
        "state": result.state,
        **more,
    }
    return strict_json.dumps(as_json(content), ascii_only=True)


def _contents(directory: RunDir) -> list[tuple[str, str]]:
    """What lies there, as far as the store says it."""
    try:
        return [
            ("  events", _files(directory.events)),
            ("  checkpoints", _checkpoints(directory.checkpoints)),
            ("  logs", _files(directory.logs)),
            *([("  artifacts", _names(directory))] if files_below(directory.artifacts) else []),
        ]
    except StorageError as error:
        return [("  files", str(error))]


def _slot(worker: dict[str, Any]) -> str:
    gpus = ",".join(map(str, worker["gpu_indices"]))
    return (
        f"rank {worker['rank']} on {worker['host']} (executor {worker['executor']}, {f'GPU {gpus}' if gpus else 'CPU'})"
    )


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)[:100]


def _files(url: str) -> str:
    found = files_below(url)
    kilobytes = sum(file.length for file in found) / 1000
    return f"{len(found)} files, {kilobytes:.0f} kB"


def _checkpoints(url: str) -> str:
    steps = sorted(step for file in _list(url) if (step := step_of(urls.name(file.url))) is not None)
    return f"{len(steps)}, the last at step {steps[-1]}" if steps else "none"


def _names(directory: RunDir) -> str:
    names = [file.url.removeprefix(directory.artifacts).lstrip("/") for file in files_below(directory.artifacts)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def files_below(url: str) -> list[filesystem.FileStatus]:
    """All files of a folder, which need not be there."""
    return [file for file in filesystem.walk(url) if not file.is_dir] if filesystem.exists(url) else []


def _list(url: str) -> list[filesystem.FileStatus]:
    return filesystem.for_url(url).list_dir(url) if filesystem.exists(url) else []
