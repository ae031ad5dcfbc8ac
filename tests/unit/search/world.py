"""Simulated execution of trials that takes its possible steps in any order, for random sequences of events."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hopsml.search.contract import Searcher, Stopper
from hopsml.search.dispatch import journal
from hopsml.search.dispatch.events import (
    Action,
    AssignToLane,
    AttemptBegan,
    AttemptEnded,
    Event,
    ExtensionRequested,
    FormGroup,
    LaneJoined,
    LaneLost,
    RequestTrialEnd,
    ResizeGroup,
    SearchCancelRequested,
    SlotsChanged,
    Tick,
    ValuesReported,
)
from hopsml.search.dispatch.spec import SearchSpec
from tests.helpers.search.searching import Checked


@dataclass
class Carried:
    """A running attempt."""

    number: int
    attempt: int
    step: int
    size: int = 0
    begun: bool = False
    told: set[str] = field(default_factory=set)  # stop, pause, withdraw


class World:
    """Lanes (queues of attempts) or groups; ``enabled`` are the events that can happen next."""

    def __init__(self, make: Any, seed: int) -> None:
        """``make()`` gives (spec, searcher, stopper), new ones for every session."""
        self.make = make
        self.random = random.Random(seed)
        self.lanes: dict[int, list[Carried]] = {}
        self.groups: dict[int, Carried] = {}
        self.slots = 0
        self.next_lane = 0
        self.now = 0.0
        self.lines: list[str] = [journal.version_line()]
        self.past: list[Event] = []
        spec, searcher, stopper = make()
        self.dispatch = Checked(spec, searcher, stopper)
        self.carry_out(self.dispatch.start_session(0.0))

    @property
    def spec(self) -> SearchSpec:
        return self.dispatch.spec

    # ---------------------------------------------------------------------------------------- what can happen

    def enabled(self) -> list[Event]:
        """Return the events that running trials can send next."""
        events: list[Event] = []
        for queue in self.lanes.values():
            for index, carried in enumerate(queue):
                events += self._of(carried, index == 0)
        for carried in self.groups.values():
            events += self._of(carried, True)
        return events

    def _of(self, carried: Carried, first: bool) -> list[Event]:
        number, attempt = carried.number, carried.attempt
        if not carried.begun:
            events: list[Event] = [AttemptEnded(number, attempt, "withdrawn")] if "withdraw" in carried.told else []
            return [*events, AttemptBegan(number, attempt)] if first else events
        value = self.random.choice([-3.0, -1.0, -1.0, 0.5, 2.0])
        for how in ("stop", "pause"):
            if how in carried.told and self.random.random() < 0.7:
                return [AttemptEnded(number, attempt, {"stop": "stopped", "pause": "paused"}[how])]
        report = ValuesReported(number, attempt, carried.step + self.random.choice([1, 1, 2]), value)
        odd = self.random.choice(["failed", "lost" if self.groups else "died", "finished", "finished"])
        end = AttemptEnded(number, attempt, odd, None if odd != "finished" or self.random.random() < 0.1 else value)
        return [report, report, report, end] if carried.step < 6 else [end]

    def harm(self) -> Event | None:
        """Something that need not happen."""
        kind = self.random.choice(["join", "join", "lose", "stale", "tick", "extend", "cancel", "slots", "kill"])
        if kind == "join" and len(self.lanes) < 5 and self.spec.size_of is None:
            self.next_lane += 1
            return LaneJoined(self.next_lane)
        if kind == "lose" and self.lanes:
            return LaneLost(self.random.choice(sorted(self.lanes)), "lost")
        if kind == "slots":
            return SlotsChanged(self.random.randint(0, 8))
        if kind == "stale" and self.past:
            return self.random.choice(self.past)
        if kind == "tick":
            self.now += self.random.choice([0.1, 1.0, 10.0])
            return Tick()
        if kind == "extend" and self.random.random() < 0.2:
            return ExtensionRequested(self.random.choice([0, 2]), self.random.choice([None, self.now + 20.0]))
        if kind == "cancel" and self.random.random() < 0.02:
            return SearchCancelRequested("user")
        if kind == "kill" and self.random.random() < 0.2 and self.dispatch.conclusion is None:
            self.kill()
        return None

    # ---------------------------------------------------------------------------------------- what follows

    def happen(self, event: Event) -> None:
        """The event reaches the dispatch, and what follows the world."""
        self.now += self.random.choice([0.0, 0.01, 0.5])
        before = {number: carried.attempt for number, carried in self._all().items()}
        if isinstance(event, AttemptBegan | ValuesReported | AttemptEnded):
            self.past = [*self.past[-20:], event]
            if before.get(event.number) == event.attempt:
                self._own(event)
        elif isinstance(event, LaneJoined):
            self.lanes[event.lane] = []
        elif isinstance(event, LaneLost):
            self.lanes.pop(event.lane, None)
        elif isinstance(event, SlotsChanged):
            self.slots = event.count
        self.carry_out(self.dispatch.handle(event, self.now))

    def _all(self) -> dict[int, Carried]:
        return {carried.number: carried for queue in self.lanes.values() for carried in queue} | self.groups

    def _own(self, event: AttemptBegan | ValuesReported | AttemptEnded) -> None:
        """An event of an attempt that is under way changes it."""
        carried = self._all()[event.number]
        if isinstance(event, AttemptBegan):
            carried.begun = True
        elif isinstance(event, ValuesReported):
            carried.begun, carried.step = True, max(carried.step, event.step)
        else:
            self.groups.pop(event.number, None)
            for queue in self.lanes.values():
                queue[:] = [other for other in queue if other is not carried]

    def carry_out(self, actions: list[Action]) -> None:
        """Facts first, as the journal's contract wants it; then assignments and orders."""
        self.lines += journal.fact_lines(self.dispatch.take_facts())
        for action in actions:
            if isinstance(action, AssignToLane):
                queue = self.lanes[action.lane]
                queue.append(Carried(action.number, action.attempt, action.done_step))
                assert len(queue) <= 2, "more than one waits on a lane"
                assert list(self._all()).count(action.number) == 1
            elif isinstance(action, FormGroup):
                assert action.number not in self.groups
                self.groups[action.number] = Carried(action.number, action.attempt, action.done_step, action.size)
                assert 1 <= action.minimum <= action.size
                self._check_slots()
            elif isinstance(action, ResizeGroup):
                self.groups[action.number].size = action.size
                self._check_slots()
            elif isinstance(action, RequestTrialEnd):
                carried = self._all()[action.number]
                assert carried.attempt == action.attempt
                carried.told.add(action.how)

    def _check_slots(self) -> None:
        assert sum(carried.size for carried in self.groups.values()) <= self.slots, "slots are oversubscribed"

    # ---------------------------------------------------------------------------------------- sessions

    def kill(self) -> None:
        """Kill the driver; another session continues from the event log, sometimes with a torn last line."""
        old = self.dispatch
        spec, searcher, stopper = self.make()
        if self.random.random() < 0.3:
            self.lines.append(journal.snapshot_line(old))
        torn = ['["report",3'] if self.random.random() < 0.5 else []
        new = journal.replay([*self.lines, *torn], spec, searcher, stopper)
        assert not new.ask_tell.differing
        assert states_of(old.ask_tell.searcher, old.ask_tell.stopper) == states_of(
            new.ask_tell.searcher, new.ask_tell.stopper
        )
        self.dispatch = Checked.__new__(Checked)
        self.dispatch.__dict__.update(new.__dict__)
        self.dispatch.settled = old.settled
        self.lanes.clear(), self.groups.clear(), self.past.clear()
        self.slots = 0
        started = {number for number, trial in old.ledger.placed.items() if trial.begun}
        carried = [trial.number for trial in new.ledger.placed.values()]
        assert set(carried) <= started
        self.lines.append(journal.version_line())
        self.carry_out(self.dispatch.start_session(self.now))
        for settled in old.settled:
            assert self.dispatch.ledger.trials[settled].end is old.settled[settled].end, "a told result was lost"

    def finish(self, steps: int = 3000) -> None:
        """No more harm: everything that can happen happens, until the search is over."""
        while self.dispatch.conclusion is None:
            steps -= 1
            assert steps > 0, "the search does not come to an end"
            if self.spec.size_of is not None and self.slots < 8:
                self.happen(SlotsChanged(8))
            elif self.spec.size_of is None and not self.lanes:
                self.next_lane += 1
                self.happen(LaneJoined(self.next_lane))
            elif events := self.enabled():
                self.happen(self.random.choice(events))
            else:
                wake_at = self.dispatch.wake_at()
                assert wake_at is not None, "the search waits for nothing"
                self.now = max(self.now, wake_at)
                self.happen(Tick())


def states_of(searcher: Searcher, stopper: Stopper) -> tuple[Any, Any]:
    """Return the states of the searcher and the stopper."""
    return searcher.state(), stopper.state()
