"""Interface between the job service and the engine that runs applications, and the threads that engines share.

Threads carry out submissions, each of which can be aborted, and exchange slot numbers with drivers.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from hopsml.errors import StorageError
from hopsml.service.driver import driver_requests
from hopsml.service.lifecycle.record import EngineSnapshot, SlotsAnswer
from hopsml.service.scheduler.resources import Resources
from hopsml.submission import SubmissionPlan
from hopsml.submission.spark_submit import Waiter

log = logging.getLogger("hopsml.service")

EXCHANGES_AT_ONCE = 4
AT_ONCE = 4  # submissions; each runs a JVM for a few seconds
INTERRUPTED = 128 + signal.SIGINT  # exit status of a driver that was requested to end


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
        self._threads = ThreadPoolExecutor(EXCHANGES_AT_ONCE, thread_name_prefix="hopsml-slots")

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


class Withdrawal:
    """Implementation of ``Waiter`` whose only signal is that the submission was withdrawn."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def withdraw(self) -> None:
        """Signal the withdrawal of the submission; may be called by any thread."""
        os.eventfd_write(self._event, 1)

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Wait for the withdrawal.

        Args:
            timeout_s: Timeout in seconds.
            other: Descriptor whose readability also ends the wait.

        Returns:
            The number of SIGTERM once withdrawn; None after the timeout, or when ``other`` is readable.
        """
        watched = [self._event] if other is None else [self._event, other]
        ready = select.select(watched, [], [], max(0.0, timeout_s))[0]
        return int(signal.SIGTERM) if self._event in ready else None

    def close(self) -> None:
        """Close the event descriptor; no thread may wait for it any more."""
        os.close(self._event)


class Submissions:
    """Thread pool for submissions, with the tags in progress and the errors of failed ones.

    ``state`` may be called by any thread.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hopsml-submit")
        self._lock = threading.Lock()
        self._under_way: dict[str, Withdrawal] = {}
        self._refused: dict[str, str] = {}

    def begin(self, tag: str, submit: Callable[[Waiter], object]) -> None:
        """Call ``submit`` on a thread; the text of its exception becomes the reason of the tag's refusal."""
        with self._lock:
            self._under_way[tag] = Withdrawal()
        self._threads.submit(self._carry_out, tag, submit)

    def _carry_out(self, tag: str, submit: Callable[[Waiter], object]) -> None:
        """Run one submission and record its error, if any."""
        withdrawal = self._under_way[tag]
        try:
            if withdrawal.wait(0.0) is None:
                submit(withdrawal)
        except Exception as error:  # noqa: BLE001 any error is reported as the job's cause
            log.info("submission of %s failed: %s", tag, error)
            with self._lock:
                self._refused[tag] = str(error) or type(error).__name__
        finally:
            with self._lock:
                del self._under_way[tag]
                withdrawal.close()

    def withdraw(self, tag: str) -> None:
        """Abort the submission of a tag; nothing happens if it has ended."""
        with self._lock:
            if tag in self._under_way:
                self._under_way[tag].withdraw()

    def state(self) -> tuple[frozenset[str], dict[str, str]]:
        """Return the tags whose submissions are in progress, and tag -> error of failed submissions."""
        with self._lock:
            return frozenset(self._under_way), dict(self._refused)

    def forget(self, tag: str) -> None:
        """Drop the error of a failed submission that has been stored."""
        with self._lock:
            self._refused.pop(tag, None)

    def abort_all(self) -> None:
        """Abort all submissions, and wait for their threads."""
        with self._lock:
            for withdrawal in self._under_way.values():
                withdrawal.withdraw()
        self._threads.shutdown(wait=True, cancel_futures=False)


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """Node as one poll of the engine returned it.

    Attributes:
        name: Name of the node, unique in the cluster.
        capacity: Resources of the node.
        used: Resources in use, by all tenants of the cluster.
        label: Label of the node; "" if it has none.
        is_open: False if the node is being decommissioned, so that nothing more can be placed on it.
    """

    name: str
    capacity: Resources
    used: Resources
    label: str = ""
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class EngineState:
    """Result of one poll of an engine.

    Attributes:
        sight: Snapshot of the applications.
        nodes: Nodes of the cluster; None if the engine does not answer.
        problem: Error of an engine that does not answer.
    """

    sight: EngineSnapshot
    nodes: tuple[NodeSeen, ...] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Part of a driver's log.

    Attributes:
        data: Bytes of the log.
        offset: Offset of the first byte. It is above the requested one if the engine no longer stores the bytes
            between.
        length: Length of the whole log so far, in bytes.
    """

    data: bytes
    offset: int
    length: int

    @property
    def end(self) -> int:
        """Offset at which the next part begins."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class SubmitOrder:
    """Application to be submitted.

    Attributes:
        tag: Tag of the launch.
        plan: Function that creates the submission plan. It is called on the submitting thread, because it reads files,
            and may raise an error.
        variables: Environment variables of the driver, in addition to those of the plan.
    """

    tag: str
    plan: Callable[[], SubmissionPlan]
    variables: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Interface of an engine.

    Only ``poll`` may block, for less than half a minute. The other methods start operations whose results appear in
    later polls.

    Attributes:
        resizes: True if slots can be added and removed while an application runs; otherwise it holds its initial slots.
    """

    resizes: bool

    def poll(self) -> EngineState:
        """Poll all applications of this service, and the nodes."""

    def submit(self, order: SubmitOrder) -> None:
        """Start to submit an application; its tag is listed as being submitted when this method returns."""

    def withdraw(self, tag: str) -> None:
        """Abort the submission of a tag; if an application was started nevertheless, a later poll returns it."""

    def request_end(self, application_id: str) -> None:
        """Request an application to end in order, with a checkpoint.

        Nothing happens if the engine has no means to send the request.
        """

    def grant_slots(self, application_id: str, slots: int) -> None:
        """Grant an application this number of slots; later polls return its driver's answer.

        Repeated calls are harmless.
        """

    def kill(self, application_id: str) -> None:
        """Kill an application without a grace period."""

    def forget_granted_slots(self) -> None:
        """Drop the cached slot numbers that were sent to drivers: another server may have sent different ones."""

    def forget(self, tag: str) -> None:
        """Exclude a launch from later polls: it has ended, and its end is stored. Its log can still be read."""

    def remove(self, before_s: float, may: Callable[[str], bool]) -> int:
        """Delete the engine's files of launches that ended before a time, and return their number.

        May be called by any thread, and may block.

        Args:
            before_s: Time in seconds since 1970.
            may: Function that returns True for the tag of a launch that may be deleted.
        """

    def worker(self, each: Resources) -> Resources:
        """Return the resources that a worker of this size actually occupies."""

    def driver(self) -> Resources:
        """Return the resources that the driver of a task occupies."""

    def log(self, application_id: str, offset: int, limit: int) -> LogPiece | None:
        """Read at most ``limit`` bytes of a driver's log.

        Args:
            application_id: ID of the application.
            offset: Offset of the first byte; a negative value counts from the end of the log.
            limit: Maximum number of bytes.

        Returns:
            None if there is no log (yet).
        """

    def close(self) -> None:
        """Abort submissions and end threads; applications continue to run."""
