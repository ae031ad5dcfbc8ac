"""ASHA, asynchronous successive halving, and the rungs at which all kinds of halving compare trials.

Li et al. 2020, "A system for massively parallel hyperparameter tuning", MLSys, algorithm 2 (arXiv 1810.05934). Rungs:
Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS.

A trial that reaches a rung continues at once if it is among the best 1/``reduction_factor`` of those that have reached
it so far. Otherwise it pauses there, and may be promoted when worse trials have reached the rung.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopsml.errors import ArgumentError, RuleError
from hopsml.search.algorithms.budgets import BudgetSearcher
from hopsml.search.contract import Config, Outcome, Searcher, Stopper, Verdict
from hopsml.search.space.space import Searchspace

Key = tuple[float, int, int]  # (-score, place in the order of arrival, number): ascending is from best to worst


class Rung:
    """Scores of one rung from best to worst; among equals the one that arrived first is better."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._key_of: dict[int, Key] = {}
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, number: int, score: float) -> Key:
        """Record a trial's score at this rung, once for each trial, and return its sort key."""
        key = (-score, self._arrived, number)
        self._arrived += 1
        self._key_of[number] = key
        insort(self._keys, key)
        return key

    def remove(self, number: int) -> None:
        """Remove a trial and its score from the comparison, as if it had never reached this rung."""
        key = self._key_of.pop(number)
        del self._keys[bisect_left(self._keys, key)]

    def key(self, number: int) -> Key:
        """Return the sort key of a trial: better scores first, among equal ones the earlier arrival."""
        return self._key_of[number]

    def rank(self, number: int) -> int:
        """Return the number of trials at this rung that are better than this one."""
        return bisect_left(self._keys, self._key_of[number])

    def is_among(self, count: int, key: Key) -> bool:
        """Return True if the trial with this key is one of the ``count`` best."""
        return count > 0 and key <= self._worst(count)

    def is_as_good_as(self, count: int, key: Key) -> bool:
        """Return True if its score is at least that of the ``count``-th best, regardless of the order of arrival."""
        return count > 0 and key[0] <= self._worst(count)[0]

    def _worst(self, count: int) -> Key:
        return self._keys[min(count, len(self._keys)) - 1]

    def best(self, count: int) -> list[int]:
        """Return the numbers of the ``count`` best trials, best first; of all if there are fewer."""
        return [number for _, _, number in self._keys[: max(count, 0)]]

    def state(self) -> list[list[float]]:
        """Return a [number, score] pair for each trial in the order of arrival, for ``restored``."""
        return [[number, -negative] for negative, _, number in sorted(self._keys, key=lambda key: key[1])]

    @classmethod
    def restored(cls, state: list[list[float]]) -> Rung:
        """Return a rung made from another one's ``state()``."""
        rung = cls()
        for number, score in state:
            rung.add(int(number), score)
        return rung


def rung_steps(min_step: int, max_step: int, factor: int) -> tuple[int, ...]:
    """Return the steps of all rungs from ``min_step`` to ``max_step``.

    They are ``min_step``, then ``max_step`` divided by ``factor`` as often as that is greater, rounded down, then
    ``max_step``. (1, 10, 2) has the rungs 1, 2, 5, 10: each is about ``factor`` times the one before, up to the last.
    """
    most = halvings(min_step, max_step, factor)
    above = (max_step // factor**left for left in range(most - 1, -1, -1))
    return (min_step, *above) if most else (max_step,)


def halvings(min_step: int, max_step: int, factor: int) -> int:
    """Return how often ``max_step`` can be divided by ``factor`` without falling below ``min_step``.

    This is s_max of Hyperband.
    """
    count = 0
    while min_step * factor ** (count + 1) <= max_step:
        count += 1
    return count


def check_ladder(min_step: int, max_step: int | None, factor: int, names: tuple[str, str, str]) -> None:
    """Raise ArgumentError unless these are valid steps and a valid factor.

    Args:
        min_step: step of the first rung.
        max_step: step of the last rung; None: there is none.
        factor: reduction factor.
        names: names of the arguments in the user's interface, for messages.
    """
    for name, value, least in zip(names, (min_step, max_step, factor), (1, 1, 2), strict=True):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ArgumentError(f"{name}={value!r}: it must be an integer, {least} or more")
    if max_step is not None and max_step < min_step:
        raise ArgumentError(
            f"{names[0]}={min_step} is above {names[1]}={max_step}: a trial would end before it is compared; swap them"
        )


MODES = ("promote", "stop")


@dataclass(slots=True)
class _Trial:
    bracket: int
    level: int = 0  # number of rungs that it has reached
    verdict: Verdict = Verdict.CONTINUE


class _Bracket:
    """Sequence of rungs of one bracket.

    ``steps`` are those of all rungs, where there is a last one; else a rung's step is ``first * factor**level``.
    """

    def __init__(self, first: int, steps: tuple[int, ...] | None, factor: int) -> None:
        self.first, self.steps, self.factor = first, steps, factor
        self.rungs: list[Rung] = []
        self.paused: list[list[Key]] = []  # for each rung a heap of keys, of which outdated ones are skipped

    def step(self, level: int) -> int:
        """Return the step at which trials are compared on the rung ``level``, counted from 0."""
        if self.steps is not None:
            return self.steps[level]
        step: int = self.first * self.factor**level
        return step

    def rung(self, level: int) -> Rung:
        """Return the rung ``level``, counted from 0.

        It is created on first use, since without ``max_step`` there is no last one.
        """
        while len(self.rungs) <= level:
            self.rungs.append(Rung())
            self.paused.append([])
        return self.rungs[level]


class AshaStopper(Stopper):
    """Asynchronous successive halving: at each rung the best ``1/reduction_factor`` of the trials continue to the next.

    Args:
        max_step: step of the last rung; None: rungs have no end, and a trial is complete when its function returns.
        min_step: step of the first rung.
        reduction_factor: ratio of the steps of two rungs; one trial in so many continues.
        brackets: number of brackets; each begins one rung above the one before and gets fewer trials, in the proportion
            of Hyperband's brackets.
        mode: "promote": a trial that does not continue at once pauses, and may be promoted later. "stop": such a trial
            is stopped. The best trial of a rung then continues even if fewer than ``reduction_factor`` have reached it,
            else the first ones would be stopped in any case; a trial that equals one that continues does so as well.

    Raises:
        ArgumentError: an invalid value.
    """

    def __init__(
        self,
        max_step: int | None = None,
        min_step: int = 1,
        reduction_factor: int = 4,
        brackets: int = 1,
        mode: str = "promote",
    ) -> None:
        check_ladder(min_step, max_step, reduction_factor, ("min_step", "max_step", "reduction_factor"))
        steps = None if max_step is None else rung_steps(min_step, max_step, reduction_factor)
        if isinstance(brackets, bool) or not isinstance(brackets, int) or brackets < 1:
            raise ArgumentError(f"brackets={brackets!r}: it must be an integer, 1 or more")
        if steps is not None and brackets > len(steps):
            raise ArgumentError(f"brackets={brackets}: it must be 1 to {len(steps)}, the number of rungs")
        if mode not in MODES:
            raise ArgumentError(f"mode={mode!r}: it must be one of {', '.join(MODES)}")
        self.max_step, self.factor, self.mode = max_step, reduction_factor, mode
        self._ladders = [
            (min_step * reduction_factor**place, None if steps is None else steps[place:]) for place in range(brackets)
        ]
        self._clear()

    def advice(self, trials: int) -> str:
        """Return a hint if so few trials pass the rungs that probably, or certainly, none becomes complete."""
        if self.mode == "stop" or len(self._ladders) > 1:
            return ""  # where the best trial of each rung continues, or where trials begin at higher rungs
        bracket, level, passing = _Bracket(*self._ladders[0], self.factor), 0, trials
        while passing and bracket.step(level) != self.max_step:
            passing //= self.factor
            level += bool(passing)
        if passing or (self.max_step is None and trials >= self.factor**2):
            return ""
        return (
            f"the stopper asha compares at steps {bracket.step(0)}, {bracket.step(1)} ..., where one trial in "
            f"{self.factor} continues: of {trials} trials none continues past step {bracket.step(level)}. For complete "
            'trials give more trials, or stopper_args={"reduction_factor": 2}, a higher "min_step" (the grace period), '
            'or "mode": "stop"'
        )

    def _clear(self) -> None:
        self._brackets = [_Bracket(first, steps, self.factor) for first, steps in self._ladders]
        self._begun = [0] * len(self._brackets)
        self._trials: dict[int, _Trial] = {}

    def begin(self, number: int, config: Config) -> None:
        """Assign a new trial to the bracket that has the fewest trials relative to its share."""
        bracket = min(range(len(self._begun)), key=lambda place: ((self._begun[place] + 1) / self._share(place), place))
        self._begun[bracket] += 1
        self._trials[number] = _Trial(bracket)

    def _share(self, bracket: int) -> float:
        """Return the number of trials that Hyperband gives to this bracket, up to a common factor."""
        count = len(self._brackets) - 1 - bracket
        return float(self.factor**count / (count + 1))

    def report(self, number: int, step: int, score: float) -> Verdict:
        """Compare the trial at its first report at or past a rung.

        One that passes several rungs at once must be good enough at each.
        """
        trial = self._trials[number]
        if trial.verdict is not Verdict.CONTINUE:
            return trial.verdict
        bracket = self._brackets[trial.bracket]
        while trial.verdict is Verdict.CONTINUE and step >= bracket.step(trial.level):
            trial.verdict = self._judge(number, trial, bracket, score)
        if self.max_step is not None and step >= self.max_step:
            trial.verdict = Verdict.STOP  # complete, whatever its rank
        return trial.verdict

    def _judge(self, number: int, trial: _Trial, bracket: _Bracket, score: float) -> Verdict:
        level = trial.level
        if bracket.step(level) == self.max_step:
            return Verdict.STOP
        rung = bracket.rung(level)
        key = rung.add(number, score)
        trial.level += 1
        if self.mode == "stop":
            return Verdict.CONTINUE if rung.is_as_good_as(self._quota(rung), key) else Verdict.STOP
        if rung.is_among(self._quota(rung), key):
            return Verdict.CONTINUE
        heapq.heappush(bracket.paused[level], key)
        return Verdict.PAUSE

    def _quota(self, rung: Rung) -> int:
        count = len(rung) // self.factor
        return max(count, 1) if self.mode == "stop" else count

    def next_step(self, number: int) -> int:
        """Return the step of the next rung of a running trial."""
        trial = self._trials[number]
        return self._brackets[trial.bracket].step(trial.level)

    def end(self, number: int, outcome: Outcome) -> None:
        """Remove an ended trial; the scores that it had on rungs still count in later comparisons."""
        self._trials.pop(number, None)

    def resume(self) -> int | None:
        """Return the best promotable paused trial of the highest rung; None if no promotion is due.

        Promotable is a trial among the best ``1/factor`` of its rung.
        """
        rungs = [
            (bracket.step(level), place, level)
            for place, bracket in enumerate(self._brackets)
            for level in range(len(bracket.rungs))
        ]
        for _, place, level in sorted(rungs, reverse=True):
            number = self._promotable(self._brackets[place], level)
            if number is not None:
                heapq.heappop(self._brackets[place].paused[level])
                self._trials[number].verdict = Verdict.CONTINUE
                return number
        return None

    def _promotable(self, bracket: _Bracket, level: int) -> int | None:
        paused = bracket.paused[level]
        while paused and not self._is_paused(paused[0][2]):
            heapq.heappop(paused)
        rung = bracket.rungs[level]
        return paused[0][2] if paused and rung.is_among(self._quota(rung), paused[0]) else None

    def _is_paused(self, number: int) -> bool:
        trial = self._trials.get(number)
        return trial is not None and trial.verdict is Verdict.PAUSE

    def state(self) -> dict[str, Any]:
        """Return the rungs and the running and paused trials as JSON values, for ``restore``."""
        return {
            "begun": list(self._begun),
            "rungs": [[rung.state() for rung in bracket.rungs] for bracket in self._brackets],
            "trials": [[number, one.bracket, one.level, one.verdict.value] for number, one in self._trials.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        self._clear()
        self._begun = list(state["begun"])
        for bracket, rungs in zip(self._brackets, state["rungs"], strict=True):
            bracket.rungs = [Rung.restored(rung) for rung in rungs]
            bracket.paused = [[] for _ in rungs]
        for number, place, level, verdict in state["trials"]:
            self._trials[number] = _Trial(place, level, Verdict(verdict))
            if verdict == Verdict.PAUSE.value:
                bracket = self._brackets[place]
                heapq.heappush(bracket.paused[level - 1], bracket.rungs[level - 1].key(number))


class AshaSearcher(BudgetSearcher):
    """Maggy's ``AshaStopper`` for short trials, which receive their budget as the hyper-parameter ``budget``.

    A promoted configuration is tried again, as a further trial, with a budget ``reduction_factor`` times as large.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        num_trials: number of configurations that are tried with ``resource_min``; None: unlimited.
        reduction_factor: ratio of two budgets; one configuration in so many is promoted.
        resource_min: smallest budget.
        resource_max: largest budget.
        searcher: suggests the configurations; None: random search.
        hand_over: start a promoted trial from the checkpoint of the one before.

    Raises:
        ArgumentError: an invalid value, or fewer trials than are needed until one reaches ``resource_max``.
    """

    def __init__(
        self,
        space: Searchspace,
        seed: int | None = None,
        num_trials: int | None = None,
        reduction_factor: int = 2,
        resource_min: int = 1,
        resource_max: int = 4,
        searcher: Searcher | None = None,
        hand_over: bool = False,
    ) -> None:
        names = ("resource_min", "resource_max", "reduction_factor")
        check_ladder(resource_min, resource_max, reduction_factor, names)
        least = reduction_factor ** (len(rung_steps(resource_min, resource_max, reduction_factor)) - 1)
        if num_trials is not None and num_trials < least:
            raise RuleError(
                f"num_trials={num_trials}: with reduction_factor={reduction_factor}, {least} trials of budget "
                f"{resource_min} are needed for one trial to reach {resource_max}; increase num_trials or "
                "resource_min"
            )
        rule = AshaStopper(resource_max, resource_min, reduction_factor)
        super().__init__(space, seed, rule, searcher=searcher, configurations=num_trials, hand_over=hand_over)
