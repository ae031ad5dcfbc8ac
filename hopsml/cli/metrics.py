"""``hopsml metrics RUN``: what the chief has reported, step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml import states
from hopsml.tracking import catalog, strict_json

if TYPE_CHECKING:
    from hopsml.experiment.searches.reader import SearchReader

POLL_S = 1.0


def metrics(
    run: str,
    last: Annotated[int, typer.Option(help="only so many, the newest; 0 for all")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the run has ended")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line, as recorded")] = False,
) -> None:
    """Print the reports of a run, its metrics.jsonl; RUN is its URL, its path or its id.

    Of a search: what its trials have reported of the metric that it is about.
    """
    from hopsml import settings
    from hopsml.cli import searches
    from hopsml.storage.run_dir import find
    from hopsml.tracking import live

    directory = find(run, settings.project_url())
    search = searches.seen(directory, directory.read_run())
    reports = live.Reports(directory) if search is None else _OfTrials(search)
    found = list(reports.more())
    if last:
        found = found[-last:]
    columns = _shown(found, [], as_json)
    try:
        for more in _later(directory, reports) if follow else ():
            columns = _shown(more, columns, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not columns and not as_json:
        who = f"run {directory.run_id} has" if search is None else f"the trials of search {directory.run_id} have"
        print(f"{who} reported nothing (hopsml.report in the training function)", file=sys.stderr)
    if search is not None and search.distributed:
        print(f"all that one trial reports: hopsml metrics {search.folder_of('TRIAL')}", file=sys.stderr)


class _OfTrials:
    """Reads the reports of a search's trials like those of a run; its journal has no times."""

    def __init__(self, search: SearchReader) -> None:
        self._search = search

    def more(self) -> Iterator[dict[str, Any]]:
        """Reports since the last call. Raises StorageError."""
        for one in self._search.more():
            yield {"trial": one.trial, "number": one.number, "step": one.step, self._search.metric: one.value}


def _later(directory: Any, reports: Any) -> Iterator[list[dict[str, Any]]]:
    over = False
    while not over:
        over = catalog.read(directory, brief=True).state in states.ENDS  # then what follows is the rest
        yield list(reports.more())
        if not over:
            time.sleep(POLL_S)


def _shown(reports: list[dict[str, Any]], columns: list[str], as_json: bool) -> list[str]:
    """Print the rows, with a new head where a metric is new; returns the columns for the rows that follow."""
    from hopsml.tracking.listing import figure, table, time_text

    names = [*columns, *dict.fromkeys(name for report in reports for name in report if name not in (*columns, "time"))]
    if as_json:
        for report in reports:
            print(strict_json.dumps(report))
    elif reports:
        times = any("time" in report for report in reports)
        rows = [tuple(figure(report.get(name)) for name in names) for report in reports]
        if times:
            rows = [(time_text(one.get("time")), *row) for one, row in zip(reports, rows, strict=True)]
        lines = table([("time", *names) if times else tuple(names), *rows])
        print("\n".join(lines if names != columns else lines[1:]))
    sys.stdout.flush()
    return names
