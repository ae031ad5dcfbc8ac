"""``hopsml metrics RUN``: what the chief has reported, step by step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

POLL_S = 1.0


def metrics(
    run: str,
    last: Annotated[int, typer.Option(help="only so many, the newest; 0 for all")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the run has ended")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line, as recorded")] = False,
) -> None:
    """Print the reports of a run, its metrics.jsonl; RUN is its URL, its path or its id."""
    from hopsml import settings
    from hopsml.storage.runs import find
    from hopsml.tracking import live

    directory = find(run, settings.project_url())
    reports = live.Reports(directory)
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
        print(f"run {directory.run_id} has reported nothing (hopsml.report in the training function)", file=sys.stderr)


def _later(directory: Any, reports: Any) -> Iterator[list[dict[str, Any]]]:
    over = False
    while not over:
        over = directory.read_status() is not None  # then what follows is the rest
        yield list(reports.more())
        if not over:
            time.sleep(POLL_S)


def _shown(reports: list[dict[str, Any]], columns: list[str], as_json: bool) -> list[str]:
    """Print them; a new head where a metric is new. The columns that the next ones come below."""
    from hopsml.tracking.listing import short, table, time_text

    names = [*columns, *dict.fromkeys(name for report in reports for name in report if name not in (*columns, "time"))]
    if as_json:
        for report in reports:
            print(json.dumps(report, ensure_ascii=False))
    elif reports:
        rows = [(time_text(report.get("time")), *(short(report.get(name)) for name in names)) for report in reports]
        lines = table([("time", *names), *rows])
        print("\n".join(lines if names != columns else lines[1:]))
    sys.stdout.flush()
    return names
