"""View of a run, search or result, independent of HTML: its data types, and the construction of a result's; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.core.states import Lifecycle
from hopsml.errors import WorkerFailed
from hopsml.notebook.run_timeline import MetricHistory, Point

# Right-aligned columns.
NUMBERS = ("rank", "step", "trial", "value", "CPU", "memory", "GPU use", "CPU, mean", "memory, peak")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StageView:
    """Phase of a run and the time that it took, or has taken so far."""

    name: str
    seconds: float
    active: bool


@dataclass(frozen=True)
class ProgressView:
    """Progress: a share between 0 and 1, and texts such as the steps done and the remaining time."""

    share: float
    facts: tuple[str, ...]


@dataclass(frozen=True)
class CurveView:
    """Curve of a metric over the steps; ``low``, ``high`` and ``last`` are text."""

    name: str
    points: tuple[Point, ...]
    low: str
    high: str
    last: str

    @classmethod
    def of(cls, name: str, history: MetricHistory) -> CurveView:
        """Create the curve of a metric from its history."""
        return cls(
            name,
            tuple(history.points),
            format_number(history.low),
            format_number(history.high),
            format_number(history.last),
        )


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    ``state`` selects the colour, ``points`` is a curve in front of the text, described by ``label``.
    """

    text: str
    state: str = ""
    points: tuple[Point, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Table:
    """Rows and columns of a table of the view.

    Columns named in ``NUMBERS`` are right-aligned; ``more`` summarizes the rows that are not shown.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    more: str = ""


@dataclass(frozen=True)
class View:
    """Complete view of a run or search; empty fields are not shown."""

    title: str
    run_id: str
    state: Lifecycle
    seconds: float
    stages: tuple[StageView, ...] = ()
    cause: str = ""  # reason of a failure or cancellation
    waits_for: str = ""
    progress: ProgressView | None = None
    numbers: Pairs = ()
    best: Pairs = ()  # value and configuration of the best trial of a search
    curves: tuple[CurveView, ...] = ()
    result: Pairs = ()  # return value of the function
    table: Table = Table()  # of workers, or of running trials
    notes: tuple[str, ...] = ()
    log_title: str = ""
    log: tuple[str, ...] = ()
    run_dir: str = ""


@dataclass(frozen=True)
class ResultView:
    """Content of a result that is displayed after its run or search; empty fields are not shown."""

    title: str
    run_id: str
    state: Lifecycle
    seconds: float | None  # None if it is not known
    tables: tuple[tuple[str, Pairs], ...] = ()  # heading -> names and values: metrics, best configuration, facts
    rows: Table = Table()  # of the best trials, or of several runs
    notes: tuple[str, ...] = ()
    paths: Pairs = ()  # name -> URL


def title_of(name: str, run_id: str) -> str:
    """Return the name that the caller gave a run or a search; its id if there is none."""
    return run_id if name in ("", "no-name") else name


def cause_of(error: BaseException | None) -> str:
    """Return why a run or a search failed or was cancelled; an empty string for None."""
    if error is None:
        return ""
    if isinstance(error, WorkerFailed):
        return shorten(f"rank {error.rank} on {error.host}: {error.cause}", 600)
    return shorten(str(error) or type(error).__name__, 600)


def format_number(value: Any) -> str:
    """Format a metric's value: a float with four significant digits, anything else with at most 60 characters."""
    return f"{value:.4g}" if isinstance(value, float) else shorten(str(value), 60)


def shorten(text: str, width: int) -> str:
    """Truncate a text to at most ``width`` characters, with an ellipsis at its end."""
    return text if len(text) <= width else text[: width - 1] + "…"


ROWS = 5  # best trials, or runs, in the table
_NAME = 40  # characters of a name


def short_values(named: Mapping[str, Any]) -> Pairs:
    """Return names and values as short texts."""
    return tuple((shorten(str(name), _NAME), format_number(value)) for name, value in named.items())


def run_result_view(
    title: str, run_id: str, seconds: float, metrics: Mapping[str, Any], facts: Mapping[str, Any], paths: Pairs
) -> ResultView:
    """Return the view of a finished run.

    Args:
        title: name of the run.
        run_id: its id.
        seconds: its duration.
        metrics: what its function returned, by name.
        facts: workers, speed and the like.
        paths: name -> URL.
    """
    tables = (("metrics", short_values(metrics)), ("run", short_values(facts)))
    return ResultView(title_of(title, run_id), run_id, Lifecycle.FINISHED, seconds, tables, paths=paths)


def launch_result_view(
    title: str, run_id: str, runs: Sequence[tuple[str, Mapping[str, Any]]], paths: Pairs
) -> ResultView:
    """Return the view of a launch of several combinations: for each run its id and its metrics."""
    names = list(dict.fromkeys(name for _, metrics in runs for name in metrics))
    rows = [
        (run, *(format_number(metrics[name]) if name in metrics else "–" for name in names)) for run, metrics in runs
    ]
    table = _table(("run", *names), rows, "more runs")
    return ResultView(title_of(title, run_id), run_id, Lifecycle.FINISHED, None, rows=table, paths=paths)


def search_result_view(
    title: str,
    run_id: str,
    seconds: float,
    *,
    best: tuple[Mapping[str, Any], Mapping[str, Any]],
    trials: Sequence[Mapping[str, Any]],
    metric: str,
    direction: str,
    facts: Sequence[tuple[str, str]],
    notes: Sequence[str],
    paths: Pairs,
) -> ResultView:
    """Return the view of a finished search.

    Args:
        title: name of the search.
        run_id: its id.
        seconds: its duration.
        best: configuration and metrics of the best trial.
        trials: rows of the search's table.
        metric: name of the searched metric.
        direction: "max" or "min".
        facts: counts of trials by state, errors and the like.
        notes: hints on how trials ended.
        paths: name -> URL.
    """
    having = [row for row in trials if row["value"] is not None]
    having.sort(key=lambda row: row["value"], reverse=direction == "max")
    names = list(dict.fromkeys(str(name) for row in trials for name in row["config"]))
    rows = [
        (
            str(row["number"]),
            format_number(row["value"]),
            "–" if row["step"] is None else str(row["step"]),
            row["state"],
            *(format_number(row["config"][name]) if name in row["config"] else "–" for name in names),
        )
        for row in having
    ]
    table = _table(("trial", metric, "step", "state", *names), rows, "more trials")
    config, metrics = best
    about = tuple((name, shorten(text, _NAME)) for name, text in facts)
    tables = (("best configuration", short_values(config)), ("its metrics", short_values(metrics)), ("search", about))
    return ResultView(title_of(title, run_id), run_id, Lifecycle.FINISHED, seconds, tables, table, tuple(notes), paths)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], hidden: str) -> Table:
    """Return a table of the first rows, and the number of the others."""
    shown = tuple(tuple(Cell(shorten(text, _NAME)) for text in row) for row in rows[:ROWS])
    more = f"{len(rows) - ROWS} {hidden}" if len(rows) > ROWS else ""
    return Table(tuple(shorten(name, _NAME) for name in columns), shown, more)
