"""Read access of a web page's server to a project: the list of runs, cached readers of single runs, and changes.

Changes are numbered events, of which a client that was disconnected can request the missed ones.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from hopsml.core import decoding
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.service.browse import files, run_detail
from hopsml.service.browse.files import Entry, entries
from hopsml.service.browse.logs import LogQuery, LogView
from hopsml.service.browse.metrics import MOST_BYTES, Metrics
from hopsml.service.browse.run_list import RunIndex
from hopsml.storage import trust, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

KEPT = 256  # readers of metrics and of searches: more than are ever compared
KEPT_LOGS = 8  # views of logs: eight bytes per line
LOGS_SHARE = 0.25  # fraction of the memory for views of logs
IDLE_S = 900.0  # seconds after the last view of a run until its cached data is dropped


class CachedReader(Protocol):
    """Interface of an incremental reader, which resumes at its last position."""

    @property
    def held_bytes(self) -> int:
        """Memory used by the reader after its last read, in bytes."""


Reader = TypeVar("Reader", bound=CachedReader)


class ReaderCache:
    """Cache of readers, bounded by number, memory and age; the least recently used one is dropped first.

    Thread-safe.
    """

    def __init__(
        self, most: int, most_bytes: int, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without readers.

        Args:
            most: Number of readers that are cached.
            most_bytes: Memory that they may use together, in bytes; the one used last is always retained.
            idle_s: Seconds after its last use at which ``trim`` drops a reader.
            clock: Returns the time in seconds.
        """
        self._most, self._most_bytes, self._idle_s, self._clock = most, most_bytes, idle_s, clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[CachedReader, float]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Reader]) -> Reader:
        """Return the reader of this key; create it if there is none."""
        with self._lock:
            found = self._kept.pop(key, None)
            reader = make() if found is None else found[0]
            self._kept[key] = reader, self._clock()
        self.trim()
        return reader  # type: ignore[return-value]  # all readers of a key have the same type

    def trim(self) -> None:
        """Drop readers that exceed the limits of number, memory or age."""
        with self._lock:
            old = self._clock() - self._idle_s
            for key in [key for key, (_, used_s) in self._kept.items() if used_s <= old]:
                del self._kept[key]
            held = self._held_bytes()
            while self._kept and (len(self._kept) > self._most or (held > self._most_bytes and len(self._kept) > 1)):
                held -= self._kept.popitem(last=False)[1][0].held_bytes

    @property
    def held_bytes(self) -> int:
        """Memory used by all readers, in bytes."""
        with self._lock:
            return self._held_bytes()

    def _held_bytes(self) -> int:
        """Return the memory used by all readers, in bytes; the caller holds the lock."""
        return sum(reader.held_bytes for reader, _ in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)


@contextlib.contextmanager
def convert_type_errors(run_id: str) -> Iterator[None]:
    """Convert type errors within this context to ArgumentError: the records of the run are malformed."""
    with decoding.understood(f"run {run_id!r}: its records are", "open them where they lie"):
        yield


class Project:
    """View of the runs of one project, read only and thread-safe; all methods raise StorageError."""

    def __init__(self, url: str, memory_bytes: int | None = None) -> None:
        """Create the project's view without reading anything.

        Args:
            url: URL of the project.
            memory_bytes: Memory for the cached data of viewed runs, in bytes; None: the value of HOPSML_UI_MEMORY_MB.

        Raises:
            ArgumentError: HOPSML_UI_MEMORY_MB is no number.
        """
        most = SETTINGS.ui_memory_bytes if memory_bytes is None else memory_bytes
        self.url = url.rstrip("/")
        # requests must not reach other files of the server's user, for example by links in a run
        trust.confine_project(self.url)
        self.name = urls.name(self.url) or self.url
        self.runs = RunIndex(self.url)
        of_logs = int(most * LOGS_SHARE)
        self._readers, self._logs = ReaderCache(KEPT, most - of_logs), ReaderCache(KEPT_LOGS, of_logs)
        self._most_of_run = min(MOST_BYTES, most // 2)

    def directory(self, run_id: str, trial: str = "") -> RunDir:
        """Return the directory of a run, or of one trial of a search. Raises ArgumentError, PathNotFound."""
        return files.run_directory(self.url, run_id, trial)

    def detail(self, run_id: str, trial: str = "") -> run_detail.RunDetail:
        """Return everything that is recorded about a run. Raises ArgumentError, PathNotFound."""
        directory = self.directory(run_id, trial)
        with convert_type_errors(run_id):
            detail = run_detail.read_detail(directory, trial)
            return detail if trial else self._with_best(detail)

    def _with_best(self, detail: run_detail.RunDetail) -> run_detail.RunDetail:
        """Return the details of a search that has no result yet with its best value so far; others as they are."""
        if not detail.row.is_search or detail.row.metric is not None:
            return detail
        search = self.search(detail.row.id)
        best = next((trial.value for trial in search.trials if trial.number == search.best), None)
        row = msgspec.structs.replace(
            detail.row, metric=best, metric_name="" if best is None else search.metric or "value"
        )
        return msgspec.structs.replace(detail, row=row)

    def metrics(self, run_id: str, trial: str = "") -> Metrics:
        """Return the reader of a run's curves, up to date. Raises ArgumentError, PathNotFound."""
        directory = self.directory(run_id, trial)
        reader = self._readers.get(("metrics", directory.url), lambda: Metrics(directory, self._most_of_run))
        reader.more()
        self._readers.trim()
        return reader

    def logs(self, run_id: str, query: LogQuery, trial: str = "") -> LogView:
        """Return the view of a run's log lines that match a query, after one read.

        Raises ArgumentError, PathNotFound.
        """
        directory = self.directory(run_id, trial)
        view = self._logs.get((directory.url, query), lambda: LogView(directory, query))
        view.more()
        self._logs.trim()
        return view

    def search(self, run_id: str) -> run_detail.SearchDetail:
        """Return the state of a search with its trials.

        Raises PathNotFound, and ArgumentError for a run that is no search.
        """
        directory = self.directory(run_id)
        recorded = directory.read_run().get("search")
        if not isinstance(recorded, dict):
            raise ArgumentError(f"run {run_id!r} is no search: it has no trials; open it as a run")
        reader = self._readers.get(("search", directory.url), lambda: run_detail.TrialReader(directory, recorded))
        detail = reader.detail()
        self._readers.trim()
        return detail

    def trim(self) -> None:
        """Drop the cached data of runs that have not been viewed for ``IDLE_S``."""
        for cache in (self._readers, self._logs):
            cache.trim()

    @property
    def held_bytes(self) -> int:
        """Memory used by the cached data of viewed runs, in bytes."""
        return self._readers.held_bytes + self._logs.held_bytes

    def files(self, run_id: str, path: str, trial: str = "") -> tuple[str, list[Entry]]:
        """Return the URL of a file or folder of a run, and the entries of a folder.

        Raises ArgumentError, PathNotFound.
        """
        url = self.file(run_id, path, trial)
        return url, entries(url)

    def file(self, run_id: str, path: str, trial: str = "") -> str:
        """Return the URL of a file or folder of a run. Raises ArgumentError, and PathNotFound for an unknown run."""
        return files.url_below(self.directory(run_id, trial), path)


KEPT_CHANGES = 2_000  # newest events that are retained


class ProjectChange(msgspec.Struct, frozen=True):
    """A change of a run.

    Attributes:
        id: ``<epoch>-<number>``.
        kind: "run" (its row changed), "gone" (it was deleted), "grew" (it reported or printed), or "reset" (events are
            missing).
        run: Id of the run; empty for "reset".
    """

    id: str
    kind: str
    run: str = ""


class Changes:
    """Detector of a project's changes, which polls on request and retains the newest events; thread-safe."""

    def __init__(self, project: Project, epoch: str = "") -> None:
        self._project, self._epoch = project, epoch or secrets.token_hex(4)
        self._events: deque[ProjectChange] = deque(maxlen=KEPT_CHANGES)
        self._number, self._lock = 0, threading.Lock()
        self._sizes: dict[str, tuple[Any, ...]] = {}
        self._rows = project.runs.versions()

    @property
    def newest(self) -> str:
        """Return the id of the newest event."""
        return f"{self._epoch}-{self._number}"

    def poll(self) -> None:
        """Detect the changes since the last poll. Raises StorageError."""
        with self._lock:
            self._project.runs.refresh()
            before, self._rows = self._rows, self._project.runs.versions()
            for run, row in self._rows.items():
                if before.get(run) is not row:
                    self._add("run", run)
            for run in before.keys() - self._rows.keys():
                self._add("gone", run)
            ongoing = self._project.runs.ongoing()
            for run in ongoing:
                sizes = _sizes(self._project.directory, run)
                if self._sizes.get(run) not in (None, sizes):
                    self._add("grew", run)
                self._sizes[run] = sizes
            for run in self._sizes.keys() - set(ongoing):  # the last reports and lines came with the end of the run
                del self._sizes[run]
                self._add("grew", run)

    def since(self, last: str) -> list[ProjectChange]:
        """Return the events after the one with an id; a single "reset" if they are not retained any more.

        Args:
            last: Id of an event.
        """
        epoch, _, number = last.rpartition("-")
        with self._lock:
            known = epoch == self._epoch and number.isdecimal()
            oldest = self._number - len(self._events)
            if not known or not oldest <= int(number) <= self._number:
                return [ProjectChange(self.newest, "reset")]
            return list(self._events)[int(number) - oldest :]

    def _add(self, kind: str, run: str) -> None:
        """Append an event with the next number."""
        self._number += 1
        self._events.append(ProjectChange(self.newest, kind, run))


def _sizes(directory_of: Callable[[str], RunDir], run: str) -> tuple[Any, ...]:
    """Return the lengths of the files that grow while a run is running: reports, logs, and a search's event log."""
    try:
        directory = directory_of(run)
        found: list[tuple[str, int]] = []
        for folder in (directory.url, directory.logs, f"{directory.url}/journal"):
            try:
                listed = for_url(folder).list_dir(folder)
            except PathNotFound:
                continue
            found += [(entry.name, entry.length) for entry in listed if entry.name != "driver.json"]
        return tuple(found)
    except StorageError:  # the run is being deleted
        return ()
