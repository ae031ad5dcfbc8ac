"""What has changed in a project, as numbered events that whoever was away can ask for again."""

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

KEPT = 2_000  # events


class ProjectChange(msgspec.Struct, frozen=True):
    """``id``: ``<epoch>-<number>``; ``kind``: "run" (its row changed), "gone", "grew" (it reported or printed), "reset"."""

    id: str
    kind: str
    run: str = ""


class Changes:
    """Looks at a project when it is told to; remembers the newest events. For several threads."""

    def __init__(self, project: Project, epoch: str = "") -> None:
        self._project, self._epoch = project, epoch or secrets.token_hex(4)
        self._events: deque[ProjectChange] = deque(maxlen=KEPT)
        self._number, self._lock = 0, threading.Lock()
        self._sizes: dict[str, tuple[Any, ...]] = {}
        self._rows = project.runs.versions()

    @property
    def newest(self) -> str:
        """The id of the newest event."""
        return f"{self._epoch}-{self._number}"

    def look(self) -> None:
        """Find what has changed since the last look. Raises StorageError."""
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
            for run in self._sizes.keys() - set(ongoing):  # what came last, with the end
                del self._sizes[run]
                self._add("grew", run)

    def since(self, last: str) -> list[ProjectChange]:
        """Events after the one of this id; one "reset" where nobody knows any more what came after it."""
        epoch, _, number = last.rpartition("-")
        with self._lock:
            known = epoch == self._epoch and number.isdecimal()
            oldest = self._number - len(self._events)
            if not known or not oldest <= int(number) <= self._number:
                return [ProjectChange(self.newest, "reset")]
            return list(self._events)[int(number) - oldest :]

    def _add(self, kind: str, run: str) -> None:
        self._number += 1
        self._events.append(ProjectChange(self.newest, kind, run))


def _sizes(directory_of: Callable[[str], RunDir], run: str) -> tuple[Any, ...]:
    """Lengths of what grows while a run goes on: reports, logs, and a search's journal."""
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
    except StorageError:  # it is being deleted
        return ()
