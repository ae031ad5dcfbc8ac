"""State of a search: written by its session, read and observed from any thread.

Results are published here only after the event log has them.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hopsml.core import callbacks, redact
from hopsml.core.callbacks import Observers, is_immediate, mark_immediate
from hopsml.core.states import Lifecycle
from hopsml.search.dispatch.journal import RunningTrial, SearchSnapshot

TRIALS_REMEMBERED = 500  # trials whose times the estimate of the remaining time uses
CURVE_POINTS = 1_000  # of a trial's reports; every second one is dropped when there are more

# what: settled | began | reported | note | phase | skipped | closed
Observer = Callable[[str, dict[str, Any]], None]
_Change = tuple[str, dict[str, Any]]


class _Changes:
    """Queueing rules for observers: reports may be skipped, except the newest of each trial."""

    def worth(self, item: _Change) -> callbacks.Worth:
        return "update" if item[0] == "reported" else "end" if item[0] == "closed" else "news"

    def size(self, item: _Change) -> int:
        return 64 * len(item[1])

    def same_as(self, item: _Change) -> Hashable | None:
        return item[1]["number"] if item[0] == "reported" else None

    def count(self, item: _Change, skipped: Counter[str]) -> None:
        skipped[item[0]] += 1

    def skipped_item(self, skipped: Counter[str]) -> _Change:
        parts = ", ".join(f"{count} {name}" for name, count in skipped.items())
        return "skipped", {"text": f"{parts} were skipped here, since they were not read in time"}


class SearchState:
    """State of one search; a ``SearchSnapshot`` is made of the attributes of the same names."""

    def __init__(self, run_id: str, name: str, run_dir: str, direction: str, metric: str) -> None:
        self.run_id, self.name, self.run_dir = run_id, name, run_dir
        self.direction, self.metric = direction, metric
        self.began = time.time()
        self.counts: dict[str, int] = {}
        self.planned: int | None = None
        self.best: dict[str, Any] | None = None
        self.running: dict[int, RunningTrial] = {}
        self.curves: dict[int, list[tuple[int, float]]] = {}  # of trials that do not run
        self.executors = self.busy = 0
        self.deadline_at: float | None = None
        self.took: deque[float] = deque(maxlen=TRIALS_REMEMBERED)
        self.waiting = ""
        self.notes: list[str] = []
        self.improvements: list[tuple[int, float]] = []
        self.state = Lifecycle.WAITING
        self.ended: float | None = None
        self.error: BaseException | None = None
        self._observers = Observers(f"hopsml-observer-{run_id}", _Changes())

    # ------------------------------------------------------------------------------------------ the session writes

    def add_running_trial(self, running: RunningTrial) -> None:
        """Record that a trial has begun: its function is being called."""
        with self._observers.lock:
            running.curve = self.curves.pop(running.number, running.curve)  # it continues after a pause
            self.running[running.number] = running
        self._tell("began", {"number": running.number, "config": running.config})

    def record_report(self, number: int, step: int, value: float) -> None:
        """Record a reported value of the metric; from a distributed trial it can arrive before ``add_running_trial``."""
        with self._observers.lock:
            trial = self.running.get(number)
            curve = self.curves.setdefault(number, []) if trial is None else trial.curve
            if trial is not None:
                trial.step, trial.value = step, value
            while curve and curve[-1][0] >= step:  # it continues from a checkpoint before this step
                curve.pop()
            curve.append((step, value))
            if len(curve) > CURVE_POINTS:
                del curve[1:-1:2]
        self._tell("reported", {"number": number, "step": step, "value": value})

    def record_trial_left(self, number: int) -> None:
        """Record that a trial does not run any more; it may have ended, or continue later."""
        with self._observers.lock:
            trial = self.running.pop(number, None)
            if trial is not None and trial.curve:
                self.curves[number] = trial.curve

    def settled(self, row: dict[str, Any], best: dict[str, Any] | None) -> None:
        """Record a trial's end, which the event log has, by its table row; ``best``: row of the best trial so far."""
        with self._observers.lock:
            self.took.append(float(row.get("seconds") or 0.0))
            if row["number"] in self.curves:
                self.curves[row["number"]] = reports_until_stop(self.curves[row["number"]], row)
            if best is not None and (self.best is None or best["number"] != self.best["number"]):
                self.improvements.append((best["number"], best["value"]))
            self.best = best
        self._tell("settled", row)

    def counted(self, counts: dict[str, int], planned: int | None, executors: int, busy: int) -> None:
        """Record the numbers of trials by state, of planned trials, of slots, and of slots with a trial."""
        with self._observers.lock:
            self.counts, self.planned = counts, planned
            self.executors, self.busy = executors, min(busy, executors)
            if self.state is Lifecycle.WAITING and executors:
                self.state = Lifecycle.RUNNING

    def note(self, text: str) -> None:
        """Publish a note, unless it has been published already; secrets in it are masked."""
        text = redact.text(text)
        with self._observers.lock:
            if text in self.notes:
                return
            self.notes.append(text)
        self._tell("note", {"text": text})

    def phase(self, text: str) -> None:
        """Publish the coordinator's phase of the executors."""
        with self._observers.lock:
            self.waiting = text
        self._tell("phase", {"text": text})

    def close(self, state: Lifecycle, reason: str, error: BaseException | None) -> None:
        """Record that the search has ended and its files are complete."""
        with self._observers.lock:
            self.state, self.error, self.ended = state, error, time.time()
        self._tell("closed", {"state": state, "reason": reason})

    # ------------------------------------------------------------------------------------------ any thread reads

    def observe(self, observer: Observer) -> None:
        """Call ``observer(what, facts)`` for each event from now on; one that raises an error is dropped.

        It is called on a separate thread, so that a slow observer delays nothing, unless it is marked by
        ``callbacks.mark_immediate``. One that is too slow misses reports, which an event ``skipped`` reports.
        """

        def call(change: _Change) -> None:
            observer(*change)

        self._observers.add(mark_immediate(call) if is_immediate(observer) else call)

    def settle(self, timeout_s: float = callbacks.SETTLE_S) -> bool:
        """Wait at most ``timeout_s`` seconds until observers have received everything; return True if they have."""
        return self._observers.wait_until_delivered(timeout_s)

    def snapshot(self) -> SearchSnapshot:
        """Return the present state as an immutable value."""
        names = {one.name for one in fields(SearchSnapshot)} - {"now", "running"}
        with self._observers.lock:
            facts = {name: _copied(getattr(self, name)) for name in names}
            return SearchSnapshot(now=self.ended or time.time(), running=tuple(self.running.values()), **facts)

    def _tell(self, kind: str, facts: dict[str, Any]) -> None:
        self._observers.send((kind, facts))


def reports_until_stop(curve: Sequence[tuple[int, float]], row: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return the reports of a trial up to the step of its table row: what a stopped one reported later counts no more.

    Args:
        curve: step and value of its reports.
        row: its row of the table.
    """
    last = row["step"] if row["state"] == "stopped" else None
    return list(curve) if last is None else [point for point in curve if point[0] <= last]


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else tuple(value) if isinstance(value, list | deque) else value
