"""Runs as a table in a notebook."""

from __future__ import annotations

from typing import Any

from hopsml.notebook import style
from hopsml.notebook.style import Cell, Column
from hopsml.tracking import catalog, listing
from hopsml.tracking.catalog import StoredRun

_COLUMNS = [Column(name, name in listing.NUMBERS, name in ("name", "result")) for name in listing.COLUMNS]
CAUSE = 300  # characters


def _cells(run: StoredRun) -> list[Cell]:
    cells = listing.row(run)
    colours = [style.tone(run.state) if column == listing.STATE else "" for column in range(len(cells))]
    return [Cell(listing.short(cell, CAUSE), colour) for cell, colour in zip(cells, colours, strict=True)]


class RunsTable:
    """The value of ``%runs``: shows itself as a table; ``runs`` holds what was read, youngest first."""

    def __init__(self, runs: list[StoredRun], project_url: str) -> None:
        self.runs, self.project_url = runs, project_url

    def __repr__(self) -> str:
        if not self.runs:
            return f"no runs in {self.project_url}"
        return "\n".join(listing.table([listing.COLUMNS, *map(listing.row, self.runs)], listing.NUMBERS))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        if self.runs:
            bundle["text/html"] = style.div(
                f"{style.SANS};{style.BODY}", style.table(_COLUMNS, [_cells(run) for run in self.runs])
            )
        return bundle


def recent(project_url: str, count: int | None) -> RunsTable:
    """The youngest runs of a project. Raises StorageError."""
    return RunsTable(catalog.recent(project_url, count), project_url)
