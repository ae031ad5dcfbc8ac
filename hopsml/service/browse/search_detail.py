"""State of a search for a page: trials, best value so far, rungs of a stopper, and which trial continued which."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np

from hopsml.experiment.searches.recorded import SearchReader
from hopsml.service.browse.downsampling import Curve, kept_indices
from hopsml.storage.run_dir import RunDir

MOST_POINTS = 200  # most points of a trial's curve in a response
KEPT_OF_TRIAL = 1024  # most points of a trial's curve in memory
TRIAL_BYTES = 4096  # memory of a trial without its points, in bytes


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
            for report in self._reader.more():
                if report.number not in self._reports:
                    self._reports[report.number] = Curve(KEPT_OF_TRIAL)
                self._reports[report.number].add(report.step, 0.0, report.value)
            trials = [self._trial(row) for row in self._reader.trials()]
            self.held_bytes = TRIAL_BYTES * len(trials) + sum(curve.held_bytes for curve in self._reports.values())
            best, counts, planned = self._reader.best(), self._reader.counts(), self._reader.planned
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
        curve = [int(reports.steps[at]) for at in kept], [reports.values[at] for at in kept]
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
