"""All records of one run, in the order in which a page displays them."""

from __future__ import annotations

from typing import Any

import msgspec

from hopsml.core.states import Lifecycle
from hopsml.errors import PathNotFound
from hopsml.service.browse.run_row import RunRow, row_of
from hopsml.storage import urls
from hopsml.storage.run_dir import RunDir
from hopsml.storage.run_logs import found_logs
from hopsml.tracking import catalog, live

Pairs = list[tuple[str, Any]]  # name, value


class RunDetail(msgspec.Struct, frozen=True):
    """All records of one run or trial.

    Attributes:
        row: Its row in the list of runs.
        url: URL of its directory.
        trial: Id of the trial; empty for a run.
        description: The user's description.
        error: Error that ended it.
        step: Step of the newest report.
        newest: Values of the newest report.
        workers: Workers as in ``status.json``, else those that have a log.
        sections: Titles and entries of all records.
        source: Source code of the training function.
        search: Record of the search, if it is one.
        host: Host of the driver.
        script: Name of the script.
        continues: Id of the run whose state it continued.
        continued_by: Id of the run that continued its state.
    """

    row: RunRow
    url: str
    trial: str
    description: str
    error: str
    step: int | None
    newest: dict[str, Any]
    workers: list[dict[str, Any]]
    sections: list[tuple[str, Pairs]]
    source: str
    search: dict[str, Any]
    host: str
    script: str
    continues: str
    continued_by: str


def read(directory: RunDir, trial: str = "") -> RunDetail:
    """Read all records of a run or trial.

    Args:
        directory: Its directory.
        trial: Id of the trial; empty for a run.

    Raises:
        StorageError: A record cannot be read.
    """
    stored = _trial(directory) if trial and not _has_record(directory) else catalog.read(directory)
    record, status = stored.run, stored.status or {}
    newest = live.last_report(directory)
    newest.pop("time", None)
    step = newest.pop("step", None)
    return RunDetail(
        row=row_of(stored),
        url=directory.url,
        trial=trial,
        description=str(record.get("description") or ""),
        error=str(status.get("error") or ""),
        step=step if isinstance(step, int) else None,
        newest=newest,
        workers=_workers(directory, status),
        sections=[(title, pairs) for title, pairs in _sections(stored) if pairs],
        source=str(record.get("source") or ""),
        search=stored.search,
        host=str(record.get("driver") or ""),
        script=urls.name(str(record.get("script") or "")),
        continues=urls.name(str(record.get("continues") or record.get("resumed_from") or "")),
        continued_by=urls.name(str(status.get("continued_by") or "")),
    )


def _has_record(directory: RunDir) -> bool:
    """Return True if the directory has the record of a run."""
    try:
        return bool(directory.read_run())
    except PathNotFound:
        return False


def _trial(directory: RunDir) -> catalog.StoredRun:
    """Return the records of a trial that ran in a trial slot (lane), which has only a record of its own format."""
    try:
        found = directory.read_json(urls.join(directory.url, "trial.json"))
    except PathNotFound:  # the trial has not started
        found = {}
    value, ended = found.get("final_metric"), str(found.get("status") or Lifecycle.RUNNING)
    run = {"name": f"trial {found.get('number', '')}".strip(), "verb": "trial", "arguments": found.get("params") or {}}
    run |= {"started": found.get("start"), "workers": 1}
    status = {"state": ended, "seconds": (found.get("duration") or 0) / 1000, "error": found.get("error") or ""}
    return catalog.StoredRun(directory, run, status, outputs={} if value is None else {"metric": value})


def _workers(directory: RunDir, status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the recorded workers; while the run is running, the ranks that have logs."""
    recorded = status.get("workers")
    if isinstance(recorded, list):
        return [one for one in recorded if isinstance(one, dict)]
    ranks = sorted({log.rank for log in found_logs(directory) if log.rank is not None})
    return [{"rank": rank, "state": Lifecycle.RUNNING} for rank in ranks]


def _sections(stored: catalog.StoredRun) -> list[tuple[str, Pairs]]:
    """Return the sections of the page with their entries."""
    run, around = stored.run, stored.environment
    packages = around.get("packages") or {}
    return [
        ("Arguments", _flat(run.get("arguments") or {})),
        ("Result", _flat({name: value for name, value in stored.outputs.items() if name != "log"})),
        ("Search", _flat(stored.search)),
        ("Run", _flat({name: value for name, value in run.items() if name not in _ELSEWHERE})),
        ("Asked for", _flat(run.get("spec") or {})),
        ("How it ended", _flat({name: value for name, value in (stored.status or {}).items() if name != "workers"})),
        ("Inputs", [(str(one.get("url")), one.get("checksum") or one.get("problem")) for one in stored.inputs]),
        ("Driver", _flat({name: value for name, value in around.items() if name != "packages"})),
        ("Chief", _flat(stored.worker)),
        ("Packages", _flat(packages)),
    ]


_ELSEWHERE = ("arguments", "source", "spec", "search")


def _flat(value: Any, above: str = "") -> Pairs:
    """Return nested records as pairs of a dotted name and a plain value."""
    if isinstance(value, dict) and value:
        return [
            pair for name, inner in value.items() for pair in _flat(inner, f"{above}.{name}" if above else str(name))
        ]
    if isinstance(value, list | dict):
        return [(above, msgspec.json.encode(value).decode())] if above and value else []
    return [(above, value)] if above and value not in (None, "") else []
