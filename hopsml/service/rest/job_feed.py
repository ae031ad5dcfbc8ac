"""Feed of the state changes of all jobs, in the order of their rows in the store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from hopsml.service.rest.event_stream import encoded
from hopsml.service.rest.threads import FOLLOWING
from hopsml.service.store.rows import ChangeRow
from hopsml.service.store.store import JobStore

KEPT = 2_000  # rows; a listener that is further behind must read the jobs again
GAP_S = 5.0  # seconds to wait for a missing row that may appear after a row with a higher id
Row = tuple[int, bytes]


def unbroken(after: int, ids: Sequence[int]) -> int:
    """Return how many of these ascending ids follow ``after`` without a gap."""
    return next((count for count, id_ in enumerate(ids) if id_ != after + count + 1), len(ids))


class JobFeed:
    """Events of all jobs' state changes; a position is the id of a row.

    PostgreSQL may show a row before one with a lower id, for which the feed waits a while.
    """

    def __init__(self, store: JobStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._rows: deque[Row] = deque()
        self._forgotten = 0  # the highest id that was dropped
        self._newest: int | None = None
        self._gap_since_s: float | None = None

    @property
    def version(self) -> int | None:
        """Return the id of the newest row; None before the first poll."""
        return self._newest

    def poll(self) -> None:
        """Read the rows that were stored since the last poll, at first the newest rows. Raises StoreError."""
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
        """Return how many of the new rows may be sent: those before a gap, or after it when it is too old."""
        assert self._newest is not None
        count = unbroken(self._newest, ids)
        if count == len(ids):
            self._gap_since_s = None
        elif count or self._gap_since_s is None:
            self._gap_since_s = self._clock()
        elif self._clock() - self._gap_since_s >= GAP_S:  # the transaction of the missing row was rolled back
            self._gap_since_s = None
            count = 1 + unbroken(ids[0], ids[1:])
        return count

    def _add(self, found: Sequence[tuple[ChangeRow, str]]) -> None:
        """Add rows to the buffer, and drop the oldest if there are too many."""
        for change, name in found:
            self._rows.append((change.id, _event(change, name)))
            self._newest = change.id
        while len(self._rows) > KEPT:
            self._forgotten = self._rows.popleft()[0]

    async def start_listener(self, last: str) -> tuple[int, bytes]:
        """Return a listener's start position and its greeting: the newest row, or the listener's last one.

        Args:
            last: Id of the last event that the listener has received; "" for none.
        """
        if self._newest is None:
            await FOLLOWING.run(self.poll)
        newest = self._newest or 0
        at = newest if not last else int(last) if last.isdecimal() else -1
        return at, encoded(str(max(at, 0)), "hello", {})

    async def since(self, at: int) -> tuple[list[bytes], int | None]:
        """Return all events after a position; a single "reset" if the position was dropped or is invalid."""
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
    """Encode a state change as an event "job"; ``name`` is the job's name."""
    told = {
        "job": f"{name}-{change.job}",
        "task": change.task,
        "state": change.state.value,
        "cause": change.cause,
        "try_number": change.try_number,
        "at_s": change.at_s,
    }
    return encoded(str(change.id), "job", told)
