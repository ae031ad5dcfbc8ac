"""Sequential reader of a driver's log of any length, which fetches the part between beginning and end only once.

A NodeManager returns the first or the last bytes of a log, and an aggregated file can only be read sequentially. So a
request opened for one piece stays open for the next one; concurrent readers at other offsets of the same log have their
own.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hopsml.core import settings
from hopsml.errors import ClusterError, ClusterUnavailable, StorageError
from hopsml.storage.filesystem import for_url
from hopsml.yarn import logs
from hopsml.yarn.logs import LogPart
from hopsml.yarn.resource_manager import YarnApplication
from hopsml.yarn.tfile import Effort, FormatError

MOST_OPEN = 8
IDLE_S = 60.0  # seconds; an open log occupies a thread of its node
_SKIP_BYTES = 1 << 20
SKIP_S = 60.0  # seconds in which a log must be read up to the offset that is asked for


class LogBytes(Protocol):
    """Interface for reading the bytes of a log from its current position."""

    def read(self, count: int, /) -> bytes:
        """Return up to ``count`` bytes; fewer, or none, at the end."""


@dataclass
class OpenLog:
    """Log that is being read.

    ``last`` holds the bytes read last, as a piece may end within a character.
    """

    application_id: str
    name: str
    container: str
    source: LogBytes
    length: int  # readable bytes
    close: Callable[[], object]
    at: int = 0
    last: bytes = b""
    used_s: float = 0.0

    def has(self, application_id: str, name: str, offset: int) -> bool:
        """Return True if it is this log and a piece can start at ``offset``: at its position, or shortly before."""
        is_it = (self.application_id, self.name) == (application_id, name)
        return is_it and self.at - len(self.last) <= offset <= self.at and offset < self.length

    def skip(self, count: int) -> None:
        """Skip ``count`` bytes of the log.

        Raises:
            ClusterUnavailable: if the log ends before, or this takes more than ``SKIP_S``.
        """
        until = time.monotonic() + SKIP_S
        while count:
            if time.monotonic() > until:
                raise ClusterUnavailable(
                    f"the log of {self.container} is too long to be read from byte {self.at + count} on: {SKIP_S:g} s have "
                    "led no further; read it from its beginning, or from its end"
                )
            count -= len(self._next(min(count, _SKIP_BYTES)))

    def piece(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``, for which ``has`` is True.

        Raises ClusterUnavailable.
        """
        kept = self.last[len(self.last) - (self.at - offset) :] if offset < self.at else b""
        fresh = min(limit - len(kept), self.length - self.at)
        data = kept + (self._next(fresh) if fresh > 0 else b"")
        self.last = data
        return data[:limit]

    def _next(self, count: int) -> bytes:
        """Read up to ``count`` bytes; raise ClusterUnavailable if there are none."""
        try:
            data = self.source.read(count)
        except (OSError, http.client.HTTPException, FormatError) as error:
            raise ClusterUnavailable(f"the log of {self.container} broke off at byte {self.at}: {error}") from error
        if not data:
            raise ClusterUnavailable(f"the log of {self.container} ends at byte {self.at}, before its {self.length}")
        self.at += len(data)
        return data


class LogReader:
    """Thread-safe reader of logs that looks an application up only if no open log can continue at the offset."""

    def __init__(self, find: Callable[[str], YarnApplication], most_open: int = MOST_OPEN) -> None:
        self._find, self._most = find, most_open
        self._open: list[OpenLog] = []  # idle ones, in order of last use
        self._lock = threading.Lock()

    def read(self, application_id: str, name: str, offset: int, limit: int) -> LogPart | None:
        """Return a part of a log as ``logs.read``, for an offset of at least 0, without skipping bytes; same errors."""
        opened = self._taken(application_id, name, offset)
        if opened is not None:
            with contextlib.suppress(ClusterError, StorageError):  # the open log has expired: it is opened again
                return self._piece(opened, offset, limit)
        application = self._find(application_id)
        part = logs.of_node(application, name, offset, limit)
        if part is not None:
            if part.offset <= offset:
                return part
            opened = _of_node(application, name, part.length)
        elif not application.is_final or (opened := _of_storage(application, name)) is None:
            return None
        if offset >= opened.length:
            opened.close()
            return LogPart(opened.container, b"", opened.length, complete=True, length=opened.length)
        try:
            opened.skip(offset)
        except BaseException:
            opened.close()
            raise
        return self._piece(opened, offset, limit)

    def _taken(self, application_id: str, name: str, offset: int) -> OpenLog | None:
        """Take an open log that can continue at this offset out of the idle ones, and return it; None if none can."""
        with self._lock:
            found = next((one for one in self._open if one.has(application_id, name, offset)), None)
            if found is not None:
                self._open.remove(found)
            return found

    def _piece(self, opened: OpenLog, offset: int, limit: int) -> LogPart:
        """Read a part from an open log, and close it on an error."""
        try:
            data = opened.piece(offset, limit)
        except BaseException:
            opened.close()
            raise
        self._give_back(opened)
        end = offset + len(data)
        return LogPart(opened.container, data, offset, complete=False, length=max(end, opened.length))

    def _give_back(self, opened: OpenLog) -> None:
        """Store an open log for later use, and close old ones."""
        opened.used_s = time.monotonic()
        with self._lock:
            self._open.append(opened)
            old = [one for one in self._open[: -self._most]]
            old += [one for one in self._open[-self._most :] if opened.used_s - one.used_s > IDLE_S]
            self._open = [one for one in self._open if one not in old]
        for one in old:
            one.close()

    def close(self) -> None:
        """Close all of the open logs."""
        with self._lock:
            left, self._open = self._open, []
        for one in left:
            one.close()


def _of_node(application: YarnApplication, name: str, length: int) -> OpenLog:
    answer = logs.begun(application, name, length)
    return OpenLog(application.id, name, logs.container_of(application), answer, length, answer.close)


def _of_storage(application: YarnApplication, name: str) -> OpenLog | None:
    """Open the aggregated log; return None if there is none (yet).

    Raises StorageError, ClusterError.
    """
    container = logs.container_of(application)
    with logs.told_apart(application.id), contextlib.ExitStack() as stack:
        effort = Effort()  # for all files
        for url in logs.aggregated_files(application.id, application.user, settings.yarn_settings()):
            file = stack.enter_context(for_url(url).open_read(url))
            if (found := logs.begun_within(file, container, name, effort)) is not None:
                effort.lift()  # each piece has a bounded length, and ``OpenLog.skip`` its own bound
                value, length = found
                return OpenLog(application.id, name, container, value, length, stack.pop_all().close)
    return None
