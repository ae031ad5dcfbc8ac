"""The lanes of a search: which trial each runs, which one waits behind it, and which lane gets the next trial."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from hopsml.search.dispatch.events import Action, Assign, EndTrial
from hopsml.search.dispatch.ledger import TrialPhase, TrialState
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.dispatch.supply import Supply

WORTH = 0.01  # a gap of this share of a trial is worth closing
GAP_S = 0.005  # assumed until one was measured
_KEPT = 15  # gaps whose median counts: a single pause of the driver shall not
_WEIGHT = 0.1  # of the newest duration in their mean


class Prefetch:
    """Whether to send a trial to a lane that is still busy, so that it goes on without asking the driver.

    Sending ahead saves the time between a lane's end of one trial and its begin of the next: the way to the driver and
    back, and what the searcher needs for an answer. It costs knowledge: the configuration was chosen without the result
    that the lane is working on, without those that come in meanwhile, and before a paused trial that may have become
    promotable. So it pays where that gap is a noticeable share of a trial, and nowhere else: with trials of a second and a
    gap of 3 ms it would buy 0.3 % of the time, with trials of 50 ms 6 %. Both are measured here: the duration by what
    trials took, the gap by the time between sending a trial to an idle lane and its begin. In the gap lie the searcher's
    own time, the journal's, and with many lanes the time that the driver is busy with the others: so their number needs no
    rule of its own.

    The end of a search is not lost by it: what waits behind a busy lane while another has nothing to do is withdrawn, and
    nothing is sent ahead once there are fewer trials left than lanes.
    """

    def __init__(self, fixed: bool | None = None) -> None:
        self._fixed = fixed
        self._gaps: deque[float] = deque(maxlen=_KEPT)
        self.gap_s = GAP_S
        self.mean_s: float | None = None

    def gap(self, seconds: float) -> None:
        """Record the ``seconds`` between sending a trial to an idle lane that ran trials before, and its begin there."""
        self._gaps.append(seconds)
        self.gap_s = median(self._gaps)

    def took(self, seconds: float) -> None:
        """Record the ``seconds`` that an attempt of a trial ran, until its end or pause."""
        self.mean_s = seconds if self.mean_s is None else self.mean_s + _WEIGHT * (seconds - self.mean_s)

    @property
    def pays(self) -> bool:
        """Whether to send a trial to a lane that is still busy."""
        if self._fixed is not None:
            return self._fixed
        return self.mean_s is not None and self.gap_s > WORTH * self.mean_s


@dataclass(slots=True)
class LaneState:
    """A slot whose process runs one trial after another: ``current``, then ``waiting``, which was sent ahead."""

    number: int
    host: str = ""
    current: TrialState | None = None
    waiting: TrialState | None = None
    used: bool = False  # a trial has begun here, so everything is imported


class LaneTable:
    """All lanes of a search: which trial each runs, which one waits behind that, and where the next one goes."""

    def __init__(self, spec: SearchSpec, supply: Supply) -> None:
        self._spec = spec
        self._supply = supply
        self._ledger = supply.ask_tell.ledger
        self._prefetch = Prefetch(spec.prefetch)
        self.lanes: dict[int, LaneState] = {}
        self._allowed: int | None = None  # how many of them may be busy
        # Each lane is in at most one of these tables, by what it can take: no decision looks at all lanes.
        self._idle: dict[int, LaneState] = {}
        self._room: dict[int, LaneState] = {}
        self._behind: dict[int, LaneState] = {}  # a trial waits there
        self._calling: dict[int, LaneState] = {}  # a trial waits there, and is being withdrawn
        self._tables = (self._idle, self._room, self._behind, self._calling)

    @property
    def held(self) -> int:
        """Number of slots that the search has."""
        return len(self.lanes)

    @property
    def width(self) -> int:
        """Number of trials that run at the same time."""
        return len(self.lanes)

    def wanted(self) -> int:
        """Number of lanes that the search could use now, those that it has included."""
        left = self._supply.ask_tell.left
        most = self._spec.max_lanes
        if left is None:
            return most if most is not None else len(self.lanes) + 1
        useful = len(self._ledger.placed) + len(self._supply.ready) + len(self._ledger.paused) + left
        return useful if most is None else min(useful, most)

    # ---------------------------------------------------------------------------------------- what happens

    def join(self, number: int, host: str) -> None:
        """Add a lane; one that is known already is left unchanged."""
        if number not in self.lanes:
            lane = self.lanes[number] = LaneState(number, host)
            self._sort(lane)

    def allow(self, count: int) -> None:
        """Let no more lanes than these be busy, where others have ended what they do."""
        self._allowed = max(1, count)

    def lose(self, number: int) -> tuple[TrialState | None, TrialState | None]:
        """Remove a lane; returns the trial that it ran and the one that waited behind it, None for none."""
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

    def over(self, trial: TrialState, seconds: float | None) -> None:
        """Free the trial's place. ``seconds``: how long it ran, for later estimates; None: not representative."""
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
        # else: the waiting one has begun, and the end of the one before is still to be reported: nothing can be called back

    def wake_at(self) -> float:
        """Always infinity: no decision about lanes depends on time alone."""
        return float("inf")

    @property
    def dry(self) -> bool:
        """Whether lanes are idle because no trial was found for them."""
        return bool(self._idle)

    # ---------------------------------------------------------------------------------------- what follows

    def fill(self, now: float) -> list[Action]:
        """Assign trials to idle lanes; where none is idle and it pays, send busy lanes a further trial ahead of time."""
        actions: list[Action] = []
        while self._idle and self.takes_more and (found := self._match(self._idle)):
            actions.append(self._assign(*found, now))
        if self._allowed is not None and len(self.lanes) > self._allowed:
            # Some are to go, and can once nothing waits behind what they do.
            actions.extend([self.withdraw(lane.waiting) for lane in list(self._behind.values()) if lane.waiting])
        elif self._idle:
            actions.extend(self._spread())
        elif self._room and self._prefetch.pays:
            # As many trials as lanes stay unsent: sent ahead, the last ones might wait while another lane falls idle.
            left = self._supply.ask_tell.left
            while self._room and (left is None or left > len(self.lanes)) and (found := self._match(self._room)):
                actions.append(self._assign(*found, now))
                left = self._supply.ask_tell.left
        return actions

    @property
    def takes_more(self) -> bool:
        """Whether one more lane may be busy."""
        return self._allowed is None or len(self.lanes) - len(self._idle) < self._allowed

    def _match(self, free: dict[int, LaneState]) -> tuple[LaneState, TrialState] | None:
        """The next trial and one of the lanes ``free`` for it: where it ran last, unless it failed there; None: no trial."""
        # One free lane among several: skip trials that failed on it, which the others can take. A lone lane takes all.
        only = next(iter(free)) if len(free) == 1 and len(self.lanes) > 1 else None
        trial = self._supply.next(only)
        if trial is None:
            return None
        if trial.lane in free and (trial.lane != trial.avoid or len(free) == 1):
            return free[trial.lane], trial
        return self._lane_for(trial, free), trial

    def _lane_for(self, trial: TrialState, free: dict[int, LaneState]) -> LaneState:
        """Any lane; for a trial that failed another lane than then, on another host if possible."""
        failed_on = self.lanes.get(-1 if trial.avoid is None else trial.avoid)
        if failed_on is None or len(free) == 1:
            return next(iter(free.values()))
        others = [lane for lane in free.values() if lane is not failed_on]
        return next((lane for lane in others if lane.host != failed_on.host), others[0])

    def _assign(self, lane: LaneState, trial: TrialState, now: float) -> Assign:
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
        return Assign(lane.number, trial.number, trial.attempt, trial.config, isolated, trial.resume_from, trial.step)

    def _spread(self) -> list[Action]:
        """Withdraw trials that wait behind busy lanes while others are idle; they are assigned once they have come back."""
        missing = len(self._idle) - len(self._calling)  # those already being withdrawn will fill as many
        only = next(iter(self._idle)) if len(self._idle) == 1 else None
        called: list[TrialState] = []
        for lane in self._behind.values():
            if len(called) >= missing:
                break
            if lane.waiting is not None and (only is None or lane.waiting.avoid != only):
                called.append(lane.waiting)
        return [self.withdraw(trial) for trial in called]

    def withdraw(self, trial: TrialState) -> EndTrial:
        """Ask a lane to return a trial that it has not begun; the answer may be that it has begun meanwhile."""
        trial.asked = "withdraw"
        lane = self._lane_of(trial)
        if lane is not None:
            self._sort(lane)
        return EndTrial(trial.number, trial.attempt, "withdraw")
