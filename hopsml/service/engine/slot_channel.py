"""Exchange of slot numbers with drivers, on threads because the storage may be slow or unavailable."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from hopsml.errors import StorageError
from hopsml.service.driver import driver_requests
from hopsml.service.lifecycle.engine_snapshot import SlotsAnswer

log = logging.getLogger("hopsml.service")

AT_ONCE = 4


class SlotChannel:
    """Channel through which drivers of one project receive their slots and answer.

    ``write_slots`` and ``newest_answer`` return at once, and must be called by a single thread.
    """

    def __init__(self, project_url: str) -> None:
        self._project_url = project_url
        self._told: dict[str, int] = {}  # tag of a launch -> slots that were written
        self._writes: dict[str, tuple[int, Future[bool]]] = {}  # writes in progress
        self._reads: dict[str, Future[SlotsAnswer | None]] = {}
        self._heard: dict[str, SlotsAnswer] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hopsml-slots")

    def write_slots(self, tag: str, slots: int) -> None:
        """Start to write the number of slots unless it is written; a failed write is repeated at the next call."""
        if tag in self._writes:
            written, done = self._writes[tag]
            if not done.done():
                return
            del self._writes[tag]
            if done.result():
                self._told[tag] = written
        if self._told.get(tag) != slots:
            self._writes[tag] = slots, self._threads.submit(self._write, tag, slots)

    def newest_answer(self, tag: str) -> SlotsAnswer | None:
        """Return the newest answer of a driver that received slots, and start to read the next one."""
        if tag not in self._told and tag not in self._writes:
            return None
        reading = self._reads.get(tag)
        if reading is not None and reading.done():
            if (answer := reading.result()) is not None:
                self._heard[tag] = answer
            reading = None
        if reading is None:
            self._reads[tag] = self._threads.submit(self._read, tag)
        return self._heard.get(tag)

    def forget(self, tag: str) -> None:
        """Drop the state of a launch whose driver has ended."""
        for known in (self._told, self._writes, self._reads, self._heard):
            known.pop(tag, None)

    def forget_all(self) -> None:
        """Drop all cached numbers, so that ``write_slots`` writes the next ones: another server may have written others."""
        self._told.clear()
        self._writes.clear()

    def _write(self, tag: str, slots: int) -> bool:
        """Write the number of slots; return False after an error."""
        try:
            driver_requests.send_slots(self._project_url, tag, slots)
        except StorageError as error:
            log.warning("%s could not be told that it has %d slots: %s", tag, slots, error)
            return False
        return True

    def _read(self, tag: str) -> SlotsAnswer | None:
        """Read a driver's answer; None if there is none, or after an error."""
        try:
            found = driver_requests.answered_slots(self._project_url, tag)
        except StorageError as error:
            log.warning("what %s says of its slots could not be read: %s", tag, error)
            return None
        return None if found is None else SlotsAnswer(*found)

    def close(self) -> None:
        """Wait for the threads to end; queued reads and writes are cancelled."""
        self._threads.shutdown(wait=True, cancel_futures=True)
