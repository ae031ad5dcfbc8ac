"""Feeds of event streams: a driver's log, the state changes of all jobs, and the changes of a project's runs.

The newest pieces of a log are cached as encoded events, and the reader's position is the end of the log. A listener
behind it receives pieces that are read on demand, one at a time, and cached for the next listener at the same position,
so that memory is bounded. Changes of jobs are in the order of their rows in the store.
"""

from __future__ import annotations

import asyncio
import codecs
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.service.browse.project import Changes
from hopsml.service.rest.event_stream import encode_event
from hopsml.service.rest.threads import FOLLOWING
from hopsml.service.store.rows import ChangeRow
from hopsml.service.store.store import JobStore

if TYPE_CHECKING:
    from hopsml.service.jobs import JobService


class ProjectFeed:
    """Events of changed runs; a position is the id of an event."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    @property
    def version(self) -> str:
        """Return the id of the newest event."""
        return self._changes.newest

    def poll(self) -> None:
        """Poll the project for changes. Raises StorageError."""
        self._changes.poll()

    async def start_listener(self, last: str) -> tuple[str, bytes]:
        """Return a listener's start position and its greeting: the newest event, or the listener's last one.

        Args:
            last: Id of the last event that the listener has received; "" for none.
        """
        at = last or self._changes.newest
        return at, encode_event(at, "hello", {})

    async def since(self, at: str) -> tuple[list[bytes], str | None]:
        """Return all events after a position, and the position after them."""
        found = self._changes.since(at)
        return [encode_event(event.id, event.kind, {"run": event.run}) for event in found], found[
            -1
        ].id if found else at


KEPT_CHANGES = 2_000  # rows; a listener that is further behind must read the jobs again
GAP_S = 5.0  # seconds to wait for a missing row that may appear after a row with a higher id
Row = tuple[int, bytes]


def count_consecutive(after: int, ids: Sequence[int]) -> int:
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
            found = self._store.newest_changes(self._newest, KEPT_CHANGES)
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
        count = count_consecutive(self._newest, ids)
        if count == len(ids):
            self._gap_since_s = None
        elif count or self._gap_since_s is None:
            self._gap_since_s = self._clock()
        elif self._clock() - self._gap_since_s >= GAP_S:  # the transaction of the missing row was rolled back
            self._gap_since_s = None
            count = 1 + count_consecutive(ids[0], ids[1:])
        return count

    def _add(self, found: Sequence[tuple[ChangeRow, str]]) -> None:
        """Add rows to the buffer, and drop the oldest if there are too many."""
        for change, name in found:
            self._rows.append((change.id, _event(change, name)))
            self._newest = change.id
        while len(self._rows) > KEPT_CHANGES:
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
        return at, encode_event(str(max(at, 0)), "hello", {})

    async def since(self, at: int) -> tuple[list[bytes], int | None]:
        """Return all events after a position; a single "reset" if the position was dropped or is invalid."""
        newest = self._newest or 0
        if at == newest:
            return [], at
        with self._lock:
            newest = self._newest or 0
            if not self._forgotten <= at <= newest:
                return [encode_event(str(newest), "reset", {})], newest
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
    return encode_event(str(change.id), "job", told)


PIECE_BYTES = 64 << 10
KEPT_BYTES = 4 << 20  # most bytes of all cached pieces together
GONE_S = 60.0  # seconds after which an unreadable log counts as removed; YARN moves it from its node to the store
_LONGEST = 4  # most bytes of a character
Place = tuple[int, int]  # number of the task's log, from 1 on; byte offset in it


def decode_complete(data: bytes) -> tuple[str, int]:
    """Decode UTF-8 text, and return it with the number of bytes used.

    An incomplete last character is left; errors are replaced.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])


class LogFeed:
    """Events of one driver's log; a position is a byte offset in it.

    A new try of the job, or a truncated log, is another log: listeners receive a "reset" and start at its beginning.
    With a ``try_number``, the feed is the log of this try alone, and ends with it.
    """

    def __init__(self, jobs: JobService, serial: int, task: str, try_number: int | None = None) -> None:
        self._jobs, self._serial, self._task, self._try = jobs, serial, task, try_number
        self._application, self._count = "", 0
        self._end: int | None = None  # byte up to which characters are complete; None if there is no log yet
        self._is_known = False  # True after the first poll
        self._is_whole = False  # no more text will come: YARN's logs of ended applications are slow to read
        self._over = ""  # the final state of a job that prints nothing more
        self._missed_s: float | None = None  # time since which a requested piece cannot be read
        self._again = 0  # polls since then: each one lets waiting listeners try again
        # by start offset: the encoded event, and its end
        self._pieces: OrderedDict[int, tuple[bytes, int]] = OrderedDict()
        self._kept_bytes = 0
        self._reading, self._wanting = threading.RLock(), asyncio.Lock()

    @property
    def version(self) -> Any:
        """Return a value that changes with the length of the log and the state of the job."""
        return self._count, self._end, self._over, self._again

    def poll(self) -> None:
        """Read the new text of the log. Raises StoreError."""
        with self._reading:
            row = self._jobs.store.job(self._serial)
            try:
                application = self._jobs.application(row, self._task, self._try)
            except ArgumentError:  # the try has not started yet
                application = ""
            if application != self._application and not self._said_more():
                self._begin_anew(application)
            ended = row.state.is_final or (self._try is not None and self._try < row.tries)
            if self._application and self._end is None:
                self._find_end(ended)
            elif self._application and not (ended and self._is_whole):
                self._is_whole = self._read_on(ended) and ended
            # The state was read before the log, so that all text before the end is known.
            self._over = row.state.value if ended else ""
            self._again += self._missed_s is not None
            self._is_known = True

    def _said_more(self) -> bool:
        """Return True if a last poll of the previous try's log finds more text, which is sent before the next try's."""
        before = self._end
        if before is not None:
            self._read_on(ended=True)
        return self._end != before

    def _begin_anew(self, application: str) -> None:
        """Switch to another log: that of a new application, or the same one after it was truncated."""
        self._application, self._count, self._end, self._is_whole = application, self._count + 1, None, False
        self._pieces.clear()
        self._kept_bytes = 0

    def _find_end(self, ended: bool) -> None:
        """Set the position to the end of the log, so that listeners read the text before it on demand."""
        if (last := self._jobs.engine.log(self._application, -_LONGEST, _LONGEST)) is not None:
            _, taken = decode_complete(last.data)
            self._end = last.end if ended else last.offset + (taken or len(last.data))

    def _read_on(self, ended: bool) -> bool:
        """Read the new text at the end of the log; return False if the log cannot be read now."""
        assert self._end is not None
        # Read from the end: text in between is read for listeners on demand, and an engine may have to scan the log for
        # it.
        found = self._jobs.engine.log(self._application, -PIECE_BYTES, PIECE_BYTES)
        if found is None:
            return False
        if found.length < self._end:
            self._begin_anew(self._application)
            self._find_end(ended)
        elif found.offset > self._end:  # the log grows faster than the polls: listeners read it at their own speed
            _, taken = decode_complete(found.data)
            self._end = found.end if ended else found.offset + taken
        elif data := found.data[self._end - found.offset :]:
            _, taken = decode_complete(data)
            if whole := data if ended else data[:taken]:
                self._keep(self._end, whole, self._end)
        return True

    def _keep(self, wanted: int, data: bytes, offset: int) -> None:
        """Cache a piece under the offset by which listeners request it; the oldest are dropped beyond the limit."""
        end = offset + len(data)
        told = {"text": data.decode(errors="replace"), "offset": offset}
        event = encode_event(str(end), "log", told)
        self._kept_bytes -= len(self._pieces.pop(wanted, (b"", 0))[0])
        self._pieces[wanted], self._kept_bytes = (event, end), self._kept_bytes + len(event)
        while self._kept_bytes > KEPT_BYTES and len(self._pieces) > 1:
            self._kept_bytes -= len(self._pieces.popitem(last=False)[1][0])
        self._end = max(self._end or 0, end)

    async def start_listener(self, last: str) -> tuple[Place, bytes]:
        """Return a listener's start position, and the event that greets it.

        Args:
            last: Byte offset, negative from the end; then, after a space, the application it belongs to, if known.
        """
        text, _, application = last.partition(" ")
        offset = int(text)
        async with self._wanting:
            if not self._is_known or (self._end is not None and offset > self._end):
                await FOLLOWING.run(self.poll)
        count, end = self._count, self._end
        if end is not None and offset < 0:
            offset = max(0, end + offset)
        elif (end is not None and offset > end) or application not in ("", self._application):
            count = -1
        place = count, max(0, offset)
        return place, encode_event(str(place[1]), "hello", {"application": self._application})

    async def since(self, at: Place) -> tuple[list[bytes], Place | None]:
        """Return the next piece of the log; "reset" if another log follows, "end" if no more text will come."""
        (count, offset), now = at, self._count
        if count != now:
            return [encode_event("0", "reset", {"application": self._application})], (now, 0)
        if self._end is not None and offset < self._end:
            async with self._wanting:
                if offset not in self._pieces:
                    await FOLLOWING.run(self._read, count, offset)
            event, end = self._pieces.get(offset, (b"", offset))
            if count != self._count:  # the log has changed during the read
                return [], at
            if event:
                return [event], (count, end)
            if not self._is_gone():
                return [], at
        if self._over:
            return [encode_event(str(offset), "end", {"state": self._over})], None
        return [], at

    def _read(self, count: int, offset: int) -> None:
        """Read the piece at an offset into the cache, unless the log has changed."""
        with self._reading:
            if count != self._count or self._end is None:
                return
            wanted = min(PIECE_BYTES, self._end - offset)
            found = self._jobs.engine.log(self._application, offset, wanted)
            if found is not None and found.data:
                _, taken = decode_complete(found.data)
                self._keep(offset, found.data[: taken or None], found.offset)
                self._missed_s = None
            elif self._missed_s is None:
                self._missed_s = time.monotonic()

    def _is_gone(self) -> bool:
        """Return True if requested text could not be read for ``GONE_S`` seconds."""
        return self._missed_s is not None and time.monotonic() - self._missed_s >= GONE_S
