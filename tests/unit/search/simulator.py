"""Simulation of lanes and groups in virtual time, for tests of the dispatch without processes or clocks.

A lane behaves like the real one: it accepts at most one trial in advance, starts the next when one has ended, answers a
withdrawal at once, and receives a stop at the next report. Messages take ``latency_s`` each way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hopsml.search.contract import Config
from hopsml.search.dispatch import journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.events import (
    Action,
    AssignToLane,
    AttemptBegan,
    AttemptEnded,
    ConcludeSearch,
    Event,
    FormGroup,
    LaneJoined,
    LaneLost,
    RequestTrialEnd,
    ResizeGroup,
    SlotsChanged,
    Tick,
    ValuesReported,
)


@dataclass(frozen=True)
class Work:
    """A trial's function: it reports ``values`` every ``step_s`` seconds, then returns the last one."""

    step_s: float
    values: Sequence[float]
    how: str = "finished"


@dataclass
class Busy:
    """An attempt at a place."""

    number: int
    attempt: int
    work: Work
    step: int
    began: float | None = None
    requested_end: str = ""
    gone: bool = False
    slots: int = 1
    lane: int | None = None


@dataclass
class Simulator:
    """Run a dispatch against simulated slots; ``work_of(config)`` is the trial's function."""

    dispatch: Dispatch
    work_of: Callable[[Config], Work]
    latency_s: float = 0.001
    begin_s: float = 0.0005  # between taking a trial and its begin
    now: float = 0.0
    busy_s: float = 0.0  # slots times seconds in which functions ran
    conclusion: ConcludeSearch | None = None
    keep: Callable[[list[str]], None] | None = None  # takes the journal's lines, before what follows is carried out
    lanes: dict[int, list[Busy]] = field(default_factory=dict)
    places: dict[int, Busy] = field(default_factory=dict)
    log: list[tuple[float, Action]] = field(default_factory=list)
    ended_at: dict[int, float] = field(default_factory=dict)
    began_at: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._tick_at = float("inf")

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call at a time; of two at the same time, the one scheduled first runs first."""
        heapq.heappush(self._queue, (time, next(self._order), call, args))

    def tell(self, event: Event, delay: float | None = None) -> None:
        """An event on its way to the dispatch."""
        self.at(self.now + (self.latency_s if delay is None else delay), self._receive, event)

    def run(self, until: float = 1e9) -> Simulator:
        """Until the search is over. Raises AssertionError when nothing can happen any more."""
        if not self.log:
            self._carry_out(self.dispatch.start_session(self.now))
        while self.conclusion is None and self.now < until:
            assert self._queue, f"the search waits for nothing: {self.dispatch.ledger.counts()}"
            self.now, _, call, args = heapq.heappop(self._queue)
            call(*args)
        return self

    def join(self, lanes: int, host: Callable[[int], str] = str) -> Simulator:
        """Lanes that are there from now on."""
        for lane in range(lanes):
            self.lanes[lane] = []
            self.tell(LaneJoined(lane, host(lane)), 0.0)
        return self

    def lose(self, lane: int, noticed_s: float = 0.0) -> None:
        """End a slot's process; its trial sends nothing any more."""
        for busy in self.lanes.pop(lane, []):
            busy.gone = True
            self.places.pop(busy.number, None)
        self.tell(LaneLost(lane, "killed"), noticed_s)

    # ---------------------------------------------------------------------------------------- between both

    def _receive(self, event: Event) -> None:
        self._carry_out(self.dispatch.handle(event, self.now))

    def _carry_out(self, actions: list[Action]) -> None:
        if self.keep is not None:
            self.keep(journal.fact_lines(self.dispatch.take_facts()))
        for action in actions:
            self.log.append((self.now, action))
            if isinstance(action, AssignToLane | FormGroup | RequestTrialEnd):
                self.at(self.now + self.latency_s, self._execute, action)
            elif isinstance(action, ResizeGroup):
                self.places[action.number].slots = action.size
            elif isinstance(action, ConcludeSearch):
                self.conclusion = action
        wake_at = self.dispatch.wake_at()
        if wake_at is not None and (wake_at < self._tick_at or self._tick_at < self.now):
            self._tick_at = max(wake_at, self.now)
            self.at(self._tick_at, self._receive, Tick())

    def _execute(self, action: AssignToLane | FormGroup | RequestTrialEnd) -> None:
        if isinstance(action, RequestTrialEnd):
            self._receive_end_request(action)
            return
        busy = Busy(action.number, action.attempt, self.work_of(action.config), action.done_step + 1)
        if isinstance(action, FormGroup):
            busy.slots = action.size
            self.places[action.number] = busy
            self.at(self.now + self.begin_s, self._begin, busy)
        elif action.lane in self.lanes:
            busy.lane = action.lane
            self.places[action.number] = busy
            queue = self.lanes[action.lane]
            queue.append(busy)
            if len(queue) == 1:
                self.at(self.now + self.begin_s, self._begin, busy)

    def _receive_end_request(self, action: RequestTrialEnd) -> None:
        busy = self.places.get(action.number)
        if busy is None or busy.attempt != action.attempt:
            return
        if action.how != "withdraw":
            busy.requested_end = action.how
        elif busy.began is None:
            self._leave(busy)
            self.tell(AttemptEnded(busy.number, busy.attempt, "withdrawn"))

    # ---------------------------------------------------------------------------------------- a trial

    def _begin(self, busy: Busy) -> None:
        if busy.gone:
            return
        busy.began = self.now
        self.began_at.setdefault(busy.number, self.now)
        self.tell(AttemptBegan(busy.number, busy.attempt))
        self.at(self.now + busy.work.step_s, self._step, busy)

    def _step(self, busy: Busy) -> None:
        if busy.gone:
            return
        values = busy.work.values
        if busy.step < len(values):  # else it resumed from a checkpoint of its last step
            self.tell(ValuesReported(busy.number, busy.attempt, busy.step, values[busy.step]))
        busy.step += 1
        if busy.requested_end:
            self._end(busy, {"stop": "stopped", "pause": "paused"}[busy.requested_end], None)
        elif busy.step >= len(values):
            self._end(busy, busy.work.how, values[-1] if busy.work.how == "finished" else None)
        else:
            self.at(self.now + busy.work.step_s, self._step, busy)

    def _end(self, busy: Busy, how: str, value: float | None) -> None:
        assert busy.began is not None
        seconds = self.now - busy.began
        self.busy_s += seconds * busy.slots
        self.ended_at[busy.number] = self.now
        self._leave(busy)
        error = "it failed" if how == "failed" else ""
        self.tell(AttemptEnded(busy.number, busy.attempt, how, value, value, error, seconds))

    def _leave(self, busy: Busy) -> None:
        busy.gone = True
        self.places.pop(busy.number, None)
        if busy.lane is None:
            return
        queue = self.lanes[busy.lane]
        first = queue[0] is busy
        queue.remove(busy)
        if first and queue:
            self.at(self.now + self.begin_s, self._begin, queue[0])

    def slots(self, total: int) -> Simulator:
        """So many slots for groups from now on."""
        self.tell(SlotsChanged(total), 0.0)
        return self


def list_schedule(durations: Sequence[float], lanes: int) -> float:
    """Return the makespan of list scheduling: trials in order, each on the first free slot, without gaps."""
    free = [0.0] * lanes
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
