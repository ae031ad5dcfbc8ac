"""The runs of a project as a table that is filtered, sorted and paged here, so that a page never holds all of them."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from hopsml.errors import ArgumentError, PathNotFound, PermissionRefused, StorageError
from hopsml.service.browse.run_filter import parsed
from hopsml.service.browse.run_row import RunRow, row_of
from hopsml.states import ENDS, Lifecycle
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir
from hopsml.tracking import catalog, live

MOST_ROWS = 500  # of one answer
COLUMNS = ("id", "name", "state", "verb", "metric", "started", "seconds", "workers", "user")


class Noted(Protocol):
    """What people have noted of a run."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Words by which it is found."""

    @property
    def note(self) -> str:
        """A text."""


NOTHING_NOTED: Mapping[str, Noted] = MappingProxyType({})


class RunPage(msgspec.Struct, frozen=True):
    """``total``: runs of the project; ``found``: those that the filter lets through, of which ``rows`` are a part."""

    rows: list[RunRow]
    total: int
    found: int
    states: dict[str, int]  # how many of the project's runs are in which state
    arguments: list[str]  # names that any run has, for the choice of columns
    metrics: list[str]


class RunIndex:
    """All runs of a project in memory. One that has ended does not change: only the others are read again."""

    def __init__(self, project_url: str) -> None:
        self._experiments = urls.join(project_url, EXPERIMENTS)
        self._rows: dict[str, RunRow] = {}
        self._others: dict[str, float] = {}  # directories that are no runs, by the time at which they were none
        self._lock = threading.Lock()
        self._names: tuple[list[str], list[str]] = [], []
        self._refreshed = -math.inf

    def refresh(self, older_s: float = 0.0) -> None:
        """Read what is new or still goes on, unless that was done less than ``older_s`` seconds ago. Raises StorageError."""
        with self._lock:
            if time.monotonic() - self._refreshed < older_s:
                return
            try:
                listed = filesystem.for_url(self._experiments).list_dir(self._experiments)
            except PathNotFound:
                listed = []
            found = {entry.name: entry for entry in listed if entry.is_dir}
            due = [
                entry
                for name, entry in found.items()
                if not self._is_settled(name) and self._others.get(name) != entry.modified_s
            ]
            gone = [name for name in self._rows if name not in found]
            for name in gone:
                del self._rows[name]
            is_changed = bool(gone)
            with ThreadPoolExecutor(catalog.PARALLEL_READS, thread_name_prefix="hopsml-read-run") as pool:
                for entry, row in zip(due, pool.map(_row_or_none, [one.url for one in due]), strict=True):
                    if row is None:
                        self._others[entry.name] = entry.modified_s
                    elif self._rows.get(entry.name) != row:
                        self._rows[entry.name] = row
                        is_changed = True
            if is_changed:
                self._names = _names(self._rows.values(), "arguments"), _names(self._rows.values(), "metrics")
            self._refreshed = time.monotonic()

    def page(
        self,
        *,
        text: str = "",
        sort: str = "started",
        descending: bool = True,
        offset: int = 0,
        limit: int = 100,
        noted: Mapping[str, Noted] = NOTHING_NOTED,
    ) -> RunPage:
        """Some of the runs that a filter lets through (``run_filter``), sorted by a column; those without a value last.

        ``noted``: tags and note of runs, by their ids. Raises ArgumentError for a column or a filter that means nothing.
        """
        if sort not in COLUMNS and sort.partition(".")[0] not in ("arguments", "metrics"):
            raise ArgumentError(
                f"sort={sort[:80]!r}: sort by one of {', '.join(COLUMNS)}, arguments.NAME, metrics.NAME"
            )
        if offset < 0 or not 1 <= limit <= MOST_ROWS:
            raise ArgumentError(f"offset={offset}, limit={limit}: from 0 on, 1 to {MOST_ROWS} rows at once")
        passes = parsed(text)
        rows = [_with_note(row, noted.get(row.id)) for row in list(self._rows.values())]
        kept = [row for row in rows if passes(row)] if text.strip() else rows
        states: dict[str, int] = {}
        for row in rows:
            states[row.state] = states.get(row.state, 0) + 1
        ordered = _sorted(kept, sort, descending)[offset : offset + limit]
        return RunPage(ordered, len(rows), len(kept), states, *self._names)

    def rows(self) -> dict[str, RunRow]:
        """All runs as they were last read, by their ids; a row that has not changed is the same object."""
        with self._lock:
            return dict(self._rows)

    def ongoing(self) -> list[str]:
        """The ids of all runs that have not ended."""
        return [name for name in list(self._rows) if not self._is_settled(name)]

    def _is_settled(self, name: str) -> bool:
        row = self._rows.get(name)
        # A lost run may be taken up again by another driver, which then ends it.
        return row is not None and row.state in ENDS and row.state != Lifecycle.LOST


def _with_note(row: RunRow, noted: Noted | None) -> RunRow:
    return row if noted is None else msgspec.structs.replace(row, tags=noted.tags, note=noted.note)


def _row_or_none(url: str) -> RunRow | None:
    try:
        stored = catalog.read(RunDir(url), brief=True)
        if (
            stored.status is None and stored.main_metric is None
        ):  # nothing has been returned yet: what was reported last
            newest = live.last_report(stored.directory)
            reported = {name: value for name, value in newest.items() if name not in ("step", "time")}
            stored = dataclasses.replace(stored, outputs=reported)
        return row_of(stored)
    except (PathNotFound, PermissionRefused):  # no run, or somebody else's that is private
        return None
    except StorageError:
        if filesystem.exists(RunDir(url).run_json):  # a record that is no JSON
            return None
        raise


def _names(rows: Iterable[RunRow], group: str) -> list[str]:
    return sorted({name for row in rows for name in getattr(row, group)})


def _sorted(rows: list[RunRow], column: str, descending: bool) -> list[RunRow]:
    """Numbers before texts; a run without a value, or with NaN, comes last whichever way it is sorted."""
    group, dot, name = column.partition(".")
    value: Callable[[RunRow], Any]
    value = (lambda row: getattr(row, group).get(name)) if dot else (lambda row: getattr(row, column))
    pairs = [(value(row), row) for row in rows]
    empty = [row for found, row in pairs if _is_empty(found)]
    filled = [(found, row) for found, row in pairs if not _is_empty(found)]
    if any(not isinstance(found, int | float) for found, _ in filled):
        filled = [(found if isinstance(found, str) else str(found), row) for found, row in filled]
    filled.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in filled] + empty


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
