"""Asynchronous calls of user functions (displays, callbacks, logging handlers) on separate threads.

The publisher never waits: an item is put into a bounded backlog, and a thread, which exists while there are items,
calls the function. A function that is too slow, or blocks forever (a pager that is not scrolled, a stopped terminal),
misses updates and receives their number; items that occur once (notes, phases, the end) wait for it.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import logging
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Generic, Literal, Protocol, TypeVar

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., object])

MOST_UPDATES = 2_000  # that wait for one reader
MOST_BYTES = 1 << 20  # of these updates together
MOST_NEWS = 10_000
SETTLE_S = 3.0  # longest wait for undelivered items at the end of a run, a search or the program
LINGER_S = 0.2  # idle time after which a thread ends; the next item starts another one
Worth = Literal["update", "news", "end"]


class BacklogRule(Protocol[T]):
    """Strategy of a backlog: the class and size of an item, and the treatment of dropped items."""

    def worth(self, item: T) -> Worth:
        """Return the class of an item.

        ``update``: dropped if many wait; ``news``: dropped if very many wait; ``end``: never dropped.
        """

    def size(self, item: T) -> int:
        """Return the memory that an update takes, in bytes."""

    def same_as(self, item: T) -> Hashable | None:
        """Return a key for retaining updates: of dropped ones with the same key the newest is retained.

        None: it is not retained.
        """

    def count(self, item: T, skipped: Counter[str]) -> None:
        """Count in ``skipped``, by kind, what is lost with a dropped item."""

    def skipped_item(self, skipped: Counter[str]) -> T:
        """Return an item that informs the reader about dropped items."""


class Backlog(Generic[T]):
    """Bounded queue for one reader; items that find it full are dropped as its ``BacklogRule`` specifies."""

    def __init__(
        self, rule: BacklogRule[T], updates: int = MOST_UPDATES, most_bytes: int = MOST_BYTES, news: int = MOST_NEWS
    ) -> None:
        self._rule = rule
        self._most_updates, self._most_bytes, self._most_news = updates, most_bytes, news
        self._items: deque[T] = deque()
        self._updates = self._bytes = self._news = 0
        self._skipped: Counter[str] = Counter()
        self._newest: dict[Hashable, T] = {}

    def __bool__(self) -> bool:
        return bool(self._items or self._skipped)

    def put(self, item: T) -> None:
        """Append an item to the queue; if too many wait it is dropped and counted.

        Of dropped items with the same key the newest is retained.
        """
        worth = self._rule.worth(item)
        if worth == "end":
            self._say_what_was_skipped()
        elif self._is_too_much(worth, item):
            self._rule.count(item, self._skipped)
            key = self._rule.same_as(item)
            if key is not None:
                self._newest.pop(key, None)
                self._newest[key] = item
            return
        elif worth == "news":
            self._news += 1
        else:
            self._updates += 1
            self._bytes += self._rule.size(item)
        self._items.append(item)

    def _is_too_much(self, worth: Worth, item: T) -> bool:
        """Return True if an item must be dropped."""
        if worth == "news":
            return self._news >= self._most_news
        # The note about dropped items must come before the items after them.
        full = self._updates >= self._most_updates or self._bytes + self._rule.size(item) > self._most_bytes
        return bool(self._skipped) or (full and self._updates > 0)

    def take(self) -> T | None:
        """Remove and return the next item; None if there is none."""
        if not self._items:
            self._say_what_was_skipped()
        if not self._items:
            return None
        item = self._items.popleft()
        worth = self._rule.worth(item)
        if worth == "news":
            self._news = max(0, self._news - 1)
        elif worth == "update":
            self._updates -= 1
            self._bytes -= self._rule.size(item)
        return item

    def _say_what_was_skipped(self) -> None:
        """Append the note about dropped items, and the newest of them."""
        if not self._skipped:
            return
        late = list(self._newest.values())
        self._items.append(self._rule.skipped_item(self._skipped))
        self._items.extend(late)
        self._news += 1
        self._updates += len(late)
        self._bytes += sum(self._rule.size(item) for item in late)
        self._skipped, self._newest = Counter(), {}


class AsyncCalls(Generic[T]):
    """Asynchronous calls of one function, with the backlog of its items; thread-safe.

    The function is called with one item at a time, in order, in the context (for instance of a notebook's cell) in
    which this object was created. After it has raised it is not called again.
    """

    def __init__(self, name: str, function: Callable[[T], object], rule: BacklogRule[T]) -> None:
        """Create the delivery to a function.

        Args:
            name: name of the thread.
            function: called with each item.
            rule: rule of the backlog.
        """
        self._name, self._function, self._rule = name, function, rule
        self._context = contextvars.copy_context()
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset the backlog and the thread, which does not exist in a forked process."""
        self._backlog = Backlog(self._rule)
        self._changed = threading.Condition()
        self._thread_is_there = self._is_calling = self._closed = False

    def put(self, item: T) -> None:
        """Queue an item for the function, which is called on another thread; returns at once."""
        with self._changed:
            if self._closed:
                return
            self._backlog.put(item)
            if self._thread_is_there:
                self._changed.notify_all()
                return
            self._thread_is_there = True
        threading.Thread(target=self._context.run, args=(self._deliver,), name=self._name, daemon=True).start()

    def wait_until_delivered(self, timeout_s: float) -> bool:
        """Wait until everything has been delivered, at most ``timeout_s`` seconds; return True if it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not (self._backlog or self._is_calling), timeout_s)

    def close(self) -> None:
        """Stop calling the function; a call in progress continues."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _deliver(self) -> None:
        """Call the function with queued items, until none has come for a while."""
        while True:
            with self._changed:
                self._is_calling = False
                self._changed.notify_all()
                if not self._closed and not self._backlog:
                    self._changed.wait_for(lambda: self._closed or bool(self._backlog), LINGER_S)
                item = None if self._closed else self._backlog.take()
                if item is None:
                    self._thread_is_there = False
                    return
                self._is_calling = True
            try:
                self._function(item)
            except Exception:  # noqa: BLE001 a display must not harm a training
                self.close()


def mark_immediate(function: C) -> C:
    """Mark an internal observer that only records items: it is called on the publisher's thread."""
    function.immediate = True  # type: ignore[attr-defined]
    return function


def is_immediate(function: Callable[..., object]) -> bool:
    """Return True if the function is marked to be called at once, on the caller's thread."""
    return bool(getattr(function, "immediate", False))


class Observers(Generic[T]):
    """Observers of one run or one search, which all receive the same items; thread-safe."""

    def __init__(self, name: str, rule: BacklogRule[T]) -> None:
        """Create an empty set of observers.

        Args:
            name: name of the threads on which observers are called.
            rule: rule of the observers' backlogs.
        """
        self.lock = threading.RLock()  # also guards the observed state, so that it agrees with the items that were sent
        self._name, self._rule = name, rule
        self._immediate: list[Callable[[T], object]] = []
        self._deliveries: list[AsyncCalls[T]] = []

    def add(self, observer: Callable[[T], object]) -> Callable[[T], object]:
        """Register an observer for all further items, and return a function that sends an item to it alone.

        It is called on its own thread or, if it is marked as ``immediate``, on the publisher's. An observer that raises
        is removed.
        """
        with self.lock:
            if is_immediate(observer):
                self._immediate.append(observer)
                return observer
            self._deliveries.append(AsyncCalls(self._name, observer, self._rule))
            return self._deliveries[-1].put

    def send(self, item: T, note: Callable[[], object] = lambda: None) -> None:
        """Send an item to all observers without waiting; ``note`` first records it, under the lock."""
        with self.lock:
            note()
            immediate_ones = list(self._immediate)
            for delivery in self._deliveries:
                delivery.put(item)
        for observer in immediate_ones:
            try:
                observer(item)
            except Exception:  # noqa: BLE001 a display must not harm a training
                with self.lock:
                    self._immediate = [each for each in self._immediate if each is not observer]

    def wait_until_delivered(self, timeout_s: float = SETTLE_S) -> bool:
        """Wait until all observers have received all items, at most ``timeout_s`` seconds; return True if they have."""
        deadline = time.monotonic() + timeout_s
        with self.lock:
            deliveries = list(self._deliveries)
        return all([each.wait_until_delivered(max(0.0, deadline - time.monotonic())) for each in deliveries])


def wait_until_writable(stream: object) -> None:
    """Wait until a terminal or a pipe accepts output, without holding any lock that the end of the program needs.

    Returns at once for an object that is not a file.
    """
    try:
        descriptor = stream.fileno()  # type: ignore[attr-defined]
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
    except (AttributeError, OSError, TypeError, ValueError):
        return  # a stream without a descriptor, as in notebooks and tests
    poll.poll()


# ---------------------------------------------------------------------------------------------- logging


class _Records:
    """Rule of log records: those that find the backlog full are dropped and counted."""

    def worth(self, item: logging.LogRecord) -> Worth:
        """Return the class of records, which may be dropped only if very many wait."""
        return "news"

    def size(self, item: logging.LogRecord) -> int:
        """Return 0: only updates have a size."""
        return 0

    def same_as(self, item: logging.LogRecord) -> None:
        """Return None: dropped records are not retained."""
        return None

    def count(self, item: logging.LogRecord, skipped: Counter[str]) -> None:
        """Count a dropped record."""
        skipped["records"] += 1

    def skipped_item(self, skipped: Counter[str]) -> logging.LogRecord:
        """Return a warning with the number of dropped records."""
        text = f"{skipped['records']} further messages were not logged, since a logging handler is too slow"
        return logging.LogRecord("hopsml", logging.WARNING, __file__, 0, text, None, None)


class _Aside(logging.Handler):
    """Handler that passes records to the logger of the same name on the thread of ``RECORDS``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record if its logger's level permits it."""
        if logging.getLogger(record.name).isEnabledFor(record.levelno):
            RECORDS.put(record)


def _log(record: logging.LogRecord) -> None:
    """Pass a record to its logger's handlers, once their streams accept output."""
    logger = logging.getLogger(record.name)
    for stream in _streams_of(logger):
        wait_until_writable(stream)
    with contextlib.suppress(Exception):  # a handler fails; the next record may succeed
        logger.handle(record)


def _streams_of(logger: logging.Logger) -> list[object]:
    """Return the streams that this logger's handlers, and those of its parents, write to."""
    handlers: list[logging.Handler] = []
    at: logging.Logger | None = logger
    while at is not None:
        # Hopsml's own handlers only mask secrets.
        handlers += [each for each in at.handlers if not type(each).__module__.startswith("hopsml.")]
        at = at.parent if at.propagate else None
    if not handlers and logging.lastResort is not None:
        handlers = [logging.lastResort]
    return [getattr(handler, "stream", None) for handler in handlers]


RECORDS: AsyncCalls[logging.LogRecord] = AsyncCalls("hopsml-log", _log, _Records())
atexit.register(RECORDS.wait_until_delivered, SETTLE_S)
os.register_at_fork(after_in_child=RECORDS.reset_after_fork)  # the thread exists only in the parent


def nonblocking_logger(name: str) -> logging.Logger:
    """Return a logger for threads that must not block: its handlers are called on another thread."""
    logger = logging.Logger(name)
    logger.addHandler(_Aside())
    return logger
