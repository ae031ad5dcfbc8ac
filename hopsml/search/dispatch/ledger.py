"""State of all trials of a search, and values derived from it: counts, the best trial, the result table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from hopsml.search.contract import Config, End, Exploit, Outcome


class TrialPhase(Enum):
    """Phase of a trial's life.

    ``PLACED``: sent to a lane, or its group is being started; its function has not begun.
    """

    READY = "waiting"
    PLACED = "placed"
    RUNNING = "running"
    PAUSED = "paused"
    OVER = "over"


@dataclass(slots=True)
class TrialState:
    """State of one trial; ``value`` is the metric as the function reported it, whichever direction is better."""

    number: int
    config: Config
    resume_from: int | None = None  # trial from whose newest checkpoint the next attempt starts
    parent: int | None = None
    phase: TrialPhase = TrialPhase.READY
    attempt: int = 0  # counts placements from 1; events of other attempts are ignored
    begun: int = 0  # number of calls of its function
    tries: int = 0  # number of failed attempts
    lost: int = 0  # number of attempts whose slot failed
    lane: int | None = None  # present or last lane
    avoid: int | None = None  # lane on which it failed
    asked: str = ""  # pending request to it: stop | pause | withdraw | cancel
    exploit: Exploit | None = None  # how it continues after the pause
    wanted: bool = False  # resume it as soon as it has paused
    step: int = -1  # step of the last report that counted
    late_step: int = -1  # step of the last report since the trial was requested to end
    value: float | None = None  # metric of the last report; of an ended trial the final one
    since: float = 0.0  # monotonic time at which the present attempt was placed, or has begun
    gap: bool = False  # measure the time until this attempt begins, during which the lane is idle
    seconds: float = 0.0  # running time of all attempts
    end: End | None = None
    outputs: Any = None
    error: str = ""

    @property
    def where(self) -> str:
        """State as shown to users: waiting, placed, running, paused; completed, stopped, failed."""
        return self.end.value if self.end else self.phase.value


class Ledger:
    """Table of all trials of a search in order of creation, with indices by phase and the best one."""

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
        """Return the trial of this number; None if there is none."""
        return self.trials[number] if 0 <= number < len(self.trials) else None

    def add(self, config: Config, parent: int | None) -> TrialState:
        """Create a trial, whose number is the count of those before it."""
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
        """Set a trial's phase and update the indices by phase; every change of a phase is made here."""
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
        """Return the value, negated where the metric is minimised: for searchers and stoppers larger is better."""
        return None if value is None else self._sign * value

    def outcome(self, trial: TrialState) -> Outcome:
        """Return the result of an ended trial as it is passed to searcher and stopper."""
        assert trial.end is not None
        return Outcome(trial.end, self.score(trial.value), trial.step if trial.step >= 0 else None)

    def close(self, trial: TrialState, end: End) -> None:
        """End a trial for good, and update counts and the best trial.

        Its value, outputs and error must have been set.
        """
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
        """Best of the ended trials that have a value; the first one among equals."""
        return self._best

    @property
    def ended_count(self) -> int:
        """Number of trials that have ended."""
        return sum(self.ends.values())

    def counts(self) -> dict[str, int]:
        """Return the number of trials by state: waiting, running, paused, completed, stopped, failed.

        Those that wait behind a busy lane count as waiting.
        """
        ended = {end.value: count for end, count in self.ends.items()}
        running = sum(trial.phase is TrialPhase.RUNNING for trial in self.placed.values())
        waiting = len(self.trials) - self.ended_count - running - len(self.paused)
        return {"waiting": waiting, "running": running, "paused": len(self.paused), **ended}

    def remarks(self) -> list[str]:
        """Return hints for the user about trials that a stopper ended, or could not end in time."""
        late = sum(trial.end is End.COMPLETED and trial.late_step >= 0 for trial in self.trials)
        found = []
        if late:
            found.append(
                f"{late} of {self.ends[End.COMPLETED]} completed trials returned before the stopper's request to end "
                "reached them: their reports follow each other within milliseconds"
            )
        if self.best is not None and self.best.end is End.STOPPED and not self.ends[End.COMPLETED]:
            failed = next((trial for trial in self.trials if trial.end is End.FAILED), None)
            remedy = "give the search more trials, or change stopper_args"
            if failed is not None:
                remedy = f"correct the error of trial {failed.number}, which failed ({failed.error}), or {remedy}"
            found.append(
                f"no trial has completed: the best value is that of trial {self.best.number} at step {self.best.step}, "
                f"where the stopper ended it; {remedy}"
            )
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict of plain values for each trial, in the order of their numbers."""
        return [row(trial) for trial in self.trials]


_ELSEWHERE = ("number", "phase", "lane", "since", "gap", "exploit", "end")  # written separately, or not valid later
_PLAIN = tuple(known.name for known in fields(TrialState) if known.name not in _ELSEWHERE)


def as_json(trial: TrialState) -> dict[str, Any]:
    """Return a trial's fields for ``Ledger.restore``, without its number and lane.

    Fields with their default value are left out.
    """
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
    """Return one trial's row of the result table; JSON values, except those in its configuration."""
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
