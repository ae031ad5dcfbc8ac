"""What MLflow is told of a run, computed from what the run directory holds. Pure: no MLflow, no files.

A row or tag that is computed twice from the same line is the same to the bit, time included: MLflow keeps it once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hopsml import redact
from hopsml.states import Lifecycle

# MLflow's own limits (mlflow/utils/validation.py): what is longer is refused, and with it its whole batch.
LONGEST_PARAM = 6000
LONGEST_TAG = 5000  # 8000 in MLflow 3; older servers take less
LONGEST_KEY = 250
PARAMS_A_BATCH = 100
METRICS_A_BATCH = 1000

EVALUATION = "evaluation/"
SYSTEM = "system/"  # MLflow shows what is named so on a page of its own
KEY_TAG = "hopsml.key"
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")  # MLflow accepts letters of all scripts
_DIGITS = 8  # of the digest that distinguishes changed names
# MLflow's words.
_STATUS: dict[str, str] = {Lifecycle.FINISHED: "FINISHED", Lifecycle.CANCELLED: "KILLED", Lifecycle.RUNNING: "RUNNING"}
Item = TypeVar("Item")


@dataclass(frozen=True)
class Row:
    """One value of one metric; ``time_ms`` since 1970."""

    key: str
    value: float
    time_ms: int
    step: int


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in groups of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def name(text: str) -> str:
    """A name as MLflow accepts it: what it refuses becomes ``_``, and it is no path that leads elsewhere.

    One that had to be changed ends in a digest of what it was: else two would be one metric in MLflow, their points mixed.
    """
    cleaned = _NOT_IN_NAMES.sub("_", text)[:LONGEST_KEY]
    accepted = "/".join(part if part not in ("", ".", "..") else "_" for part in cleaned.strip("/").split("/"))
    return text if accepted == text else _with_digest(accepted, text)


def _with_digest(accepted: str, whole: str) -> str:
    digest = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    return f"{accepted[: LONGEST_KEY - _DIGITS - 1].rstrip('/')}_{digest}"


def params(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the function's arguments by name; ``outer.inner`` for those in dicts, with a digest if the name is taken."""
    leaves = list(_leaves(arguments, ()))
    counts = Counter(".".join(map(str, path)) for path, _ in leaves)
    found: dict[str, str] = {}
    for path, value in leaves:
        full = ".".join(map(str, path))
        key = name(full) if counts[full] == 1 or len(path) == 1 else _with_digest(name(full), repr(path))
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        found[key] = redact.text(text)[:LONGEST_PARAM]
    return found


def _leaves(arguments: Mapping[Any, Any], above: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each argument that is not a dict of others, after the keys that lead to it."""
    for key, value in redact.arguments(arguments).items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def tags(run_url: str, record: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, str]:
    """What identifies the run and leads back to its files, known when it begins."""
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
    """What is known when it has ended: its state, the first line of its error, the git commit of its code."""
    git = ((around.get("code") or {}).get("git")) or {}
    error = str(status.get("error") or "").strip()
    known = {
        "hopsml.state": state,
        "hopsml.error": error.splitlines()[0] if error else "",
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
    }
    return {key: redact.text(str(value))[:LONGEST_TAG] for key, value in known.items() if value}


def status(state: str) -> str:
    """MLflow's word for the state of a run: a lost one has failed."""
    return _STATUS.get(state, "FAILED")


def group_status(members: Sequence[str], count: int) -> str:
    """MLflow's status of the parent of ``count`` runs, from those of its members so far."""
    for worst in ("FAILED", "KILLED"):
        if worst in members:
            return worst
    return "FINISHED" if len(members) >= count and set(members) == {"FINISHED"} else "RUNNING"


def rows(values: Mapping[str, Any], time_s: float, step: int | None) -> list[Row]:
    """The numbers among some values; text and None are no metrics."""
    return [
        Row(name(str(key)), float(value), int(time_s * 1000), int(step or 0))
        for key, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]


def report_rows(lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The numbers in lines of ``metrics.jsonl`` as rows, each with its line's time and step."""
    return [
        row
        for line in lines
        if isinstance(line.get("time"), (int, float))
        for row in rows(
            {key: value for key, value in line.items() if key not in ("time", "step")}, line["time"], line.get("step")
        )
    ]


def evaluation_rows(rows: Sequence[Row], evaluation: str = "") -> list[Row]:
    """What an evaluator found, as it is named in the run whose checkpoints it judges; what it used of its machine is not.

    ``evaluation``: its name, where it has one.
    """
    begin = f"{EVALUATION}{evaluation}/" if evaluation else EVALUATION
    return [replace(row, key=name(f"{begin}{row.key}")) for row in rows if not row.key.startswith(SYSTEM)]


def system_rows(rank: int, lines: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Samples of one rank, as its agent wrote them: each line holds ``time``, ``step`` and the values."""
    kept = ("time", "step")
    return report_rows(
        [{key if key in kept else system_name(rank, key): value for key, value in line.items()} for line in lines]
    )


def system_name(rank: int, key: str) -> str:
    """MLflow's name for a system metric of one of several nodes."""
    return f"{SYSTEM}rank_{rank}/{key}"
