"""State of all trials of a search, and what follows from it: counts, the best trial, the rows of the table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from hopsml.search.contract import Config, End, Exploit, Outcome


class TrialPhase(Enum):
    """What a trial is doing. ``PLACED``: sent to a lane, or its group is being formed; its function has not begun."""

    READY = "waiting"
    PLACED = "placed"
    RUNNING = "running"
    PAUSED = "paused"
    OVER = "over"


@dataclass(slots=True)
class TrialState:
    """The state of one trial. ``value`` is the metric as the function gave it, whichever direction is better."""

    number: int
    config: Config
    resume_from: int | None = None  # whose newest checkpoint the next attempt starts from
    parent: int | None = None
    phase: TrialPhase = TrialPhase.READY
    attempt: int = 0  # counts placements from 1; events of other attempts are ignored
    begun: int = 0  # how often its function has been called
    tries: int = 0  # how often it has failed
    lost: int = 0  # how often its slot was lost
    lane: int | None = None  # where it is, or was last
    avoid: int | None = None  # the lane that it failed on
    asked: str = ""  # request that it has not answered yet: stop | pause | withdraw | cancel
    exploit: Exploit | None = None  # how it goes on after the pause
    wanted: bool = False  # to be resumed as soon as it has paused
    step: int = -1  # of the last report that counted
    value: float | None = None  # of the last report; once it is over, the final one
    since: float = 0.0  # when the present attempt was placed; from its begin on, when it began
    gap: bool = False  # the lane idles until this attempt begins: to be measured
    seconds: float = 0.0  # in which it ran, over all attempts
    end: End | None = None
    outputs: Any = None
    error: str = ""

    @property
    def where(self) -> str:
        """State as shown to users: waiting, placed, running, paused; completed, stopped, failed."""
        return self.end.value if self.end else self.phase.value


class Ledger:
    """All trials of a search in the order in which they were created, with indices by phase and the best one."""

    def __init__(self, direction: str = "max") -> None:
        self.direction = direction
        self._sign = 1.0 if direction == "max" else -1.0
        self.trials: list[TrialState] = []
        self.placed: dict[int, TrialState] = {}
        self.paused: dict[int, TrialState] = {}
        self.ends = dict.fromkeys(End, 0)
        self._best: TrialState | None = None

    def __len__(self) -> int:
        return len(self.trials)

    def get(self, number: int) -> TrialState | None:
        """The trial of this number; None if there is none."""
        return self.trials[number] if 0 <= number < len(self.trials) else None

    def add(self, config: Config, parent: int | None) -> TrialState:
        """Create a trial; its number is the count of those before it."""
        trial = TrialState(len(self.trials), config, parent, parent)
        self.trials.append(trial)
        return trial

    def restore(self, written: dict[str, Any]) -> None:
        """Add a trial from ``as_json``, in the order of numbers; one that was placed becomes READY again."""
        trial = _from_json(len(self.trials), written)
        end, trial.end = trial.end, None
        self.trials.append(trial)
        if end is not None:
            self.close(trial, end)
        else:
            self.move(trial, trial.phase)

    def move(self, trial: TrialState, phase: TrialPhase) -> None:
        """Set a trial's phase and keep the indices by phase in step; every change of a phase goes through here."""
        trial.phase = phase
        if phase is TrialPhase.PLACED or phase is TrialPhase.RUNNING:
            self.placed[trial.number] = trial
            return
        self.placed.pop(trial.number, None)
        if phase is TrialPhase.PAUSED:
            self.paused[trial.number] = trial
        else:
            self.paused.pop(trial.number, None)

    def score(self, value: float | None) -> float | None:
        """The value with the sign turned where the metric is minimised: for searchers and stoppers larger is better."""
        return None if value is None else self._sign * value

    def outcome(self, trial: TrialState) -> Outcome:
        """The result of a trial that is over, as searcher and stopper are told it."""
        assert trial.end is not None
        return Outcome(trial.end, self.score(trial.value), trial.step if trial.step >= 0 else None)

    def close(self, trial: TrialState, end: End) -> None:
        """End a trial for good; value, outputs and error must have been set. Updates counts and the best trial."""
        trial.end = end
        self.move(trial, TrialPhase.OVER)
        self.ends[end] += 1
        if trial.value is not None and (self._best is None or self._better(trial, self._best)):
            self._best = trial

    def _better(self, one: TrialState, other: TrialState) -> bool:
        ours, theirs = self.score(one.value), self.score(other.value)
        assert ours is not None and theirs is not None
        return ours > theirs or (ours == theirs and one.number < other.number)

    @property
    def best(self) -> TrialState | None:
        """The best of the trials that are over and have a value; among equals the first."""
        return self._best

    @property
    def over(self) -> int:
        """How many trials are over."""
        return sum(self.ends.values())

    def counts(self) -> dict[str, int]:
        """Number of trials by state: waiting (also behind a busy lane), running, paused, completed, stopped, failed."""
        ended = {end.value: count for end, count in self.ends.items()}
        running = sum(trial.phase is TrialPhase.RUNNING for trial in self.placed.values())
        waiting = len(self.trials) - self.over - running - len(self.paused)
        return {"waiting": waiting, "running": running, "paused": len(self.paused), **ended}

    def rows(self) -> list[dict[str, Any]]:
        """One dict of plain values for each trial, in the order of their numbers."""
        return [row(trial) for trial in self.trials]


_ELSEWHERE = ("number", "phase", "lane", "since", "gap", "exploit", "end")  # or of a place that is gone by then
_PLAIN = tuple(known.name for known in fields(TrialState) if known.name not in _ELSEWHERE)


def as_json(trial: TrialState) -> dict[str, Any]:
    """A trial's fields for ``Ledger.restore``, without its number and lane; those with their default are left out."""
    known = {name: getattr(trial, name) for name in _PLAIN if getattr(trial, name) != getattr(_NEW, name)}
    phase = TrialPhase.READY if trial.phase is TrialPhase.PLACED else trial.phase
    if trial.asked == "withdraw":
        del known["asked"]
    if trial.exploit is not None:
        known["exploit"] = [trial.exploit.source, trial.exploit.config]
    return {**known, "phase": phase.value, "end": trial.end.value if trial.end else None}


_NEW = TrialState(-1, {})


def _from_json(number: int, written: dict[str, Any]) -> TrialState:
    known = {name: written[name] for name in _PLAIN if name in written}
    exploit = Exploit(*written["exploit"]) if "exploit" in written else None
    end = End(written["end"]) if written["end"] else None
    return TrialState(number, **{"config": {}, **known}, phase=TrialPhase(written["phase"]), exploit=exploit, end=end)


def row(trial: TrialState) -> dict[str, Any]:
    """One trial's row of the table of results; JSON values, but for those of its configuration."""
    return {
        "number": trial.number,
        "state": trial.where,
        "value": trial.value,
        "step": trial.step if trial.step >= 0 else None,
        "seconds": trial.seconds,
        "attempts": trial.begun,
        "failures": trial.tries,
        "lost": trial.lost,
        "parent": trial.parent,
        "error": trial.error,
        "config": dict(trial.config),
    }
