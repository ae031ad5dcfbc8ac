"""Changes of a project as numbered events, of which a client that was disconnected can request the missed ones."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from hopsml.errors import PathNotFound, StorageError
from hopsml.service.browse.project import Project
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

KEPT = 2_000  # newest events that are retained


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
        self._events: deque[ProjectChange] = deque(maxlen=KEPT)
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
