"""Construction of the view of a result, which a notebook shows where it is the value of a cell; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopsml.core.states import Lifecycle
from hopsml.notebook.view import Cell, Pairs, ResultView, Table, number, short, title_of

ROWS = 5  # best trials, or runs, in the table
_NAME = 40  # characters of a name


def values(named: Mapping[str, Any]) -> Pairs:
    """Return names and values as short texts."""
    return tuple((short(str(name), _NAME), number(value)) for name, value in named.items())


def of_run(
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
    tables = (("metrics", values(metrics)), ("run", values(facts)))
    return ResultView(title_of(title, run_id), run_id, Lifecycle.FINISHED, seconds, tables, paths=paths)


def of_several(title: str, run_id: str, runs: Sequence[tuple[str, Mapping[str, Any]]], paths: Pairs) -> ResultView:
    """Return the view of a launch of several combinations: for each run its id and its metrics."""
    names = list(dict.fromkeys(name for _, metrics in runs for name in metrics))
    rows = [(run, *(number(metrics[name]) if name in metrics else "–" for name in names)) for run, metrics in runs]
    table = _table(("run", *names), rows, "more runs")
    return ResultView(title_of(title, run_id), run_id, Lifecycle.FINISHED, None, rows=table, paths=paths)


def of_search(
    title: str,
    run_id: str,
    seconds: float,
    *,
    best: tuple[Mapping[str, Any], Mapping[str, Any]],
    trials: Sequence[Mapping[str, Any]],
    metric: str,
    direction: str,
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
        notes: hints on how trials ended.
        paths: name -> URL.
    """
    having = [row for row in trials if row["value"] is not None]
    having.sort(key=lambda row: row["value"], reverse=direction == "max")
    names = list(dict.fromkeys(str(name) for row in trials for name in row["config"]))
    rows = [
        (
            str(row["number"]),
            number(row["value"]),
            "–" if row["step"] is None else str(row["step"]),
            row["state"],
            *(number(row["config"][name]) if name in row["config"] else "–" for name in names),
        )
        for row in having
    ]
    table = _table(("trial", metric, "step", "state", *names), rows, "more trials")
    config, metrics = best
    tables = (("best configuration", values(config)), ("its metrics", values(metrics)))
    return ResultView(title_of(title, run_id), run_id, Lifecycle.FINISHED, seconds, tables, table, tuple(notes), paths)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], hidden: str) -> Table:
    """Return a table of the first rows, and the number of the others."""
    shown = tuple(tuple(Cell(short(text, _NAME)) for text in row) for row in rows[:ROWS])
    more = f"{len(rows) - ROWS} {hidden}" if len(rows) > ROWS else ""
    return Table(tuple(short(name, _NAME) for name in columns), shown, more)
