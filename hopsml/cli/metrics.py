"""``hopsml runs metrics``: metrics that the chief has reported, step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml.cli.options import RunArgument
from hopsml.core import states
from hopsml.tracking import catalog, strict_json

if TYPE_CHECKING:
    from hopsml.experiment.searches.recorded import SearchReader

POLL_S = 1.0


def metrics(
    run: RunArgument,
    last: Annotated[int, typer.Option(help="Maximum number of reports, the newest ones; 0 prints all.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new reports until the run has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, as recorded.")] = False,
) -> None:
    """Print the metrics that a run has reported, step by step, from its metrics.jsonl.

    Of a search, print the values of its metric that the trials have reported.
    """
    from hopsml.cli import searches
    from hopsml.core import settings
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
        print(f"{who} reported no metrics; call hopsml.report in the training function", file=sys.stderr)
    if search is not None and search.distributed:
        print(f"all metrics of one trial: hopsml runs metrics {search.folder_of('TRIAL')}", file=sys.stderr)


class _OfTrials:
    """Reports of a search's trials, in the form of a run's reports; a search's event log has no times."""

    def __init__(self, search: SearchReader) -> None:
        self._search = search

    def more(self) -> Iterator[dict[str, Any]]:
        """Yield the reports since the last call. Raises StorageError."""
        for one in self._search.more():
            yield {"trial": one.trial, "number": one.number, "step": one.step, self._search.metric: one.value}


def _later(directory: Any, reports: Any) -> Iterator[list[dict[str, Any]]]:
    has_ended = False
    while not has_ended:
        has_ended = catalog.read(directory, brief=True).state in states.ENDS
        yield list(reports.more())
        if not has_ended:
            time.sleep(POLL_S)


def _shown(reports: list[dict[str, Any]], columns: list[str], as_json: bool) -> list[str]:
    """Print the rows, with new titles if a metric is new; return the columns for the rows that follow."""
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
