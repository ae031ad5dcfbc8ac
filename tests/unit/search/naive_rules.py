"""Naive, slow models of ASHA, Hyperband and PBT, which use only data types of hopsml.search.

They follow the definitions in the papers. Each stores the whole history, and computes every answer from it.
"""

from __future__ import annotations

import math
from typing import Any

from hopsml.search.contract import Config, Exploit, Outcome, Verdict
from hopsml.search.space.space import Searchspace


class NaiveAsha:
    """Li et al. 2020, algorithm 2; a running trial that is promotable on its rung continues in its slot."""

    def __init__(self, min_step: int, max_step: int, eta: int, mode: str) -> None:
        """Below the last one: max_step over powers of eta, as far as min_step allows; the first is min_step."""
        powers = [eta**power for power in range(1, 60) if min_step * eta**power <= max_step]
        self.steps = sorted(max_step // power for power in powers)
        self.steps[:1] = [min_step] * bool(powers)
        self.max_step, self.eta, self.mode = max_step, eta, mode
        self.results: list[list[tuple[int, float]]] = [
            [] for _ in self.steps
        ]  # rung -> (trial, score) in order of arrival
        self.promoted: list[set[int]] = [set() for _ in self.steps]
        self.live: set[int] = set()

    def top(self, rung: int) -> list[int]:
        """The trials among the best 1/eta of a rung."""
        count = len(self.results[rung]) // self.eta
        if self.mode == "stop" and self.results[rung]:
            count = max(count, 1)
        order = sorted(range(len(self.results[rung])), key=lambda i: (-self.results[rung][i][1], i))
        if self.mode == "stop" and count:  # all that equal the last of them, too
            least = self.results[rung][order[count - 1]][1]
            count = sum(score >= least for _, score in self.results[rung])
        return [self.results[rung][i][0] for i in order[:count]]

    def began(self, number: int, config: Config) -> None:
        self.live.add(number)

    def reported(self, number: int, step: int, score: float, answer: Verdict | Exploit) -> None:
        expected = Verdict.CONTINUE
        for rung, at in enumerate(self.steps):
            if step < at or number in self.promoted[rung]:
                continue
            self.results[rung].append((number, score))
            if number not in self.top(rung):
                expected = Verdict.STOP if self.mode == "stop" else Verdict.PAUSE
                break
            self.promoted[rung].add(number)
        if step >= self.max_step:
            expected = Verdict.STOP
        if expected is Verdict.STOP:
            self.live.discard(number)
        assert answer is expected, (number, step, score, answer, expected)

    def promotable(self) -> int | None:
        """Return the trial that get_job would promote: from the highest rung, the best first."""
        for rung in reversed(range(len(self.steps))):
            for number in self.top(rung):
                if number not in self.promoted[rung] and number in self.live:
                    return number
        return None

    def resumed(self, number: int | None, settling: bool) -> None:
        expected = None if self.mode == "stop" else self.promotable()
        assert number == expected, (number, expected)
        if number is not None:
            rung = max(r for r in range(len(self.steps)) if any(number == who for who, _ in self.results[r]))
            self.promoted[rung].add(number)

    def ended(self, number: int, outcome: Outcome) -> None:
        self.live.discard(number)


class NaiveHyperband:
    """Li et al. 2018, algorithm 1, checked afterwards: the trials that passed each rung are the best that reached it.

    For trials that report at every step.
    """

    def __init__(self, max_step: int, eta: int) -> None:
        self.eta, self.max_step = eta, max_step
        s_max = int(math.log(max_step + 0.5) / math.log(eta))
        self.brackets: list[tuple[list[int], list[int]]] = []  # sizes, steps
        for s in range(s_max, -1, -1):
            n = math.ceil((s_max + 1) * eta**s / (s + 1) - 1e-9)
            sizes = [math.floor(n * eta**-i + 1e-9) for i in range(s + 1)]
            steps = [math.floor(max_step * float(eta) ** (i - s) + 1e-9) for i in range(s + 1)]
            self.brackets.append((sizes, steps))
        self.history: list[tuple[Any, ...]] = []

    def place(self, number: int) -> tuple[int, list[int], list[int]]:
        """Bracket, sizes and steps of a trial."""
        bracket = 0
        while True:
            sizes, steps = self.brackets[bracket % len(self.brackets)]
            if number < sizes[0]:
                return bracket, sizes, steps
            number -= sizes[0]
            bracket += 1

    def began(self, number: int, config: Config) -> None:
        self.history.append(("began", number))

    def reported(self, number: int, step: int, score: float, answer: Verdict | Exploit) -> None:
        assert (step >= self.max_step) <= (answer is not Verdict.CONTINUE), (number, step, answer)
        self.history.append(("reported", number, step, score, answer))

    def resumed(self, number: int | None, settling: bool) -> None:
        if number is not None:
            self.history.append(("resumed", number))

    def ended(self, number: int, outcome: Outcome) -> None:
        self.history.append(("ended", number, outcome))

    def judge(self) -> int:
        """Compare every filled bracket with the definition; how many rungs there were to compare."""
        by_bracket: dict[int, set[int]] = {}
        for event in self.history:
            by_bracket.setdefault(self.place(event[1])[0], set()).add(event[1])
        compared = 0
        for members in by_bracket.values():
            _, sizes, steps = self.place(min(members))
            if len(members) == sizes[0]:
                compared += self._judge(members, sizes, steps)
        return compared

    def _judge(self, members: set[int], sizes: list[int], steps: list[int]) -> int:
        towards = dict.fromkeys(members, 0)  # trial -> rung that it runs to
        arrived: list[list[tuple[float, int]]] = [[] for _ in sizes]
        went_on: list[set[int]] = [set() for _ in sizes]
        for event in self.history:
            number = event[1]
            if number not in members:
                continue
            if event[0] == "resumed":
                went_on[towards[number]].add(number)
                towards[number] += 1
            elif event[0] == "reported":
                _, _, step, score, answer = event
                if towards[number] < len(steps) - 1 and step == steps[towards[number]]:
                    arrived[towards[number]].append((score, number))
                    if answer is Verdict.CONTINUE:
                        went_on[towards[number]].add(number)
                        towards[number] += 1
        for rung in range(len(sizes) - 1):
            order = sorted(range(len(arrived[rung])), key=lambda i: (-arrived[rung][i][0], i))
            best = {arrived[rung][i][1] for i in order[: sizes[rung + 1]]}
            assert went_on[rung] == best, (rung, sizes, went_on[rung], best)
        return len(sizes) - 1


class NaivePopulation:
    """Jaderberg et al. 2017: truncation selection at the end of every interval, once the population is complete.

    With fewer slots than trials, no trial continues while another one is behind, except to be overwritten once.
    """

    def __init__(
        self,
        space: Searchspace,
        population: int,
        interval: int,
        max_step: int,
        quantile: float,
        factors: tuple[float, ...],
    ) -> None:
        self.space, self.population, self.interval, self.max_step = space, population, interval, max_step
        self.quantile, self.factors = quantile, factors
        self.begun, self.settled = 0, False
        self.config: dict[int, Config] = {}
        self.ends: dict[int, int] = {}  # trial -> intervals behind it
        self.score: dict[int, float] = {}
        self.waiting: set[int] = set()
        self.uncompared: set[int] = set()
        self.kept_its_place: set[int] = set()
        self.exploits = 0

    def began(self, number: int, config: Config) -> None:
        self.begun += 1
        self.config[number], self.ends[number] = config, 0

    def complete(self) -> bool:
        """Return True if no other trial will join the population."""
        return self.settled or self.begun >= self.population

    def reported(self, number: int, step: int, score: float, answer: Verdict | Exploit) -> None:
        ends = step // self.interval > self.ends[number]
        if ends:
            self.ends[number], self.score[number] = step // self.interval, score
        if step >= self.max_step:
            assert answer is Verdict.STOP
            return
        behind = not self.complete() or any(self.ends[other] < self.ends[number] for other in self.waiting)
        if ends and behind and number in self.kept_its_place:
            self.kept_its_place.discard(number)
            self.uncompared.add(number)
            assert answer is Verdict.PAUSE
        elif (ends or number in self.uncompared) and self.must_take_over(number, answer):
            self.uncompared.discard(number)
            self.kept_its_place.discard(number)
            if ends and behind:
                self.kept_its_place.add(number)
        else:
            if ends or number in self.uncompared:
                self.uncompared.discard(number)
            assert answer is (Verdict.PAUSE if ends and behind else Verdict.CONTINUE), (number, step, answer)
            if ends and behind:
                self.kept_its_place.discard(number)
        if answer is Verdict.PAUSE:
            self.waiting.add(number)

    def must_take_over(self, number: int, answer: Verdict | Exploit) -> bool:
        """Return True if the answer makes the trial copy another one; raises AssertionError if the answer is wrong."""
        scores = [(who, score) for who, score in self.score.items() if who in self.config]
        count = min(math.ceil(len(scores) * self.quantile), len(scores) // 2)
        order = [who for who, _ in sorted(scores, key=lambda pair: (-pair[1], pair[0]))]
        best, worst = order[:count], order[len(order) - count :]
        must = self.complete() and number in worst
        if not isinstance(answer, Exploit):
            assert not must, (number, order, answer)
            return False
        assert must and answer.source in best
        assert self.space.contains(answer.config)
        self.config[number], self.score[number] = answer.config, self.score[answer.source]
        self.exploits += 1
        return True

    def resumed(self, number: int | None, settling: bool) -> None:
        self.settled = self.settled or settling
        expected = (
            min(((self.ends[who], who) for who in self.waiting), default=(0, None))[1] if self.complete() else None
        )
        assert number == expected, (number, expected)
        self.waiting.discard(number)  # type: ignore[arg-type]

    def ended(self, number: int, outcome: Outcome) -> None:
        self.config.pop(number)
        self.waiting.discard(number)
