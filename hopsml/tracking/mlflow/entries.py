"""Converts the files of a run directory to MLflow's params, tags and metrics. No side effects: no MLflow, no files.

A row or tag that is computed twice from the same line is identical, time included, so MLflow stores it once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hopsml.core import redact
from hopsml.core.states import Lifecycle

# MLflow's own limits (mlflow/utils/validation.py): a longer entry is rejected together with its whole batch.
LONGEST_PARAM = 6000
LONGEST_TAG = 5000  # 8000 in MLflow 3; older servers accept less
LONGEST_KEY = 250
PARAMS_A_BATCH = 100
METRICS_A_BATCH = 1000

EVALUATION = "evaluation/"
SYSTEM = "system/"  # MLflow shows metrics with this prefix on a separate page
KEY_TAG = "hopsml.key"
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")  # MLflow accepts letters of all scripts
_DIGITS = 8  # length of the digest that distinguishes changed names
# MLflow's names of the states.
_STATUS: dict[str, str] = {Lifecycle.FINISHED: "FINISHED", Lifecycle.CANCELLED: "KILLED", Lifecycle.RUNNING: "RUNNING"}
Item = TypeVar("Item")


@dataclass(frozen=True)
class Row:
    """Value of one metric at one step; ``time_ms`` since 1970."""

    key: str
    value: float
    time_ms: int
    step: int


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the items in groups of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def mlflow_name(text: str) -> str:
    """Return a name that MLflow accepts: other characters become ``_``, and it cannot be a path to another place.

    A name that had to be changed ends in a digest of the original; otherwise two metrics could become one in MLflow.
    """
    cleaned = _NOT_IN_NAMES.sub("_", text)[:LONGEST_KEY]
    accepted = "/".join(part if part not in ("", ".", "..") else "_" for part in cleaned.strip("/").split("/"))
    return text if accepted == text else _with_digest(accepted, text)


def _with_digest(accepted: str, whole: str) -> str:
    digest = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return f"{accepted[: LONGEST_KEY - _DIGITS - 1].rstrip('/')}_{digest}"


def params(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the function's arguments as params, by name.

    Those in dicts are named ``outer.inner``, with a digest if that name is taken.
    """
    leaves = list(_leaves(arguments, ()))
    counts = Counter(".".join(map(str, path)) for path, _ in leaves)
    found: dict[str, str] = {}
    for path, value in leaves:
        full = ".".join(map(str, path))
        key = mlflow_name(full) if counts[full] == 1 or len(path) == 1 else _with_digest(mlflow_name(full), repr(path))
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        found[key] = redact.text(text)[:LONGEST_PARAM]
    return found


def _leaves(arguments: Mapping[Any, Any], above: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each argument that is not a non-empty dict, with the keys that lead to it."""
    for key, value in redact.arguments(arguments).items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def tags(run_url: str, record: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that are known when a run begins: its identity and the URLs of its files.

    Args:
        run_url: URL of the run directory.
        record: content of ``run.json``.
        folders: name -> URL of the run's folders.
    """
    known = {
        "hopsml.run_id": run_url.rstrip("/").rpartition("/")[2],
        "hopsml.run_dir": run_url,
        "hopsml.verb": record.get("verb"),
        "hopsml.function": record.get("function"),
        "hopsml.code_sha256": record.get("code_sha256"),
        "hopsml.profile": record.get("profile"),
        "hopsml.backend": record.get("backend"),
        "hopsml.application": record.get("application"),
        "hopsml.workers": record.get("workers"),
        "hopsml.seed": record.get("seed"),
        "hopsml.rerun_of": record.get("rerun_of"),
        "hopsml.project": record.get("user"),
        "hopsml.state": Lifecycle.RUNNING,
        "mlflow.user": (record.get("driver_process") or {}).get("login"),
        "mlflow.source.name": record.get("script") or record.get("function"),
        "mlflow.source.type": "JOB",
        "mlflow.note.content": record.get("description"),
        **{f"hopsml.{folder}": url for folder, url in folders.items()},
    }
    return {key: redact.text(str(value))[:LONGEST_TAG] for key, value in known.items() if value not in (None, "")}


def tags_at_end(state: str, status: Mapping[str, Any], around: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags that are known when a run has ended: state, first line of the error, git commit."""
    git = ((around.get("code") or {}).get("git")) or {}
    error = str(status.get("error") or "").strip()
    known = {
        "hopsml.state": state,
        "hopsml.error": error.splitlines()[0] if error else "",
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
    }
    return {key: redact.text(str(value))[:LONGEST_TAG] for key, value in known.items() if value}


def mlflow_status(state: str) -> str:
    """Return MLflow's status for the state of a run; a lost one has failed."""
    return _STATUS.get(state, "FAILED")


def group_status(members: Sequence[str], count: int) -> str:
    """Return MLflow's status of the parent of ``count`` runs, from those of its members so far."""
    for worst in ("FAILED", "KILLED"):
        if worst in members:
            return worst
    return "FINISHED" if len(members) >= count and set(members) == {"FINISHED"} else "RUNNING"


def metric_rows(values: Mapping[str, Any], time_s: float, step: int | None) -> list[Row]:
    """Return the numbers among some values as metrics; text and None are left out."""
    return [
        Row(mlflow_name(str(key)), float(value), int(time_s * 1000), int(step or 0))
        for key, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]


def report_rows(lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the numbers in lines of ``metrics.jsonl`` as rows, each with its line's time and step."""
    return [
        row
        for line in lines
        if isinstance(line.get("time"), (int, float))
        for row in metric_rows(
            {key: value for key, value in line.items() if key not in ("time", "step")}, line["time"], line.get("step")
        )
    ]


def evaluation_rows(rows: Sequence[Row], evaluation: str = "") -> list[Row]:
    """Return an evaluator's metrics under the names that they have in the run whose checkpoints it evaluates.

    Metrics of the evaluator's machine are left out. ``evaluation`` is its name, if it has one.
    """
    begin = f"{EVALUATION}{evaluation}/" if evaluation else EVALUATION
    return [replace(row, key=mlflow_name(f"{begin}{row.key}")) for row in rows if not row.key.startswith(SYSTEM)]


def system_rows(rank: int, lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return samples of one rank, as its agent wrote them, as rows.

    Each line contains ``time``, ``step`` and the values.
    """
    kept = ("time", "step")
    return report_rows(
        [{key if key in kept else system_name(rank, key): value for key, value in line.items()} for line in lines]
    )


def system_name(rank: int, key: str) -> str:
    """Return MLflow's name for a system metric of one of several nodes."""
    return f"{SYSTEM}rank_{rank}/{key}"
