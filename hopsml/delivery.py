"""Calls functions of the user's (displays, callbacks, logging handlers) on a thread beside the work.

Whoever publishes never waits: an item goes into a bounded backlog and a thread, which is there while there is something to
hand over, calls the function. What is too slow, or stands still for ever (a pager that nobody scrolls, a stopped terminal),
misses updates and is told how many; what is said once (notes, phases, the end) waits for it.
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
MOST_BYTES = 1 << 20  # of them together
MOST_NEWS = 10_000
SETTLE_S = 3.0  # at the end of a run, of a search, of the program: for what has not been read yet; not longer
LINGER_S = 0.2  # a thread without anything to do; the next item would start another
Worth = Literal["update", "news", "end"]


class Rule(Protocol[T]):
    """Strategy of a backlog: how much an item weighs, and what of it may be dropped."""

    def worth(self, item: T) -> Worth:
        """``update``: dropped when there are too many. ``news``: dropped when there are very many. ``end``: never."""

    def size(self, item: T) -> int:
        """The memory in bytes that an update takes."""

    def same_as(self, item: T) -> Hashable | None:
        """Of dropped updates with the same key the newest is kept; None: none is kept."""

    def count(self, item: T, skipped: Counter[str]) -> None:
        """Count in ``skipped``, by kind, what is dropped with this item."""

    def told(self, skipped: Counter[str]) -> T:
        """An item that tells the reader what was dropped."""


class Backlog(Generic[T]):
    """A bounded queue for one reader; items that find it full are dropped as its ``Rule`` allows."""

    def __init__(
        self, rule: Rule[T], updates: int = MOST_UPDATES, most_bytes: int = MOST_BYTES, news: int = MOST_NEWS
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
        """Append an item. If too many wait it is dropped and counted, but the newest of its kind is kept."""
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
        if not self._skipped:
            return
        late = list(self._newest.values())
        self._items.append(self._rule.told(self._skipped))
        self._items.extend(late)
        self._news += 1
        self._updates += len(late)
        self._bytes += sum(self._rule.size(item) for item in late)
        self._skipped, self._newest = Counter(), {}


class Delivery(Generic[T]):
    """One function of a caller's, and what waits for it. Every method may be called from any thread.

    The function is called with one item at a time, in order, in the context (of a notebook's cell, say) of whoever made
    this. One that raises is not called again.
    """

    def __init__(self, name: str, function: Callable[[T], object], rule: Rule[T]) -> None:
        """``name``: of the thread."""
        self._name, self._function, self._rule = name, function, rule
        self._context = contextvars.copy_context()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Drop what waits and forget the thread, which does not exist in a forked process."""
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

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything has been delivered, at most ``timeout_s`` seconds; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not (self._backlog or self._is_calling), timeout_s)

    def close(self) -> None:
        """Deliver nothing more; a call that is under way goes on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _deliver(self) -> None:
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


def immediate(function: C) -> C:
    """Mark an observer of our own that only notes what it is told: it needs no thread, and is called by who publishes."""
    function.immediate = True  # type: ignore[attr-defined]
    return function


def is_immediate(function: Callable[..., object]) -> bool:
    """Whether the function is marked to be called at once, on the caller's thread."""
    return bool(getattr(function, "immediate", False))


class Observers(Generic[T]):
    """The observers of one run, or of one search. Every method may be called from any thread."""

    def __init__(self, name: str, rule: Rule[T]) -> None:
        """``name`` of the threads on which observers are called; ``rule`` for what waits for one of them."""
        self.lock = threading.RLock()  # of what is observed as well: what it holds and what observers are told agree
        self._name, self._rule = name, rule
        self._immediate: list[Callable[[T], object]] = []
        self._deliveries: list[Delivery[T]] = []

    def add(self, observer: Callable[[T], object]) -> Callable[[T], object]:
        """Have the observer called with every item from now on; returns what tells it alone.

        It is called on a thread of its own, or, where it is marked as ``immediate``, by whoever tells. One that raises is
        dropped.
        """
        with self.lock:
            if is_immediate(observer):
                self._immediate.append(observer)
                return observer
            self._deliveries.append(Delivery(self._name, observer, self._rule))
            return self._deliveries[-1].put

    def tell(self, item: T, note: Callable[[], object] = lambda: None) -> None:
        """Let all have an item, without waiting for any; ``note`` records it first, under the lock."""
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

    def settle(self, timeout_s: float = SETTLE_S) -> bool:
        """Wait until all have been told everything, at most ``timeout_s`` seconds together; whether they have."""
        deadline = time.monotonic() + timeout_s
        with self.lock:
            deliveries = list(self._deliveries)
        return all([each.settle(max(0.0, deadline - time.monotonic())) for each in deliveries])


def wait_for(stream: object) -> None:
    """Wait until a terminal or a pipe takes something: outside of the stream and of whatever lock a program's end needs.

    Returns at once for what is no file.
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
    """Rule of log records: as many wait as an hour of trouble makes; further ones are counted."""

    def worth(self, item: logging.LogRecord) -> Worth:
        return "news"

    def size(self, item: logging.LogRecord) -> int:
        return 0

    def same_as(self, item: logging.LogRecord) -> None:
        return None

    def count(self, item: logging.LogRecord, skipped: Counter[str]) -> None:
        skipped["records"] += 1

    def told(self, skipped: Counter[str]) -> logging.LogRecord:
        text = f"{skipped['records']} further messages were not logged: a logging handler is too slow"
        return logging.LogRecord("hopsml", logging.WARNING, __file__, 0, text, None, None)


class _Aside(logging.Handler):
    """A handler that passes records to the logger of the same name on the thread of ``RECORDS``."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger(record.name).isEnabledFor(record.levelno):
            RECORDS.put(record)


def _log(record: logging.LogRecord) -> None:
    logger = logging.getLogger(record.name)
    for stream in _streams_of(logger):
        wait_for(stream)
    with contextlib.suppress(Exception):  # a handler that is broken; the next record may pass
        logger.handle(record)


def _streams_of(logger: logging.Logger) -> list[object]:
    """The streams that this logger's handlers, and those of its parents, write to."""
    handlers: list[logging.Handler] = []
    at: logging.Logger | None = logger
    while at is not None:
        handlers += [each for each in at.handlers if not type(each).__module__.startswith("hopsml.")]  # ours only clean
        at = at.parent if at.propagate else None
    if not handlers and logging.lastResort is not None:
        handlers = [logging.lastResort]
    return [getattr(handler, "stream", None) for handler in handlers]


RECORDS: Delivery[logging.LogRecord] = Delivery("hopsml-log", _log, _Records())
atexit.register(RECORDS.settle, SETTLE_S)
os.register_at_fork(after_in_child=RECORDS.begin_anew)  # the thread is the parent's


def logger_aside(name: str) -> logging.Logger:
    """The logger of this name for threads that must not block: its handlers are called on another thread."""
    logger = logging.Logger(name)
    logger.addHandler(_Aside())
    return logger
