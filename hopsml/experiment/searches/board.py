"""What anybody may see of a search while it goes on: written by its session, read and observed from any thread.

Results stand here only once the journal holds them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from hopsml import delivery, redact
from hopsml.delivery import Delivery
from hopsml.search.dispatch import time_left as left
from hopsml.search.dispatch.time_left import Outlook
from hopsml.states import State

TRIALS_REMEMBERED = 500  # whose time counts for how long the others will take
CURVE_POINTS = 1_000  # of a trial's reports; every second one is dropped when there are more


@dataclass
class Running:
    """A trial that is being carried out."""

    number: int
    trial_id: str
    config: dict[str, Any]
    place: str  # the lane, or how many workers
    began: float  # seconds since 1970
    step: int | None = None
    value: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """A search at one moment. ``best`` is its row of the table, None without any; times are seconds since 1970."""

    run_id: str
    name: str
    run_dir: str
    began: float
    now: float
    counts: dict[str, int]
    planned: int | None  # how many trials there are to be
    best: dict[str, Any] | None
    direction: str
    metric: str
    running: tuple[Running, ...]
    executors: int  # slots that the search has
    busy: int
    deadline_at: float | None
    took: tuple[float, ...]  # seconds that the newest trials took which are over
    waiting: str  # what the coordinator says of executors that are missing
    notes: tuple[str, ...]
    improvements: tuple[tuple[int, float], ...]  # trial, best value so far
    ended: float | None
    state: State
    reason: str
    error: BaseException | None

    @property
    def done(self) -> int:
        """Trials that are over."""
        return sum(self.counts.get(name, 0) for name in ("completed", "stopped", "failed"))

    def outlook(self) -> Outlook | None:
        """What is to be expected of the trials that are planned, whatever the deadline; None: nobody knows yet."""
        if self.planned is None:
            return None
        ages = [max(0.0, self.now - trial.began) for trial in self.running]
        waiting = max(0, self.planned - self.done - len(ages))
        return left.outlook(self.took, ages, waiting, len(ages) or self.executors, self.done)

    def seconds_left(self) -> float | None:
        """Until the search ends, as is to be expected and by its deadline; None: nobody knows."""
        outlook = self.outlook()
        times = [] if self.deadline_at is None else [max(0.0, self.deadline_at - self.now)]
        times += [] if outlook is None else [outlook.seconds]
        return min(times) if times else None


# what: settled | began | reported | note | phase | skipped | closed
Observer = Callable[[str, dict[str, Any]], None]
_News = tuple[str, dict[str, Any]]


class _Rule:
    """Of what waits for an observer: reports may be skipped, the newest of each trial is kept."""

    def worth(self, item: _News) -> delivery.Worth:
        return "update" if item[0] == "reported" else "end" if item[0] == "closed" else "news"

    def size(self, item: _News) -> int:
        return 64 * len(item[1])

    def same_as(self, item: _News) -> Hashable | None:
        return item[1]["number"] if item[0] == "reported" else None

    def count(self, item: _News, skipped: Counter[str]) -> None:
        skipped[item[0]] += 1

    def told(self, skipped: Counter[str]) -> _News:
        parts = ", ".join(f"{count} {name}" for name, count in skipped.items())
        return "skipped", {"text": f"{parts}: skipped here, because they were not read in time"}


class Board:
    """The state of a search for people, written by the session; an observer is called on a thread of its own."""

    def __init__(self, run_id: str, name: str, run_dir: str, direction: str, metric: str) -> None:
        self.run_id, self.name, self.run_dir = run_id, name, run_dir
        self.direction, self.metric = direction, metric
        self.began = time.time()
        self.counts: dict[str, int] = {}
        self.planned: int | None = None
        self.best: dict[str, Any] | None = None
        self.running: dict[int, Running] = {}
        self.curves: dict[int, list[tuple[int, float]]] = {}  # of trials that are over
        self.executors = self.busy = 0
        self.deadline_at: float | None = None
        self.waiting = ""
        self.notes: list[str] = []
        self.improvements: list[tuple[int, float]] = []
        self.state, self.reason = State.WAITING, ""
        self.ended: float | None = None
        self.error: BaseException | None = None
        self._took: deque[float] = deque(maxlen=TRIALS_REMEMBERED)
        self._observers: list[Observer] = []  # called at once
        self._deliveries: list[Delivery[_News]] = []
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------------------------ the session writes

    def trial_began(self, running: Running) -> None:
        """Its function is being called."""
        with self._lock:
            running.curve = self.curves.pop(running.number, running.curve)  # it goes on after a pause
            self.running[running.number] = running
        self._tell("began", {"number": running.number, "config": running.config})

    def trial_reported(self, number: int, step: int, value: float) -> None:
        """A value of a running trial."""
        with self._lock:
            trial = self.running.get(number)
            if trial is None:
                return
            trial.step, trial.value = step, value
            trial.curve.append((step, value))
            if len(trial.curve) > CURVE_POINTS:
                del trial.curve[1:-1:2]
        self._tell("reported", {"number": number, "step": step, "value": value})

    def trial_left(self, number: int) -> None:
        """It is not running any more."""
        with self._lock:
            trial = self.running.pop(number, None)
            if trial is not None and trial.curve:
                self.curves[number] = trial.curve

    def settled(self, row: dict[str, Any], best: dict[str, Any] | None) -> None:
        """A trial is over for good, and durable."""
        with self._lock:
            self._took.append(float(row.get("seconds") or 0.0))
            if best is not None and (self.best is None or best["number"] != self.best["number"]):
                self.improvements.append((best["number"], best["value"]))
            self.best = best
        self._tell("settled", row)

    def counted(self, counts: dict[str, int], planned: int | None, executors: int, busy: int) -> None:
        """How many trials are where, how many slots there are, and how many of them have a trial."""
        with self._lock:
            self.counts, self.planned, self.executors, self.busy = counts, planned, executors, busy
            if self.state is State.WAITING and executors:
                self.state = State.RUNNING

    def note(self, text: str) -> None:
        """What people should know."""
        text = redact.text(text)
        with self._lock:
            if text in self.notes:
                return
            self.notes.append(text)
        self._tell("note", {"text": text})

    def phase(self, text: str) -> None:
        """What the coordinator says of the executors."""
        with self._lock:
            self.waiting = text
        self._tell("phase", {"text": text})

    def close(self, state: State, reason: str, error: BaseException | None) -> None:
        """The search is over and its files are complete."""
        with self._lock:
            self.state, self.reason, self.error, self.ended = state, reason, error, time.time()
        self._tell("closed", {"state": state, "reason": reason})

    # ------------------------------------------------------------------------------------------ anybody reads

    def observe(self, observer: Observer) -> None:
        """Call ``observer(what, facts)`` for what happens from now on; one that fails is dropped.

        It is called on a thread of its own, so that it harms nobody by being slow, but for one that is marked as
        ``delivery.immediate``. One that is too slow misses reports, and is told so: ``skipped``.
        """
        with self._lock:
            if delivery.is_immediate(observer):
                self._observers.append(observer)
            else:
                name = f"hopsml-observer-{self.run_id}"
                self._deliveries.append(Delivery(name, lambda news: observer(*news), _Rule()))

    def settle(self, timeout_s: float = delivery.SETTLE_S) -> bool:
        """Wait until the observers have been told everything, at most ``timeout_s`` seconds; whether they have."""
        return delivery.settle_all(list(self._deliveries), timeout_s)

    def snapshot(self) -> Snapshot:
        """All of it, as it stands."""
        with self._lock:
            now = self.ended or time.time()
            return Snapshot(
                run_id=self.run_id,
                name=self.name,
                run_dir=self.run_dir,
                began=self.began,
                now=now,
                counts=dict(self.counts),
                planned=self.planned,
                best=dict(self.best) if self.best else None,
                direction=self.direction,
                metric=self.metric,
                running=tuple(self.running.values()),
                executors=self.executors,
                busy=min(self.busy, self.executors),
                deadline_at=self.deadline_at,
                took=tuple(self._took),
                waiting=self.waiting,
                notes=tuple(self.notes),
                improvements=tuple(self.improvements),
                ended=self.ended,
                state=self.state,
                reason=self.reason,
                error=self.error,
            )

    def _tell(self, what: str, facts: dict[str, Any]) -> None:
        for each in list(self._deliveries):
            each.put((what, facts))
        for observer in list(self._observers):
            try:
                observer(what, facts)
            except Exception:  # noqa: BLE001 a display must not harm a search
                self._observers.remove(observer)
