"""Details of one run or search: all records of a run in the order in which a page displays them, and a search's state.

A search's state is its trials, best value so far, the rungs of a stopper, and which trial continued which.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import msgspec
import numpy as np

from hopsml.core.states import Lifecycle
from hopsml.errors import PathNotFound
from hopsml.experiment.searches.recorded import SearchReader
from hopsml.experiment.searches.state import reports_until_stop
from hopsml.service.browse.metrics import Curve, kept_indices
from hopsml.service.browse.run_list import RunRow, progress_of, row_of
from hopsml.storage import urls
from hopsml.storage.run_dir import RunDir
from hopsml.storage.run_logs import list_logs
from hopsml.tracking import catalog

MOST_POINTS = 200  # most points of a trial's curve in a response
KEPT_OF_TRIAL = 1024  # most points of a trial's curve in memory
TRIAL_BYTES = 4096  # memory of a trial without its points, in bytes
_RANK = re.compile(r"rank (\d+) on ")  # how the cause of a run begins if a worker failed
_FAILED = (Lifecycle.FAILED, Lifecycle.LOST)


class TrialDetail(msgspec.Struct, frozen=True):
    """Trial of a search.

    ``parent``: number of the trial whose state it continued; ``curve``: steps and values of some of its ``reports``.
    """

    number: int
    id: str
    state: str
    value: float | None
    step: int | None
    seconds: float
    attempts: int
    failures: int
    parent: int | None
    error: str
    config: dict[str, Any]
    curve: tuple[list[int], list[float]]
    reports: int


class SearchDetail(msgspec.Struct, frozen=True):
    """State of a search with its trials.

    Attributes:
        metric: The metric that is optimized.
        direction: Direction of the optimization.
        searcher: Name of the searcher.
        stopper: Name of the stopper; empty if none.
        space: The search space.
        planned: Number of planned trials; None if unknown.
        counts: Number of trials by state.
        best: Number of the best trial; None if there is none.
        improvements: Numbers and values of the trials that were better than all before them.
        rungs: Steps at which trials stopped or paused, and the number of trials that reached each.
        trials: All trials of the search.
    """

    metric: str
    direction: str
    searcher: str
    stopper: str
    space: dict[str, Any]
    planned: int | None
    counts: dict[str, int]
    best: int | None
    improvements: list[tuple[int, float]]
    rungs: list[tuple[int, int]]
    trials: list[TrialDetail]


class TrialReader:
    """Incremental reader of one search's event log; thread-safe."""

    def __init__(self, directory: RunDir, recorded: dict[str, Any]) -> None:
        self._recorded, self._lock = recorded, threading.Lock()
        self._reader = SearchReader(directory, recorded)
        self._reports: dict[int, Curve] = {}
        self.held_bytes = 0  # memory in bytes, after the last read

    def detail(self) -> SearchDetail:
        """Return the present state of the search. Raises StorageError."""
        with self._lock:
            for report in self._reader.read_new_reports():
                if report.number not in self._reports:
                    self._reports[report.number] = Curve(KEPT_OF_TRIAL)
                self._reports[report.number].add(report.step, 0.0, report.value)
            trials = [self._trial(row) for row in self._reader.trials()]
            self.held_bytes = TRIAL_BYTES * len(trials) + sum(curve.held_bytes for curve in self._reports.values())
            best, counts, planned = self._reader.best(), self._reader.counts(), self._reader.planned_count
        named = {name: str(self._recorded.get(name) or "") for name in ("searcher", "stopper")}
        space = self._recorded.get("space")
        ended = [(trial.number, trial.value) for trial in trials if trial.value is not None]
        return SearchDetail(
            metric=self._reader.metric,
            direction=self._reader.direction,
            **named,
            space=space if isinstance(space, dict) else {},
            planned=planned,
            counts=counts,
            best=None if best is None else best["number"],
            improvements=improvements(ended, self._reader.direction),
            rungs=_rungs(trials) if named["stopper"] or named["searcher"] in ("asha", "hyperband", "bohb") else [],
            trials=trials,
        )

    def _trial(self, row: dict[str, Any]) -> TrialDetail:
        """Convert a row of the event log's reader to a trial with its curve."""
        reports = self._reports.get(row["number"], Curve(KEPT_OF_TRIAL))
        kept = kept_indices(np.array(reports.values), MOST_POINTS)
        counted = reports_until_stop([(int(reports.steps[at]), reports.values[at]) for at in kept], row)
        curve = [step for step, _ in counted], [value for _, value in counted]
        return TrialDetail(
            number=row["number"],
            id=row["trial_id"],
            state=row["state"],
            value=row["value"],
            step=row["step"],
            seconds=row["seconds"],
            attempts=row["attempts"],
            failures=row["failures"],
            parent=row["parent"] if row["resumed_from"] in (None, row["number"]) else row["resumed_from"],
            error=str(row["error"] or "")[:2000],
            config=row["config"],
            curve=curve,
            reports=reports.count,
        )


def improvements(values: list[tuple[int, float]], direction: str) -> list[tuple[int, float]]:
    """Return the trials that were better than all before them.

    Args:
        values: Numbers and values of trials, in order.
        direction: "min" if lower values are better, else higher ones are.
    """
    found: list[tuple[int, float]] = []
    for number, value in values:
        if not found or (value < found[-1][1] if direction == "min" else value > found[-1][1]):
            found.append((number, value))
    return found


def _rungs(trials: list[TrialDetail]) -> list[tuple[int, int]]:
    """Return the steps at which most trials ended, at most twelve, and the number of trials that reached each."""
    steps = [trial.step for trial in trials if trial.step is not None]
    ends: dict[int, int] = {}
    for step in steps:
        ends[step] = ends.get(step, 0) + 1
    chosen = sorted(sorted(ends, key=lambda step: -ends[step])[:12])
    return [(step, sum(other >= step for other in steps)) for step in chosen]


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
        failed_rank: Rank of the worker whose failure ended it; None if no worker failed.
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
    failed_rank: int | None
    sections: list[tuple[str, Pairs]]
    source: str
    search: dict[str, Any]
    host: str
    script: str
    continues: str
    continued_by: str


def read_detail(directory: RunDir, trial: str = "") -> RunDetail:
    """Read all records of a run or trial.

    Args:
        directory: Its directory.
        trial: Id of the trial; empty for a run.

    Raises:
        StorageError: A record cannot be read.
    """
    stored = _trial(directory) if trial and not _has_record(directory) else catalog.read(directory)
    record, status = stored.run, stored.status or {}
    newest = catalog.last_report(directory)
    newest.pop("time", None)
    step = newest.pop("step", None)
    workers = _workers(directory, status)
    return RunDetail(
        row=msgspec.structs.replace(row_of(stored), progress=None if trial else progress_of(stored)),
        url=directory.url,
        trial=trial,
        description=str(record.get("description") or ""),
        error=str(status.get("error") or ""),
        step=step if isinstance(step, int) else None,
        newest=newest,
        workers=workers,
        failed_rank=_failed_rank(stored.cause, workers),
        sections=[(title, pairs) for title, pairs in _sections(stored) if pairs],
        source=str(record.get("source") or ""),
        search=stored.search_settings,
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
    ranks = sorted({log.rank for log in list_logs(directory) if log.rank is not None})
    return [{"rank": rank, "state": Lifecycle.RUNNING} for rank in ranks]


def _failed_rank(cause: str, workers: list[dict[str, Any]]) -> int | None:
    """Return the rank that the cause names; else the first one that failed, as the others fail in consequence."""
    if named := _RANK.match(cause):
        return int(named[1])
    failed = [worker["rank"] for state in _FAILED for worker in workers if worker.get("state") == state]
    return next((rank for rank in failed if isinstance(rank, int)), None)


def _sections(stored: catalog.StoredRun) -> list[tuple[str, Pairs]]:
    """Return the sections of the page with their entries."""
    run, around = stored.run, stored.environment
    packages = around.get("packages") or {}
    return [
        ("Arguments", _flat(run.get("arguments") or {})),
        ("Result", _flat({name: value for name, value in stored.outputs.items() if name != "log"})),
        ("Search", _flat(stored.search_settings)),
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
