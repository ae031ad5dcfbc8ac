"""What anybody may see of a search while it goes on: written by its session, read and observed from any thread.

Results stand here only once the journal holds them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
    rate: float  # trials that end a second
    waiting: str  # what the coordinator says of executors that are missing
    notes: tuple[str, ...]
    improvements: tuple[tuple[int, float], ...]  # trial, best value so far
    ended: float | None
    state: str  # running, closing, FINISHED, FAILED, CANCELLED
    reason: str
    error: BaseException | None

    @property
    def done(self) -> int:
        """Trials that are over."""
        return sum(self.counts.get(name, 0) for name in ("completed", "stopped", "failed"))

    def seconds_left(self) -> float | None:
        """Until the search ends, by the rate so far and by its deadline; None: nobody knows."""
        times = [] if self.deadline_at is None else [max(0.0, self.deadline_at - self.now)]
        if self.planned is not None and self.rate > 0:
            times.append(max(0, self.planned - self.done) / self.rate)
        return min(times) if times else None


Observer = Callable[[str, dict[str, Any]], None]  # what: settled | began | reported | note | phase | closed


class Board:
    """The state of a search for people. The session writes; ``observe`` calls back on whichever thread writes."""

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
        self.state, self.reason = "running", ""
        self.ended: float | None = None
        self.error: BaseException | None = None
        self._first_end = 0.0
        self._observers: list[Observer] = []
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
            self._first_end = self._first_end or time.time()
            if best is not None and (self.best is None or best["number"] != self.best["number"]):
                self.improvements.append((best["number"], best["value"]))
            self.best = best
        self._tell("settled", row)

    def counted(self, counts: dict[str, int], planned: int | None, executors: int, busy: int) -> None:
        """How many trials are where, how many slots there are, and how many of them have a trial."""
        with self._lock:
            self.counts, self.planned, self.executors, self.busy = counts, planned, executors, busy

    def note(self, text: str) -> None:
        """What people should know."""
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

    def close(self, state: str, reason: str, error: BaseException | None) -> None:
        """The search is over and its files are complete."""
        with self._lock:
            self.state, self.reason, self.error, self.ended = state, reason, error, time.time()
        self._tell("closed", {"state": state, "reason": reason})

    # ------------------------------------------------------------------------------------------ anybody reads

    def observe(self, observer: Observer) -> None:
        """Call ``observer(what, facts)`` for what happens from now on; it must be quick, and one that fails is dropped."""
        with self._lock:
            self._observers.append(observer)

    def snapshot(self) -> Snapshot:
        """All of it, as it stands."""
        with self._lock:
            now = self.ended or time.time()
            done = sum(self.counts.get(name, 0) for name in ("completed", "stopped", "failed"))
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
                rate=done / (now - self.began) if done and now > self.began else 0.0,
                waiting=self.waiting,
                notes=tuple(self.notes),
                improvements=tuple(self.improvements),
                ended=self.ended,
                state=self.state,
                reason=self.reason,
                error=self.error,
            )

    def _tell(self, what: str, facts: dict[str, Any]) -> None:
        for observer in list(self._observers):
            try:
                observer(what, facts)
            except Exception:  # noqa: BLE001 a display must not harm a search
                self._observers.remove(observer)
