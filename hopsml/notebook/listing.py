"""Runs as a table in a notebook."""

from __future__ import annotations

from typing import Any

from hopsml.notebook import html
from hopsml.tracking import catalog, listing
from hopsml.tracking.catalog import StoredRun

_TONES = {"FINISHED": "#2f9e5f", "FAILED": "#d64545", "LOST": "#d64545", "RUNNING": "#3b82c4"}
_STATE = listing.COLUMNS.index("state")


class RunsTable:
    """The value of ``%runs``: shows itself as a table; ``runs`` holds what was read, youngest first."""

    def __init__(self, runs: list[StoredRun], project_url: str) -> None:
        self.runs, self.project_url = runs, project_url

    def __repr__(self) -> str:
        if not self.runs:
            return f"no runs in {self.project_url}"
        return "\n".join(listing.table([listing.COLUMNS, *map(listing.row, self.runs)]))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        if self.runs:
            rows = [listing.row(run) for run in self.runs]
            bundle["text/html"] = html.table(
                listing.COLUMNS, rows, [_TONES.get(row[_STATE], "") for row in rows], _STATE
            )
        return bundle


def recent(project_url: str, count: int | None) -> RunsTable:
    """The youngest runs of a project. Raises StorageError."""
    return RunsTable(catalog.recent(project_url, count), project_url)
