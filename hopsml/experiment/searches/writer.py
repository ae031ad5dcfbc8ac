"""Writer of a search's files: the event log (journal) at once, progress files on a thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from hopsml.core.callbacks import nonblocking_logger
from hopsml.errors import StorageError
from hopsml.storage.backoff import Outage
from hopsml.storage.filesystem import for_url

log = nonblocking_logger("hopsml.search")

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 10.0  # of the event log, for which the search waits
LOOK_S = 0.2  # between two checks, during a wait, that the search shall continue
EVERY_S = 0.5  # between two versions of a file, at least
SHARE = 0.05  # largest share of time for writing such files


class EventLog(Protocol):
    """Interface of the event log, to which lines are appended; ``segments.SegmentWriter`` implements it."""

    def add(self, lines: Sequence[str]) -> None:
        """Append the lines durably. Raises StorageError."""


class SearchWriter:
    """Writer of a search's files; ``journal`` is for the session's thread and blocks, the rest is for any thread."""

    def __init__(self, journal: EventLog, note: Callable[[str], None]) -> None:
        """Start the thread; ``note`` is called with notes for people."""
        self._journal, self._note = journal, note
        self._tasks: deque[Callable[[], None]] = deque()
        self._files: dict[str, Callable[[], bytes]] = {}
        self._next_at: dict[str, float] = {}
        self._outage = Outage()  # of storage, as observed by these files
        self._news = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write_files, name="hopsml-search-files", daemon=True)
        self._thread.start()

    def journal(self, lines: Sequence[str], go_on: Callable[[], bool]) -> None:
        """Append lines to the event log; retry failures of storage while ``go_on()``, then raise StorageError."""
        outage = Outage(FIRST_RETRY_S, LONGEST_RETRY_S)
        while lines:
            try:
                self._journal.add(lines)
            except StorageError as error:
                if outage.failed(time.monotonic()):
                    self._note(f"the search waits: its journal cannot be written, and is tried again: {error}")
                while go_on() and not outage.may_try(time.monotonic()):
                    time.sleep(LOOK_S)
                if not go_on():
                    raise
            else:
                if outage.succeeded():
                    self._note("the search goes on: its journal is written again")
                return

    def queue_file(self, url: str, content: Callable[[], bytes]) -> None:
        """Queue a progress file; a newer version replaces one that is not written yet."""
        with self._news:
            self._files[url] = content
            self._news.notify()

    def later(self, task: Callable[[], None]) -> None:
        """Call a task on the thread, in order, before ``close`` returns."""
        with self._news:
            self._tasks.append(task)
            self._news.notify()

    def close(self) -> None:
        """Write the newest version of each file, and end the thread."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join()

    # ------------------------------------------------------------------------------------------ the thread

    def _write_files(self) -> None:
        while True:
            with self._news:
                while (url := self._due()) is None and not self._tasks and not self._closing:
                    self._news.wait(self._patience_s())
                task = self._tasks.popleft() if self._tasks else None
                if url is None and task is None:
                    return
                content = self._files.pop(url) if url is not None else None
            if task is not None:
                task()
            if url is not None and content is not None:
                self._write(url, content)

    def _due(self) -> str | None:
        now = time.monotonic()
        return next((url for url in self._files if self._closing or self._at(url) <= now), None)

    def _at(self, url: str) -> float:
        """Return when the next version of a file may be written, in monotonic seconds."""
        return max(self._next_at.get(url, 0.0), self._outage.retry_at or 0.0)

    def _patience_s(self) -> float | None:
        times = [self._at(url) for url in self._files]
        return max(0.001, min(times) - time.monotonic()) if times else None

    def _write(self, url: str, content: Callable[[], bytes]) -> None:
        began = time.monotonic()
        try:
            for_url(url).write_bytes(url, content())
        except Exception:  # no data is lost, as the event log has it
            if self._outage.failed(time.monotonic()):
                log.warning("%s could not be written, which is tried again with newer ones", url, exc_info=True)
        else:
            if self._outage.succeeded():
                log.warning("the files that show how far the search is are written again: %s", url)
        now = time.monotonic()
        self._next_at[url] = now + max(EVERY_S, (now - began) / SHARE)
