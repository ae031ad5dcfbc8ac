"""All that one page's server knows of a project: its list of runs, and what was read of single runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

from hopsml.errors import ArgumentError
from hopsml.service.browse import places, run_detail, search_detail
from hopsml.service.browse.files import Entry, entries
from hopsml.service.browse.logs import LogQuery, LogView
from hopsml.service.browse.metrics import Metrics
from hopsml.service.browse.run_list import RunIndex
from hopsml.storage import confinement, urls
from hopsml.storage.run_dir import RunDir

KEPT = 256  # readers of metrics and of searches, each with what it has read: more than are ever compared
KEPT_LOGS = 8  # views of logs: eight bytes a line

Reader = TypeVar("Reader")


class ReaderCache:
    """Readers that go on where they ended, the least used of which are forgotten; for several threads."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: OrderedDict[Hashable, object] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Reader]) -> Reader:
        """The reader of this key, made where there is none yet."""
        with self._lock:
            found = self._kept.pop(key, None)
            self._kept[key] = reader = make() if found is None else found
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return reader  # type: ignore[return-value]  # a key stands for one kind of reader


class Project:
    """The runs of one project, read only. Every method may be called by any thread; all raise StorageError."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        confinement.confine(self.url)  # whoever asks sees files of the server's user only where they lie in a run
        self.name = urls.name(self.url) or self.url
        self.runs = RunIndex(self.url)
        self._readers, self._logs = ReaderCache(KEPT), ReaderCache(KEPT_LOGS)

    def directory(self, run_id: str, trial: str = "") -> RunDir:
        """Of a run, or of one trial of a search. Raises ArgumentError, PathNotFound."""
        return places.run_directory(self.url, run_id, trial)

    def detail(self, run_id: str, trial: str = "") -> run_detail.RunDetail:
        """Everything that is recorded of a run. Raises ArgumentError, PathNotFound."""
        return run_detail.read(self.directory(run_id, trial), trial)

    def metrics(self, run_id: str, trial: str = "") -> Metrics:
        """What a run has reported, and what its workers used. Raises ArgumentError, PathNotFound."""
        directory = self.directory(run_id, trial)
        reader = self._readers.get(("metrics", directory.url), lambda: Metrics(directory))
        reader.more()
        return reader

    def logs(self, run_id: str, query: LogQuery, trial: str = "") -> LogView:
        """The lines of a run's logs that are asked for. Raises ArgumentError, PathNotFound."""
        directory = self.directory(run_id, trial)
        view = self._logs.get((directory.url, query), lambda: LogView(directory, query))
        view.more()
        return view

    def search(self, run_id: str) -> search_detail.SearchDetail:
        """How a search stands, with its trials. Raises ArgumentError for a run that is none, PathNotFound."""
        directory = self.directory(run_id)
        recorded = directory.read_run().get("search")
        if not isinstance(recorded, dict):
            raise ArgumentError(f"run {run_id!r} is no search: it has no trials; open it as a run")
        reader = self._readers.get(("search", directory.url), lambda: search_detail.TrialReader(directory, recorded))
        return reader.detail()

    def files(self, run_id: str, path: str, trial: str = "") -> tuple[str, list[Entry]]:
        """The URL of a file or folder of a run, and the entries of a folder. Raises ArgumentError, PathNotFound."""
        url = self.file(run_id, path, trial)
        return url, entries(url)

    def file(self, run_id: str, path: str, trial: str = "") -> str:
        """The URL of a file or folder of a run. Raises ArgumentError, PathNotFound where there is no such run."""
        return places.below(self.directory(run_id, trial), path)
