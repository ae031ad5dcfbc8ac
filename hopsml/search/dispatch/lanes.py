"""Trial slots (lanes) of a search: their present and next trial, and the assignment of new trials."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from hopsml.search.dispatch.ask_tell import Supply
from hopsml.search.dispatch.events import Action, AssignToLane, RequestTrialEnd
from hopsml.search.dispatch.ledger import TrialPhase, TrialState
from hopsml.search.dispatch.spec import SearchSpec

WORTH = 0.01  # a gap is avoided if it is more than this share of a trial
GAP_S = 0.005  # assumed until a gap was measured
_KEPT = 15  # number of gaps whose median counts, so that a single pause of the driver does not
_WEIGHT = 0.1  # weight of the newest duration in the moving average


class Prefetch:
    """Decision whether to send a trial to a lane that is still busy, to save a round trip to the driver.

    Sending ahead saves the time between the end of one trial and the begin of the next on a lane: the round trip to the
    driver, and the searcher's computing time. It costs knowledge: the configuration is chosen without the result of the
    trial that the lane runs, without results that arrive in between, and before a paused trial that may have become
    promotable. So it pays only where the gap is a noticeable share of a trial: with trials of a second and a gap of 3
    ms it would save 0.3 % of the time, with trials of 50 ms 6 %. Both are measured here: the duration of trials, and
    the time between sending a trial to an idle lane and its begin. That gap includes the time of the searcher, of the
    event log, and, with many lanes, the time during which the driver serves the others, so their number needs no
    separate rule.

    It does not delay the end of a search: a trial that waits behind a busy lane is withdrawn when another lane is idle,
    and none is sent ahead once fewer trials remain than lanes.
    """

    def __init__(self, fixed: bool | None = None) -> None:
        self._fixed = fixed
        self._gaps: deque[float] = deque(maxlen=_KEPT)
        self.gap_s = GAP_S
        self.mean_s: float | None = None

    def gap(self, seconds: float) -> None:
        """Record the time between sending a trial to an idle lane and its begin there, in seconds.

        Only for a lane that ran trials before, since the first begin includes imports.
        """
        self._gaps.append(seconds)
        self.gap_s = median(self._gaps)

    def record_attempt(self, seconds: float) -> None:
        """Record the ``seconds`` that an attempt of a trial ran, until its end or pause."""
        self.mean_s = seconds if self.mean_s is None else self.mean_s + _WEIGHT * (seconds - self.mean_s)

    @property
    def is_worthwhile(self) -> bool:
        """True if a trial should be sent to a lane that is still busy."""
        if self._fixed is not None:
            return self._fixed
        return self.mean_s is not None and self.gap_s > WORTH * self.mean_s


@dataclass(slots=True)
class LaneState:
    """State of a slot whose process runs one trial after another.

    ``current`` is the trial that it runs; ``waiting`` is the next one, which was sent ahead.
    """

    number: int
    host: str = ""
    current: TrialState | None = None
    waiting: TrialState | None = None
    used: bool = False  # a trial has begun here, so all modules are imported


class LaneTable:
    """Table of all lanes of a search, with the assignment of trials to them."""

    def __init__(self, spec: SearchSpec, supply: Supply) -> None:
        self._spec = spec
        self._supply = supply
        self._ledger = supply.ask_tell.ledger
        self._prefetch = Prefetch(spec.prefetch)
        self.lanes: dict[int, LaneState] = {}
        self._allowed: int | None = None  # number of lanes that may be busy
        # Each lane is in at most one of these tables, by its free capacity, so that no decision scans all lanes.
        self._idle: dict[int, LaneState] = {}  # lanes that run no trial
        self._room: dict[int, LaneState] = {}  # busy lanes where no trial waits
        self._behind: dict[int, LaneState] = {}  # lanes where a trial waits
        self._calling: dict[int, LaneState] = {}  # lanes whose waiting trial is being withdrawn
        self._tables = (self._idle, self._room, self._behind, self._calling)

    @property
    def slots_held(self) -> int:
        """Number of slots that the search has."""
        return len(self.lanes)

    @property
    def width(self) -> int:
        """Number of trials that run at the same time."""
        return len(self.lanes)

    def slots_wanted(self) -> int:
        """Return the number of lanes that the search could use now, including those that it has."""
        left = self._supply.ask_tell.trials_left
        most = self._spec.max_lanes
        if left is None:
            return most if most is not None else len(self.lanes) + 1
        useful = len(self._ledger.placed) + len(self._supply.ready) + len(self._ledger.paused) + left
        return useful if most is None else min(useful, most)

    # ---------------------------------------------------------------------------------------- what happens

    def join(self, number: int, host: str) -> None:
        """Add a lane, unless it is known already."""
        if number not in self.lanes:
            lane = self.lanes[number] = LaneState(number, host)
            self._sort(lane)

    def limit_busy_lanes(self, count: int) -> None:
        """Limit the number of busy lanes to ``count``; lanes beyond it finish their present trial."""
        self._allowed = max(1, count)

    def lose(self, number: int) -> tuple[TrialState | None, TrialState | None]:
        """Remove a lane, and return its trials.

        Returns:
            The trial that it ran and the one that waited behind it; None for none.
        """
        lane = self.lanes.pop(number, None)
        if lane is None:
            return None, None
        for table in self._tables:
            table.pop(number, None)
        return lane.current, lane.waiting

    def began(self, trial: TrialState, now: float) -> None:
        """Record that the trial's function was called on its lane."""
        if trial.asked == "withdraw":
            trial.asked = ""
        if trial.gap:
            self._prefetch.gap(now - trial.since)
        trial.gap, trial.since = False, now
        lane = self._lane_of(trial)
        if lane is not None:
            lane.used = True
            self._sort(lane)

    def free_place(self, trial: TrialState, seconds: float | None) -> None:
        """Free the trial's place on its lane.

        Args:
            trial: the trial that has ended.
            seconds: its duration, for later estimates; None: not representative.
        """
        if seconds is not None:
            self._prefetch.record_attempt(seconds)
        lane = self._lane_of(trial)
        if lane is None:
            return
        if lane.waiting is trial:
            lane.waiting = None
        else:
            lane.current, lane.waiting = lane.waiting, None
        self._sort(lane)

    def _lane_of(self, trial: TrialState) -> LaneState | None:
        lane = self.lanes.get(-1 if trial.lane is None else trial.lane)
        return lane if lane is not None and (lane.current is trial or lane.waiting is trial) else None

    def _sort(self, lane: LaneState) -> None:
        """Move a lane to the table that fits its present state."""
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
        # else: the waiting one has begun before the end of the previous one was reported, so it cannot be withdrawn

    def wake_at(self) -> float:
        """Return infinity: no decision about lanes depends on time alone."""
        return float("inf")

    @property
    def needs_trials(self) -> bool:
        """True if lanes are idle because no trial was found for them."""
        return bool(self._idle)

    # ---------------------------------------------------------------------------------------- what follows

    def fill(self, now: float) -> list[Action]:
        """Assign trials to idle lanes; if none is idle and it pays, send busy lanes a further trial ahead of time."""
        actions: list[Action] = []
        while self._idle and self.can_use_more and (found := self._match(self._idle)):
            actions.append(self._assign(*found, now))
        if self._allowed is not None and len(self.lanes) > self._allowed:
            # Some lanes will be released, which is possible once no trial waits behind their present one.
            actions.extend([self.withdraw(lane.waiting) for lane in list(self._behind.values()) if lane.waiting])
        elif self._idle:
            actions.extend(self._spread())
        elif self._room and self._prefetch.is_worthwhile:
            # As many trials as lanes remain unsent: sent ahead, the last ones might wait while another lane is idle.
            left = self._supply.ask_tell.trials_left
            while self._room and (left is None or left > len(self.lanes)) and (found := self._match(self._room)):
                actions.append(self._assign(*found, now))
                left = self._supply.ask_tell.trials_left
        return actions

    @property
    def can_use_more(self) -> bool:
        """True if one more lane may be busy."""
        return self._allowed is None or len(self.lanes) - len(self._idle) < self._allowed

    def _match(self, free: dict[int, LaneState]) -> tuple[LaneState, TrialState] | None:
        """Return the next trial and a lane of ``free`` for it; None if there is no trial.

        A trial returns to the lane where it ran last, unless it failed there.
        """
        # With one free lane among several, skip trials that failed on it: others can run them. A single lane runs all.
        only = next(iter(free)) if len(free) == 1 and len(self.lanes) > 1 else None
        trial = self._supply.next(only)
        if trial is None:
            return None
        if trial.lane in free and (trial.lane != trial.avoid or len(free) == 1):
            return free[trial.lane], trial
        return self._lane_for(trial, free), trial

    def _lane_for(self, trial: TrialState, free: dict[int, LaneState]) -> LaneState:
        """Return any free lane; for a trial that failed, another lane, on another host if possible."""
        failed_on = self.lanes.get(-1 if trial.avoid is None else trial.avoid)
        if failed_on is None or len(free) == 1:
            return next(iter(free.values()))
        others = [lane for lane in free.values() if lane is not failed_on]
        return next((lane for lane in others if lane.host != failed_on.host), others[0])

    def _assign(self, lane: LaneState, trial: TrialState, now: float) -> AssignToLane:
        trial.attempt += 1
        trial.lane, trial.since = lane.number, now
        trial.gap = lane.current is None and lane.used  # a lane's first begin includes imports: no gap to measure
        if lane.current is None:
            lane.current = trial
        else:
            lane.waiting = trial
        self._ledger.move(trial, TrialPhase.PLACED)
        self._sort(lane)
        isolated = self._spec.isolated or trial.tries > 0  # a retry gets a fresh process
        return AssignToLane(
            lane.number, trial.number, trial.attempt, trial.config, isolated, trial.resume_from, trial.step
        )

    def _spread(self) -> list[Action]:
        """Withdraw trials that wait behind busy lanes while others are idle, to assign them when they have returned."""
        missing = len(self._idle) - len(self._calling)  # trials already being withdrawn will fill the others
        only = next(iter(self._idle)) if len(self._idle) == 1 else None
        called: list[TrialState] = []
        for lane in self._behind.values():
            if len(called) >= missing:
                break
            if lane.waiting is not None and (only is None or lane.waiting.avoid != only):
                called.append(lane.waiting)
        return [self.withdraw(trial) for trial in called]

    def withdraw(self, trial: TrialState) -> RequestTrialEnd:
        """Request that a lane returns a trial that it has not begun.

        The lane may have begun it by then, and reports that instead.
        """
        trial.asked = "withdraw"
        lane = self._lane_of(trial)
        if lane is not None:
            self._sort(lane)
        return RequestTrialEnd(trial.number, trial.attempt, "withdraw")
