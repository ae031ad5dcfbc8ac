"""Table of a project's runs that is filtered, sorted and paged on the server, so that a page never holds all rows.

A filter is what users type above the list:

    digits state:failed user:ana lr>0.1 accuracy>=0.9 -name:old tag:good

All terms must match. A bare word is searched for in id, name, verb, user and cause; ``column:text`` in one column;
``tag:good`` matches a whole tag; ``name>value`` (also ``<``, ``>=``, ``<=``, ``=``, ``!=``) compares a column, an
argument or a metric. ``-`` before a term negates it; double quotes enclose a term with blanks.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from hopsml.core.states import ENDS, Lifecycle
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir
from hopsml.tracking import catalog

LONGEST_VALUE = 200  # most characters of an argument in the table


class RunProgress(msgspec.Struct, frozen=True):
    """Number of steps, epochs or trials that are done; ``total`` is None if it is not known."""

    done: int
    total: int | None
    unit: str  # "step", "epoch" or "trial"


class RunRow(msgspec.Struct, frozen=True):
    """Row of one run; ``metric`` is the value of ``metric_name``.

    Times are in seconds; ``started`` is in seconds since 1970.
    """

    id: str
    name: str
    state: str
    verb: str
    is_search: bool
    metric_name: str
    metric: float | None
    started: float | None
    seconds: float | None
    workers: int | None
    user: str
    cause: str
    arguments: dict[str, Any]
    metrics: dict[str, float]
    tags: tuple[str, ...] = ()  # set by users of a job service, which stores notes
    note: str = ""
    progress: RunProgress | None = None  # of a run that is running


def row_of(stored: catalog.StoredRun) -> RunRow:
    """Return the row of a run whose records were read."""
    record, metric = stored.run, stored.main_metric
    value = _number(metric[1]) if metric else None
    arguments = record.get("arguments")
    return RunRow(
        id=stored.run_id,
        name=str(record.get("name") or ""),
        state=str(stored.state),
        verb=str(record.get("verb") or ""),
        is_search=bool(stored.search_settings),
        metric_name=str(metric[0]) if metric and value is not None else "",
        metric=value,
        started=_number(record.get("started")),
        seconds=_number(stored.seconds) if stored.status is not None else None,
        workers=record.get("workers") if isinstance(record.get("workers"), int) else None,
        user=str(record.get("user") or ""),
        cause=stored.cause[:1000],
        arguments={str(name): displayed_value(value) for name, value in (arguments or {}).items()}
        if isinstance(arguments, dict)
        else {},
        metrics={name: number for name, value in stored.outputs.items() if (number := _number(value)) is not None},
    )


def _number(value: Any) -> float | None:
    """Return a number as float; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of floats
        return None


def displayed_value(value: Any, longest: int = LONGEST_VALUE) -> Any:
    """Return a value as it is displayed: long or nested ones as text of at most ``longest`` characters."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= longest else text[: longest - 1] + "…"


LONGEST = 500  # most characters of a filter
_TERMS = re.compile(r'(-?)((?:"[^"]*"|[^\s"])+)')
_COMPARISON = re.compile(r"([^<>=!:]+)(>=|<=|!=|=|>|<)(.+)", re.DOTALL)
_FIELDS = ("id", "name", "state", "verb", "user", "cause")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}

Test = Callable[["RunRow"], bool]


def parse_filter(text: str) -> Test:
    """Parse a filter to a predicate of rows. Raises ArgumentError for more than ``LONGEST`` characters."""
    if len(text) > LONGEST:
        raise ArgumentError(f"a filter of {len(text)} characters: at most {LONGEST}; leave out some of its terms")
    tests = [_turned(_term(term.replace('"', "")), minus == "-") for minus, term in _TERMS.findall(text)]
    return lambda row: all(test(row) for test in tests)


def _turned(test: Test, turned: bool) -> Test:
    """Return the predicate, negated if ``turned`` is True."""
    return (lambda row: not test(row)) if turned else test


def _term(term: str) -> Test:
    """Return the predicate of one term of a filter."""
    compared = _COMPARISON.fullmatch(term)
    if compared:
        return _comparison(*compared.groups())
    field, colon, wanted = term.partition(":")
    if colon and field == "tag":
        return lambda row: wanted.lower() in (tag.lower() for tag in row.tags)
    if colon and field in _FIELDS:
        return _contains((field,), wanted.lower())
    return _contains(_FIELDS, term.lower())


def _contains(fields: tuple[str, ...], wanted: str) -> Test:
    """Return a predicate that searches columns for a text in lower case."""
    return lambda row: any(wanted in getattr(row, field).lower() for field in fields)


def _comparison(name: str, sign: str, wanted: str) -> Test:
    """Return a predicate that compares a value by number, or else by text."""
    compare = _OPERATORS[sign]
    try:
        number: float | None = float(wanted)
    except ValueError:
        number = None

    def test(row: RunRow) -> bool:
        value = _value(row, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and number is not None:
            return compare(value, number)
        if value is None or sign not in ("=", "!="):
            return False
        return compare(str(value).lower(), wanted.lower())

    return test


def _value(row: RunRow, name: str) -> Any:
    """Return an argument, else a metric, else a column of a row."""
    if name in row.arguments:
        return row.arguments[name]
    if name in row.metrics:
        return row.metrics[name]
    if name == row.metric_name:
        return row.metric
    return getattr(row, name, None) if name in (*_FIELDS, "workers", "seconds", "started", "metric") else None


MOST_ROWS = 500  # most rows of one response
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(RunRow)
COLUMNS = ("id", "name", "state", "verb", "metric", "started", "seconds", "workers", "user")


class RunAnnotation(Protocol):
    """Interface of a user's note on a run."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the tags by which the run can be found."""

    @property
    def note(self) -> str:
        """Return the text of the note."""


NOTHING_NOTED: Mapping[str, RunAnnotation] = MappingProxyType({})


class RunPage(msgspec.Struct, frozen=True):
    """A page of the list of runs.

    Attributes:
        rows: The rows of the page.
        total: Number of runs of the project.
        found: Number of runs that match the filter.
        states: Number of the project's runs in each state.
        arguments: Names of arguments that any run has, for the choice of columns.
        metrics: Names of metrics that any run has.
    """

    rows: list[RunRow]
    total: int
    found: int
    states: dict[str, int]
    arguments: list[str]
    metrics: list[str]


class RunIndex:
    """Index of all runs of a project.

    Ended runs do not change: their rows are stored in packed form, and only other runs are read again.
    """

    def __init__(self, project_url: str) -> None:
        self._experiments = urls.join(project_url, EXPERIMENTS)
        self._rows: dict[str, RunRow] = {}  # rows of runs that may change
        self._ended: dict[str, bytes] = {}  # rows of all others, packed: a tenth of the memory
        # directories without a run, by their modification time when they were checked
        self._others: dict[str, float] = {}
        self._lock = threading.Lock()
        self._names: dict[str, set[str]] = {"arguments": set(), "metrics": set()}  # names that any run has
        self._refreshed = -math.inf

    def refresh(self, older_s: float = 0.0) -> None:
        """Read new runs, and those that have not ended.

        Args:
            older_s: Skip the read if the last one was less than this time ago, in seconds.

        Raises:
            StorageError: The project cannot be read.
        """
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
                if name not in self._ended and self._others.get(name) != entry.modified_s
            ]
            self._drop({*self._rows, *self._ended, *self._others} - found.keys())
            with ThreadPoolExecutor(catalog.PARALLEL_READS, thread_name_prefix="hopsml-read-run") as pool:
                for entry, row in zip(due, pool.map(lambda one: catalog.read_summary(one.url, _row), due), strict=True):
                    if row is None:
                        self._others[entry.name] = entry.modified_s
                    else:
                        self._keep(entry.name, row)
            self._refreshed = time.monotonic()

    def _drop(self, gone: set[str]) -> None:
        """Remove the rows of directories that do not exist any more."""
        is_changed = any(name in self._rows or name in self._ended for name in gone)
        for name in gone:
            for known in (self._rows, self._ended, self._others):
                known.pop(name, None)
        if is_changed:
            for names in self._names.values():
                names.clear()
            for row in self._all():
                self._note_names(row)

    def _keep(self, name: str, row: RunRow) -> None:
        """Store the row of a run, packed if it cannot change any more."""
        if self._rows.get(name) == row:
            return
        self._note_names(row)
        if _is_settled(row):
            self._rows.pop(name, None)
            self._ended[name] = _encoder.encode(row)
        else:
            self._rows[name] = row

    def _note_names(self, row: RunRow) -> None:
        """Collect the names of a row's arguments and metrics."""
        for group, names in self._names.items():
            names.update(getattr(row, group))

    def _all(self) -> Iterator[RunRow]:
        """Yield the rows of all runs."""
        yield from list(self._rows.values())
        yield from map(_decoder.decode, list(self._ended.values()))

    def page(
        self,
        *,
        text: str = "",
        sort: str = "started",
        descending: bool = True,
        offset: int = 0,
        limit: int = 100,
        noted: Mapping[str, RunAnnotation] = NOTHING_NOTED,
    ) -> RunPage:
        """Return a page of the runs that match a filter, sorted by a column; runs without a value come last.

        Args:
            text: Filter in the syntax of ``parse_filter``.
            sort: Column, or ``arguments.NAME``, or ``metrics.NAME``.
            descending: Order of the rows.
            offset: Number of the first row.
            limit: Most rows of the page.
            noted: Tags and notes of runs, by run id.

        Raises:
            ArgumentError: The column, the filter or the range is invalid.
        """
        if sort not in COLUMNS and sort.partition(".")[0] not in ("arguments", "metrics"):
            raise ArgumentError(
                f"sort={sort[:80]!r}: sort by one of {', '.join(COLUMNS)}, arguments.NAME, metrics.NAME"
            )
        if offset < 0 or not 1 <= limit <= MOST_ROWS:
            raise ArgumentError(f"offset={offset}, limit={limit}: from 0 on, 1 to {MOST_ROWS} rows at once")
        passes = parse_filter(text)
        with self._lock:
            found = list(self._all())
        rows = [_with_note(row, noted.get(row.id)) for row in found]
        kept = [row for row in rows if passes(row)] if text.strip() else rows
        states: dict[str, int] = {}
        for row in rows:
            states[row.state] = states.get(row.state, 0) + 1
        ordered = _sorted(kept, sort, descending)[offset : offset + limit]
        names = {group: sorted(known) for group, known in self._names.items()}
        return RunPage(ordered, len(rows), len(kept), states, **names)

    def versions(self) -> Mapping[str, object]:
        """Return a version object of each run, by id, which is another object after the run's row has changed."""
        with self._lock:
            return {**self._rows, **self._ended}

    def rows(self, prefix: str = "") -> dict[str, RunRow]:
        """Return the runs as last read, by id; ``prefix``: only ids that begin with it."""
        with self._lock:
            ended = {name: row for name, row in self._ended.items() if name.startswith(prefix)}
            found = {name: row for name, row in self._rows.items() if name.startswith(prefix)}
        return found | {name: _decoder.decode(row) for name, row in ended.items()}

    def ongoing(self) -> list[str]:
        """Return the ids of all runs that have not ended."""
        with self._lock:
            return list(self._rows)


def _is_settled(row: RunRow) -> bool:
    """Return True if a run's row cannot change any more; False for a lost run, which another driver may resume."""
    return row.state in ENDS and row.state != Lifecycle.LOST


def _with_note(row: RunRow, noted: RunAnnotation | None) -> RunRow:
    """Return the row with the user's note and tags."""
    return row if noted is None else msgspec.structs.replace(row, tags=noted.tags, note=noted.note)


def _row(stored: catalog.StoredRun) -> RunRow:
    """Return the row of a run; one without a result has the values that were reported last."""
    if stored.status is None and stored.main_metric is None:
        stored = dataclasses.replace(stored, outputs=catalog.newest_values(stored.directory))
    row = msgspec.structs.replace(row_of(stored), progress=progress_of(stored))
    _encoder.encode(row)  # fails here for values that a response cannot contain
    return row


def progress_of(stored: catalog.StoredRun) -> RunProgress | None:
    """Return the progress of a running run: what its driver has recorded, else its newest step; None for other runs."""
    if stored.status is not None or stored.search_settings:
        return None
    recorded = stored.driver.get("progress")
    told = recorded if isinstance(recorded, dict) else {}
    done, total = (told.get(name) for name in ("done", "total"))
    if isinstance(done, int) and isinstance(total, int):
        return RunProgress(done, total, str(told.get("unit") or "step"))
    step = catalog.last_report(stored.directory).get("step")
    return RunProgress(step, None, "step") if isinstance(step, int) else None


def final_progress(directory: RunDir) -> RunProgress | None:
    """Return the progress that a run had reported when it ended; None if nothing was reported."""
    try:
        driver = directory.read_json(directory.driver_json)
    except (StorageError, ValueError):
        driver = {}
    return progress_of(catalog.StoredRun(directory, {}, None, driver=driver))


def _sorted(rows: list[RunRow], column: str, descending: bool) -> list[RunRow]:
    """Sort rows by a column, numbers before texts.

    A run without a value, or with NaN, comes last in either order.
    """
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
    """Return True if a run has no value, or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
