"""What the handle of a run passes on: values that workers send by ``hopsml.send``, and requests for profiles.

Values are queued and delivered to the user's functions on a thread. Profile requests come from the run's directory and
go to an agent, whose answer is written there.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.shared.protocol import TakeProfile
from hopsml.core.callbacks import mark_immediate, nonblocking_logger
from hopsml.errors import CoordinatorLost, StorageError
from hopsml.storage import mailbox
from hopsml.storage.mailbox import ProfileRequest
from hopsml.storage.run_dir import RunDir
from hopsml.training.messages import ResizeRequest

Ask = Callable[[int, TakeProfile], object]  # requests a profile of the worker of a rank


class ProfileRequestHandler:
    """Handler of one run's profile requests, one at a time; ``handle_requests`` is for the run's thread."""

    def __init__(self, directory: RunDir, run_id: str, send_request: Ask) -> None:
        self._directory, self._run_id, self._send_request = directory, run_id, send_request
        self._has_begun = False
        self._under_way: tuple[ProfileRequest, str, float] | None = None  # with its path and deadline
        self._answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    @mark_immediate
    def on_change(self, change: Change) -> None:
        """Queue an agent's answer to a request; called on the coordinator's thread."""
        if change.kind == "profile":
            self._answers.put((change.data.decode(), change.text))

    def handle_requests(self) -> None:
        """Start a new request, or complete the one under way; a storage error is ignored until the next call."""
        try:
            if self._under_way is not None:
                self._settle(*self._under_way)
            else:
                self._take_up(mailbox.read_profile_request(self._directory))
        except (StorageError, CoordinatorLost):  # the latter if the run has just ended
            pass

    def give_up(self) -> None:
        """Complete the request under way, or mark it as failed, since the run has ended."""
        if self._under_way is None:
            return
        wish = self._under_way[0]
        try:
            self._settle(*self._under_way)
            if self._under_way is not None:
                mailbox.record_profile_state(self._directory, wish, "failed", "the run has ended")
        except StorageError:
            pass

    def _take_up(self, wish: ProfileRequest | None) -> None:
        is_first, self._has_begun = not self._has_begun, True
        if wish is None or not wish.is_open:
            return
        if is_first:
            old = "it was requested before this attempt of the run started; repeat the request"
            mailbox.record_profile_state(self._directory, wish, "failed", old)
            return
        path = mailbox.profile_path(wish, time.time())
        until = time.monotonic() + wish.seconds + mailbox.PROFILE_PATIENCE_S
        self._under_way = wish, path, until
        mailbox.record_profile_state(self._directory, wish, "taking")
        profile_request = TakeProfile(self._run_id, -1, wish.id, wish.seconds, wish.format, wish.idle, path)
        self._send_request(wish.rank, profile_request)

    def _settle(self, wish: ProfileRequest, path: str, until: float) -> None:
        problem = self._answer_to(wish)
        if problem is None and time.monotonic() > until:
            problem = f"the agent of rank {wish.rank} has not answered: it or its worker is stopped, or has ended"
        if problem is None:
            return
        mailbox.record_profile_state(self._directory, wish, "failed" if problem else "done", problem or path)
        self._under_way = None
        mailbox.delete_old_profiles(self._directory)

    def _answer_to(self, wish: ProfileRequest) -> str | None:
        """Return the agent's answer: an error, "" for success, None if there is none; the answer stays queued."""
        unwritten = None
        while not self._answers.empty():
            named, problem = self._answers.get()
            if named == wish.id:
                unwritten = (named, problem)
        if unwritten is not None:
            self._answers.put(unwritten)  # needed again if it cannot be written to storage
        return unwritten[1] if unwritten is not None else None


log = nonblocking_logger("hopsml.messages")

# Limits of the values that wait for delivery; further ones are dropped, which a note reports.
MOST_KEPT = 10_000
MOST_BYTES = 256 << 20
_NOTHING = object()


class Messages:
    """Queue of one run's values in the driver; ``on_change`` observes the run, other methods are for any thread.

    ``on_resize`` is called with a rank and the size that it requested, ``note`` with texts for people. A thread exists
    only while there is something to deliver.
    """

    def __init__(
        self, run_id: str, on_resize: Callable[[int, object], None], note: Callable[[str], None] = lambda text: None
    ) -> None:
        self._run_id, self._on_resize, self._note = run_id, on_resize, note
        self._came: deque[tuple[int, bytes] | Callable[[int, Any], None] | threading.Event] = deque()
        self._functions: list[Callable[[int, Any], None]] = []
        self._buffered: list[tuple[int, Any]] = []
        self._waiting = self._bytes = self._dropped = self._buffered_bytes = 0
        self._lock = threading.Lock()
        self._delivering = False

    @mark_immediate
    def on_change(self, change: Change) -> None:
        """Queue a worker's value; at the run's end, note dropped ones. Called on the coordinator's thread."""
        if change.kind == "said":
            if self._has_room(len(change.data)):
                self._put((change.rank, change.data))
        elif change.kind == "end" and self._dropped:
            self._note(f"{self._dropped} values that workers sent were dropped")

    def _has_room(self, length: int) -> bool:
        with self._lock:
            room = self._waiting < MOST_KEPT and self._bytes + length <= MOST_BYTES
            self._waiting += room
            self._bytes += length * room
            self._dropped += not room
            first = self._dropped == 1 and not room
        if first:
            why = "on_message's function is too slow" if self._functions else "on_message was not called"
            self._note(
                f"values that workers send are dropped from now on: {self._waiting} ({self._bytes / 1e6:.0f} MB) "
                f"wait, the limit is {MOST_KEPT} ({MOST_BYTES / 1e6:.0f} MB), and {why}"
            )
        return room

    def _count_delivered(self, count: int, length: int) -> None:
        with self._lock:
            self._waiting -= count
            self._bytes -= length

    def subscribe(self, function: Callable[[int, Any], None]) -> None:
        """Call the function with every value, first with those that have been received already."""
        self._put(function)

    def await_delivery(self) -> None:
        """Wait until the functions have been called with all values received so far, without a time limit."""
        delivered = threading.Event()
        self._put(delivered)
        delivered.wait()

    def _put(self, item: tuple[int, bytes] | Callable[[int, Any], None] | threading.Event) -> None:
        with self._lock:
            self._came.append(item)
            if not self._delivering:
                self._delivering = True
                threading.Thread(target=self._deliver, name=f"hopsml-messages-{self._run_id}", daemon=True).start()

    def _deliver(self) -> None:
        while True:
            with self._lock:
                if not self._came:
                    self._delivering = False
                    return
                item = self._came.popleft()
            if isinstance(item, tuple):
                self._receive(*item)
            elif isinstance(item, threading.Event):
                item.set()
            else:
                self._functions.append(item)
                for rank, value in self._buffered:
                    self._call(item, rank, value)
                self._count_delivered(len(self._buffered), self._buffered_bytes)
                self._buffered, self._buffered_bytes = [], 0

    def _receive(self, rank: int, data: bytes) -> None:
        value = self._read(rank, data)
        if value is not _NOTHING and not self._functions:
            self._buffered.append((rank, value))
            self._buffered_bytes += len(data)
            return
        for function in self._functions if value is not _NOTHING else ():
            self._call(function, rank, value)
        self._count_delivered(1, len(data))

    def _read(self, rank: int, data: bytes) -> Any:
        """Return the value; ``_NOTHING`` if it is a request to resize, or cannot be unpickled."""
        try:
            value = pickle.loads(data)
        except Exception:
            log.exception("run %s: a value that rank %d sent cannot be read here", self._run_id, rank)
            return _NOTHING
        if isinstance(value, ResizeRequest):
            self._on_resize(rank, value.size)
            return _NOTHING
        return value

    def _call(self, function: Callable[[int, Any], None], rank: int, value: Any) -> None:
        try:
            function(rank, value)
        except Exception:
            log.exception(
                "run %s: the function of on_message failed with a value that rank %d sent", self._run_id, rank
            )
