"""Driver of a searcher, as a dispatch would be: concurrent trials that end in any order and state."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hopsml.search.contract import Config, End, Outcome, Searcher, Suggestion, Wait

Score = Callable[[Config], float | None]
Restore = Callable[[Any], Searcher]  # from the state that JSON gave back


@dataclass
class Driven:
    """Result of a search: ``answers`` in the order of the numbers, ``best`` of the completed trials."""

    answers: list[Suggestion] = field(default_factory=list)
    ended: dict[int, Outcome] = field(default_factory=dict)
    done: bool = False
    later: int = 0

    @property
    def configs(self) -> list[Config]:
        return [answer.config for answer in self.answers]

    @property
    def best(self) -> float:
        return max(outcome.score for outcome in self.ended.values() if outcome.score is not None)


def drive(
    searcher: Searcher,
    score: Score,
    trials: int,
    lanes: int = 1,
    seed: int = 0,
    failing: float = 0.0,
    stopped: float = 0.0,
    restore: Restore | None = None,
    restore_at: int = -1,
) -> Driven:
    """Run ``trials`` on ``lanes`` slots, and restore another instance after ``restore_at`` ended trials.

    Raises AssertionError if the searcher makes it wait although no trial is running.
    """
    draw = random.Random(seed)
    driven = Driven()
    running: dict[int, Config] = {}
    while True:
        if restore is not None and len(driven.ended) == restore_at:
            searcher, restore = restore(json.loads(json.dumps(searcher.state()))), None
        while len(running) < lanes and len(driven.answers) < trials and not driven.done:
            answer = searcher.ask(len(driven.answers))
            if answer is Wait.LATER:
                assert running, "LATER, although nothing runs whose end could change that"
                driven.later += 1
                break
            if answer is Wait.DONE:
                driven.done = True
                break
            assert isinstance(answer, Suggestion)
            running[len(driven.answers)] = answer.config
            driven.answers.append(answer)
        if not running:
            return driven
        number = draw.choice(sorted(running))
        outcome = _outcome(score(running.pop(number)), draw.random(), failing, stopped)
        searcher.tell(number, outcome)
        driven.ended[number] = outcome


def _outcome(score: float | None, chance: float, failing: float, stopped: float) -> Outcome:
    if chance < failing:
        return Outcome(End.FAILED)
    if chance < failing + stopped:
        return Outcome(End.STOPPED, score, step=1 + int(10 * chance))
    return Outcome(End.COMPLETED, score, step=20)
