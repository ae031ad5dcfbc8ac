"""Lanes: who runs where, who waits behind whom, and which lane gets the next trial."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.search.dispatch.events import Action, Assign, EndTrial
from hopsml.search.dispatch.ledger import Trial, TrialPhase
from hopsml.search.dispatch.prefetch import Prefetch
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.dispatch.supply import Supply


@dataclass(slots=True)
class LaneState:
    """One slot whose process carries out one trial after another."""

    number: int
    host: str = ""
    current: Trial | None = None
    waiting: Trial | None = None
    used: bool = False  # a trial has begun here: the next one finds everything loaded


class LaneTable:
    """All lanes of a search. An idle one has no current trial; one with room has a current one and none that waits."""

    def __init__(self, spec: SearchSpec, supply: Supply) -> None:
        self._spec = spec
        self._supply = supply
        self._ledger = supply.ask_tell.ledger
        self._prefetch = Prefetch(spec.prefetch)
        self.lanes: dict[int, LaneState] = {}
        self._idle: dict[int, LaneState] = {}
        self._room: dict[int, LaneState] = {}
        self._behind: dict[int, LaneState] = {}  # a trial waits there
        self._calling: dict[int, LaneState] = {}  # a trial waits there, and is being called back
        self._tables = (self._idle, self._room, self._behind, self._calling)

    @property
    def held(self) -> int:
        """How many slots the search has."""
        return len(self.lanes)

    @property
    def width(self) -> int:
        """How many trials run at the same time when all is well."""
        return len(self.lanes)

    def wanted(self) -> int:
        """How many lanes could be of use, those that there are included."""
        left = self._supply.ask_tell.left
        most = self._spec.max_lanes
        if left is None:
            return most if most is not None else len(self.lanes) + 1
        useful = len(self._ledger.placed) + len(self._supply.ready) + len(self._ledger.paused) + left
        return useful if most is None else min(useful, most)

    # ---------------------------------------------------------------------------------------- what happens

    def join(self, number: int, host: str) -> None:
        """A lane is there. One that is known already stays as it is."""
        if number not in self.lanes:
            lane = self.lanes[number] = LaneState(number, host)
            self._sort(lane)

    def lose(self, number: int) -> tuple[Trial | None, Trial | None]:
        """The lane is gone; who ran there, and who waited."""
        lane = self.lanes.pop(number, None)
        if lane is None:
            return None, None
        for table in self._tables:
            table.pop(number, None)
        return lane.current, lane.waiting

    def began(self, trial: Trial, now: float) -> None:
        """The trial has begun where it was sent."""
        if trial.asked == "withdraw":
            trial.asked = ""
        if trial.gap:
            self._prefetch.gap(now - trial.since)
        trial.gap, trial.since = False, now
        lane = self._lane_of(trial)
        if lane is not None:
            lane.used = True
            self._sort(lane)

    def over(self, trial: Trial, seconds: float | None) -> None:
        """The trial is no longer where it was; ``seconds`` that it ran, None where they say nothing about others."""
        if seconds is not None:
            self._prefetch.took(seconds)
        lane = self._lane_of(trial)
        if lane is None:
            return
        if lane.waiting is trial:
            lane.waiting = None
        else:
            lane.current, lane.waiting = lane.waiting, None
        self._sort(lane)

    def _lane_of(self, trial: Trial) -> LaneState | None:
        lane = self.lanes.get(-1 if trial.lane is None else trial.lane)
        return lane if lane is not None and (lane.current is trial or lane.waiting is trial) else None

    def _sort(self, lane: LaneState) -> None:
        """Bring the tables up to date with one lane."""
        for table in self._tables:
            table.pop(lane.number, None)
        if lane.current is None:
            self._idle[lane.number] = lane
        elif lane.waiting is None:
            self._room[lane.number] = lane
        elif lane.waiting.asked == "withdraw":
            self._calling[lane.number] = lane
        elif lane.waiting.phase is TrialPhase.PLACED:
            self._behind[lane.number] = lane

    def wake_at(self) -> float:
        """Nothing here waits for a time."""
        return float("inf")

    @property
    def dry(self) -> bool:
        """Whether there are lanes for which nothing was found."""
        return bool(self._idle)

    # ---------------------------------------------------------------------------------------- what follows

    def fill(self, now: float) -> list[Action]:
        """Give work to the lanes that want some."""
        actions: list[Action] = []
        while self._idle and (found := self._match(self._idle)):
            actions.append(self._assign(*found, now))
        if self._idle:
            actions.extend(self._spread())
        elif self._room and self._prefetch.pays:
            left = self._supply.ask_tell.left
            while self._room and (left is None or left > len(self.lanes)) and (found := self._match(self._room)):
                actions.append(self._assign(*found, now))
                left = self._supply.ask_tell.left
        return actions

    def _match(self, free: dict[int, LaneState]) -> tuple[LaneState, Trial] | None:
        """The next trial, and which of these lanes it goes to: where it ran last, but not where it failed."""
        only = next(iter(free)) if len(free) == 1 and len(self.lanes) > 1 else None
        trial = self._supply.next(only)
        if trial is None:
            return None
        if trial.lane in free and (trial.lane != trial.avoid or len(free) == 1):
            return free[trial.lane], trial
        return self._lane_for(trial, free), trial

    def _lane_for(self, trial: Trial, free: dict[int, LaneState]) -> LaneState:
        """Any; for a trial that has failed not where it did, and on another host where there is one."""
        failed_on = self.lanes.get(-1 if trial.avoid is None else trial.avoid)
        if failed_on is None or len(free) == 1:
            return next(iter(free.values()))
        others = [lane for lane in free.values() if lane is not failed_on]
        return next((lane for lane in others if lane.host != failed_on.host), others[0])

    def _assign(self, lane: LaneState, trial: Trial, now: float) -> Assign:
        trial.attempt += 1
        trial.lane, trial.since = lane.number, now
        trial.gap = lane.current is None and lane.used
        if lane.current is None:
            lane.current = trial
        else:
            lane.waiting = trial
        self._ledger.move(trial, TrialPhase.PLACED)
        self._sort(lane)
        isolated = self._spec.isolated or trial.tries > 0
        return Assign(lane.number, trial.number, trial.attempt, trial.config, isolated, trial.resume_from, trial.step)

    def _spread(self) -> list[Action]:
        """Call back what waits behind busy lanes while others have nothing to do; it goes on when it has come back."""
        missing = len(self._idle) - len(self._calling)
        only = next(iter(self._idle)) if len(self._idle) == 1 else None
        called: list[Trial] = []
        for lane in self._behind.values():
            if len(called) >= missing:
                break
            if lane.waiting is not None and (only is None or lane.waiting.avoid != only):
                called.append(lane.waiting)
        return [self.withdraw(trial) for trial in called]

    def withdraw(self, trial: Trial) -> EndTrial:
        """Tell a trial that has not begun that it shall not; it may have, meanwhile."""
        trial.asked = "withdraw"
        lane = self._lane_of(trial)
        if lane is not None:
            self._sort(lane)
        return EndTrial(trial.number, trial.attempt, "withdraw")
