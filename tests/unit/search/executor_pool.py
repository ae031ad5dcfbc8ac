"""Simulated executors that carry out trials one report at a time, for stoppers and searchers.

The trial that reports next is drawn: the same seed gives the same history, and different seeds give different orders.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hopsml.search.contract import Config, End, Exploit, Outcome, Stopper, Verdict


class Watcher(Protocol):
    """Observer of the events and of the stopper's answers."""

    def began(self, number: int, config: Config) -> None: ...
    def reported(self, number: int, step: int, score: float, answer: Verdict | Exploit) -> None: ...
    def ended(self, number: int, outcome: Outcome) -> None: ...
    def resumed(self, number: int | None, settling: bool) -> None: ...


@dataclass
class Trial:
    """State of a trial in its slot."""

    number: int
    config: Config
    step: int = 0
    score: float | None = None
    pieces: int = 0  # how often it was begun or resumed


@dataclass
class ExecutorPool:
    """Pool whose ``places`` run trials of ``stopper`` until none is left; ``score(trial, rng)`` is the reported value.

    ``stride``: largest distance of two reports in steps, drawn from 1. ``fails``, ``returns``: probability for each
    report that the trial fails, or completes, instead. ``restored``: makes an equal stopper, which is loaded after each
    event with the state of the one before.
    """

    stopper: Stopper
    places: int
    trials: int
    seed: int
    score: Callable[[Trial, random.Random], float]
    stride: int = 1
    fails: float = 0.0
    returns: float = 0.0
    last_step: int | None = None  # at which every function returns
    config: Callable[[int], Config] = lambda number: {"x": number}
    watchers: list[Watcher] = field(default_factory=list)
    taken_over: Callable[[Stopper], Stopper] | None = None

    running: dict[int, Trial] = field(default_factory=dict)
    paused: dict[int, Trial] = field(default_factory=dict)
    over: dict[int, Outcome] = field(default_factory=dict)
    log: list[tuple[Any, ...]] = field(default_factory=list)

    def run(self, most: int = 100_000) -> list[tuple[Any, ...]]:
        """All events and answers; fails where that takes more than ``most`` events."""
        self.rng = random.Random(self.seed)
        for _ in range(most):
            while len(self.running) < self.places and self._fill():
                pass
            if not self.running and not self._settle():
                for number in list(self.paused):
                    self._end(self.paused.pop(number), End.STOPPED)
                return self.log
            self._advance(self.running[self.rng.choice(sorted(self.running))])
        raise AssertionError(f"{len(self.running)} trials are still running after {most} events")

    def _fill(self) -> bool:
        number = self.stopper.resume()
        for watcher in self.watchers:
            watcher.resumed(number, False)
        if number is not None:
            self._resume(number)
            return True
        if self._begun == self.trials or not self.stopper.wants():
            return False
        trial = Trial(self._begun, self.config(self._begun), pieces=1)
        self.log.append(("begin", trial.number))
        self.running[trial.number] = trial
        self.stopper.begin(trial.number, trial.config)
        for watcher in self.watchers:
            watcher.began(trial.number, trial.config)
        return True

    @property
    def _begun(self) -> int:
        return len(self.running) + len(self.paused) + len(self.over)

    def _settle(self) -> bool:
        number = self.stopper.settle()
        for watcher in self.watchers:
            watcher.resumed(number, True)
        if number is not None:
            self._resume(number)
        return number is not None

    def _resume(self, number: int) -> None:
        self.log.append(("resume", number))
        trial = self.running[number] = self.paused.pop(number)
        trial.pieces += 1

    def _advance(self, trial: Trial) -> None:
        if self.taken_over:
            self.stopper = self.taken_over(self.stopper)
        luck = self.rng.random()
        if luck < self.fails + self.returns:
            self._end(self.running.pop(trial.number), End.FAILED if luck < self.fails else End.COMPLETED)
            return
        trial.step += self.rng.randint(1, self.stride)
        trial.score = self.score(trial, self.rng)
        answer = self.stopper.report(trial.number, trial.step, trial.score)
        self.log.append(("report", trial.number, trial.step, trial.score, answer))
        for watcher in self.watchers:
            watcher.reported(trial.number, trial.step, trial.score, answer)
        if isinstance(answer, Exploit):
            trial.config = answer.config
        elif answer is Verdict.PAUSE:
            self.paused[trial.number] = self.running.pop(trial.number)
        elif answer is Verdict.STOP:
            self._end(self.running.pop(trial.number), End.STOPPED)
        elif self.last_step is not None and trial.step >= self.last_step:
            self._end(self.running.pop(trial.number), End.COMPLETED)

    def _end(self, trial: Trial, end: End) -> None:
        outcome = Outcome(end, None if end is End.FAILED else trial.score, trial.step or None)
        self.over[trial.number] = outcome
        self.log.append(("end", trial.number, outcome))
        self.stopper.end(trial.number, outcome)
        for watcher in self.watchers:
            watcher.ended(trial.number, outcome)
