"""What becomes of all jobs, as it can be followed: the rows of the store's changes, in their order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from hopsml.service.rest.event_stream import encoded
from hopsml.service.rest.threads import FOLLOWING
from hopsml.service.store.rows import ChangeRow
from hopsml.service.store.store import JobStore

KEPT = 2_000  # rows: whoever is farther behind reads anew
GAP_S = 5.0  # that a row is waited for whose number was given out before that of one that is there
Row = tuple[int, bytes]


def unbroken(after: int, ids: Sequence[int]) -> int:
    """How many of these rising ids follow ``after`` one by one."""
    return next((count for count, id_ in enumerate(ids) if id_ != after + count + 1), len(ids))


class JobFeed:
    """Events of jobs; a place is the id of a row. PostgreSQL may show a row before one of a lower id: that is waited for."""

    def __init__(self, store: JobStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._rows: deque[Row] = deque()
        self._forgotten = 0  # the highest id that is not kept any more
        self._newest: int | None = None
        self._gap_since_s: float | None = None

    @property
    def version(self) -> int | None:
        """The newest row; None before the first look."""
        return self._newest

    def look(self) -> None:
        """Read what was stored since the last look, at first the newest rows. Raises StoreError."""
        with self._lock:
            found = self._store.newest_changes(self._newest, KEPT)
            if self._newest is None:
                self._forgotten = found[0][0].id - 1 if found else 0
                self._newest = self._forgotten
                self._gap_since_s = None
                self._add(found)
                return
            self._add(found[: self._due([change.id for change, _ in found])])

    def _due(self, ids: Sequence[int]) -> int:
        """How many of the rows that are new may be told."""
        assert self._newest is not None
        count = unbroken(self._newest, ids)
        if count == len(ids):
            self._gap_since_s = None
        elif count or self._gap_since_s is None:
            self._gap_since_s = self._clock()
        elif self._clock() - self._gap_since_s >= GAP_S:  # its transaction was broken off
            self._gap_since_s = None
            count = 1 + unbroken(ids[0], ids[1:])
        return count

    def _add(self, found: Sequence[tuple[ChangeRow, str]]) -> None:
        for change, name in found:
            self._rows.append((change.id, _event(change, name)))
            self._newest = change.id
        while len(self._rows) > KEPT:
            self._forgotten = self._rows.popleft()[0]

    async def begin(self, last: str) -> tuple[int, bytes]:
        """At the newest row, or where the listener was."""
        if self._newest is None:
            await FOLLOWING.run(self.look)
        newest = self._newest or 0
        at = newest if not last else int(last) if last.isdecimal() else -1
        return at, encoded(str(max(at, 0)), "hello", {})

    async def since(self, at: int) -> tuple[list[bytes], int | None]:
        """All that came after it; one "reset" where it is not known any more, or never was."""
        newest = self._newest or 0
        if at == newest:
            return [], at
        with self._lock:
            newest = self._newest or 0
            if not self._forgotten <= at <= newest:
                return [encoded(str(newest), "reset", {})], newest
            later = [event for id_, event in self._rows if id_ > at]
        return later, newest


def _event(change: ChangeRow, name: str) -> bytes:
    told = {
        "job": f"{name}-{change.job}",
        "task": change.task,
        "state": change.state.value,
        "cause": change.cause,
        "try_number": change.try_number,
        "at_s": change.at_s,
    }
    return encoded(str(change.id), "job", told)
