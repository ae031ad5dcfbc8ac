"""What a search writes down, by a thread of its own: the journal first, then the files that show how far the search is.

A line of the journal is durable when ``durable`` has reached its ticket; nobody is told of a result before. A store that is away
is tried again until the search ends, and for ``END_S`` then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from hopsml.errors import StorageError
from hopsml.storage.filesystem import for_url

log = logging.getLogger("hopsml.search")

RETRY_S = 1.0
END_S = 60.0
EVERY_S = 0.5  # between two versions of a file that shows how far the search is, at least
SHARE = 0.05  # of the time at most is spent on those


class Writer(Protocol):
    """Where lines are kept; ``segments.SegmentWriter``."""

    def add(self, lines: Sequence[str]) -> None:
        """Keep them; raises StorageError."""


class Scribe:
    """``put`` and ``keep`` return at once, for any thread."""

    def __init__(self, writer: Writer, on_durable: Callable[[int], None], note: Callable[[str], None]) -> None:
        """``on_durable`` gets the ticket up to which lines are durable, on this thread; ``note`` what people should know."""
        self._writer, self._on_durable, self._note = writer, on_durable, note
        self._lines: list[str] = []
        self._ticket = self.durable = 0
        self._files: dict[str, Callable[[], bytes]] = {}
        self._next_file_at: dict[str, float] = {}
        self._news = threading.Condition()
        self._closing: float | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="hopsml-search-scribe", daemon=True)
        self._thread.start()

    def put(self, lines: Sequence[str]) -> int:
        """Lines for the journal; their ticket."""
        with self._news:
            if lines:
                self._lines.extend(lines)
                self._ticket += 1
                self._news.notify()
            return self._ticket

    def keep(self, url: str, content: Callable[[], bytes]) -> None:
        """A file that shows how far the search is; a newer version takes the place of one that is not written yet."""
        with self._news:
            self._files[url] = content
            self._news.notify()

    def close(self) -> None:
        """Write what is left and end. Raises StorageError where the journal could not be written within ``END_S``."""
        with self._news:
            self._closing = time.monotonic() + END_S
            self._news.notify()
        self._thread.join()
        if self.error is not None:
            raise self.error

    # ------------------------------------------------------------------------------------------ the thread

    def _write(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 whoever closes must learn of it
            log.exception("the journal of a search ends")
            self.error = error

    def _turn(self) -> bool:
        """One batch, or one file; False when there is nothing left to do."""
        with self._news:
            due = self._due()
            while not self._lines and due is None and self._closing is None:
                self._news.wait(self._patience_s())
                due = self._due()
            lines, ticket, self._lines = self._lines, self._ticket, []
            content = self._files.pop(due) if due is not None and not lines else None
            over = not lines and content is None
        if lines:
            self._journal(lines)
            self.durable = ticket
            self._on_durable(ticket)
        elif content is not None and due is not None:
            self._file(due, content)
        return not over

    def _due(self) -> str | None:
        now = time.monotonic()
        ready = [url for url in self._files if self._closing is not None or self._next_file_at.get(url, 0.0) <= now]
        return ready[0] if ready else None

    def _patience_s(self) -> float | None:
        times = [self._next_file_at.get(url, 0.0) for url in self._files]
        return max(0.001, min(times) - time.monotonic()) if times else None

    def _journal(self, lines: list[str]) -> None:
        said = False
        while True:
            try:
                self._writer.add(lines)
            except StorageError as error:
                if self._closing is not None and time.monotonic() > self._closing:
                    raise
                if not said:
                    self._note(f"the journal cannot be written, and is tried again: {error}")
                said = True
                time.sleep(RETRY_S)
            else:
                return

    def _file(self, url: str, content: Callable[[], bytes]) -> None:
        began = time.monotonic()
        try:
            for_url(url).write_bytes(url, content())
        except StorageError as error:  # the journal has it all
            log.warning("%s", error)
        now = time.monotonic()
        self._next_file_at[url] = now + max(EVERY_S, (now - began) / SHARE)
