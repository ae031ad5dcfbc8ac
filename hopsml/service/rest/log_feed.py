"""What the driver of a task prints, as it can be followed: one reader of the log, however many listen.

The newest pieces are kept as they travel, and the end of the log is where its reader is. Whoever is behind it gets pieces
that are read on demand, one at a time, and kept for the next one who comes to the same place: a long log costs no memory.
"""

from __future__ import annotations

import asyncio
import codecs
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.service.rest.event_stream import encoded
from hopsml.service.rest.threads import FOLLOWING

if TYPE_CHECKING:
    from hopsml.service.jobs import JobService

PIECE_BYTES = 64 << 10
KEPT_BYTES = 4 << 20  # of all pieces together
GONE_S = 60.0  # a log that could not be read for so long is gone; YARN moves it from its node to the store
_LONGEST = 4  # bytes of a character
Place = tuple[int, int]  # which log of the task, counted; the byte in it


def whole_characters(data: bytes) -> tuple[str, int]:
    """Text, and how many bytes it is made of: a character that is not whole yet is left; what is no UTF-8 is replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(data) - len(decoder.getstate()[0])


class LogFeed:
    """Events of one log; a place is a byte of it.

    A new try of the job, or a log that was cut, is another log: whoever listens is told to begin anew. ``try_number``: the
    log of this try alone; it ends with the try.
    """

    def __init__(self, jobs: JobService, serial: int, task: str, try_number: int | None = None) -> None:
        self._jobs, self._serial, self._task, self._try = jobs, serial, task, try_number
        self._application, self._count = "", 0
        self._end: int | None = None  # up to which byte there are whole characters; None where there is no log yet
        self._is_known = False  # there was a look
        self._is_whole = False  # nothing more will come: YARN's logs of what is over are slow to be asked
        self._over = ""  # the state of a job that prints nothing more
        self._missed_s: float | None = None  # since when what is asked for cannot be read
        self._again = 0  # looks since then: each one lets those who wait ask again
        self._pieces: OrderedDict[int, tuple[bytes, int]] = OrderedDict()  # by where each begins: the event, its end
        self._kept_bytes = 0
        self._reading, self._wanting = threading.RLock(), asyncio.Lock()

    @property
    def version(self) -> Any:
        """How far the log goes."""
        return self._count, self._end, self._over, self._again

    def look(self) -> None:
        """Read what has come. Raises StoreError."""
        with self._reading:
            row = self._jobs.store.job(self._serial)
            try:
                application = self._jobs.application(row, self._task, self._try)
            except ArgumentError:  # it has not been started yet
                application = ""
            if application != self._application and not self._said_more():
                self._begin_anew(application)
            ended = row.state.is_final or (self._try is not None and self._try < row.tries)
            if self._application and self._end is None:
                self._find_end(ended)
            elif self._application and not (ended and self._is_whole):
                self._is_whole = self._read_on(ended) and ended
            # The state was read first: what has come before the end is known.
            self._over = row.state.value if ended else ""
            self._again += self._missed_s is not None
            self._is_known = True

    def _said_more(self) -> bool:
        """Whether the last look at a log that is left finds something: that comes before the log of the next try."""
        before = self._end
        if before is not None:
            self._read_on(ended=True)
        return self._end != before

    def _begin_anew(self, application: str) -> None:
        self._application, self._count, self._end, self._is_whole = application, self._count + 1, None, False
        self._pieces.clear()
        self._kept_bytes = 0

    def _find_end(self, ended: bool) -> None:
        if (last := self._jobs.engine.log(self._application, -_LONGEST, _LONGEST)) is not None:
            _, taken = whole_characters(last.data)
            self._end = last.end if ended else last.offset + (taken or len(last.data))

    def _read_on(self, ended: bool) -> bool:
        """False where the log cannot be had now."""
        assert self._end is not None
        # By its end: what lies between is for those who listen, and an engine may have to walk there.
        found = self._jobs.engine.log(self._application, -PIECE_BYTES, PIECE_BYTES)
        if found is None:
            return False
        if found.length < self._end:
            self._begin_anew(self._application)
            self._find_end(ended)
        elif found.offset > self._end:  # it grows faster: who listens reads at its own speed
            _, taken = whole_characters(found.data)
            self._end = found.end if ended else found.offset + taken
        elif data := found.data[self._end - found.offset :]:
            _, taken = whole_characters(data)
            if whole := data if ended else data[:taken]:
                self._keep(self._end, whole, self._end)
        return True

    def _keep(self, wanted: int, data: bytes, offset: int) -> None:
        end = offset + len(data)
        told = {"text": data.decode(errors="replace"), "offset": offset}
        event = encoded(str(end), "log", told)
        self._kept_bytes -= len(self._pieces.pop(wanted, (b"", 0))[0])
        self._pieces[wanted], self._kept_bytes = (event, end), self._kept_bytes + len(event)
        while self._kept_bytes > KEPT_BYTES and len(self._pieces) > 1:
            self._kept_bytes -= len(self._pieces.popitem(last=False)[1][0])
        self._end = max(self._end or 0, end)

    async def begin(self, last: str) -> tuple[Place, bytes]:
        """``last``: the byte, below 0 from the end; behind it the application whose byte it is, where that is known."""
        text, _, application = last.partition(" ")
        offset = int(text)
        async with self._wanting:
            if not self._is_known or (self._end is not None and offset > self._end):
                await FOLLOWING.run(self.look)
        count, end = self._count, self._end
        if end is not None and offset < 0:
            offset = max(0, end + offset)
        elif (end is not None and offset > end) or application not in ("", self._application):
            count = -1
        place = count, max(0, offset)
        return place, encoded(str(place[1]), "hello", {"application": self._application})

    async def since(self, at: Place) -> tuple[list[bytes], Place | None]:
        """The next piece; "reset" where another log is followed now; "end" where nothing comes any more."""
        (count, offset), now = at, self._count
        if count != now:
            return [encoded("0", "reset", {"application": self._application})], (now, 0)
        if self._end is not None and offset < self._end:
            async with self._wanting:
                if offset not in self._pieces:
                    await FOLLOWING.run(self._read, count, offset)
            event, end = self._pieces.get(offset, (b"", offset))
            if count != self._count:  # meanwhile
                return [], at
            if event:
                return [event], (count, end)
            if not self._is_gone():
                return [], at
        if self._over:
            return [encoded(str(offset), "end", {"state": self._over})], None
        return [], at

    def _read(self, count: int, offset: int) -> None:
        with self._reading:
            if count != self._count or self._end is None:
                return
            wanted = min(PIECE_BYTES, self._end - offset)
            found = self._jobs.engine.log(self._application, offset, wanted)
            if found is not None and found.data:
                _, taken = whole_characters(found.data)
                self._keep(offset, found.data[: taken or None], found.offset)
                self._missed_s = None
            elif self._missed_s is None:
                self._missed_s = time.monotonic()

    def _is_gone(self) -> bool:
        return self._missed_s is not None and time.monotonic() - self._missed_s >= GONE_S
