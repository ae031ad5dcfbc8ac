"""Population based training: Jaderberg et al. 2017, arXiv 1711.09846, algorithm 1 with truncation selection.

Every ``interval`` steps a trial is compared with the rest of the population. One of the worst goes on from the newest
checkpoint of one of the best (exploit), with the other's hyper-parameters slightly changed (explore). With fewer places
than trials, a trial that is ahead of one that waits gives its place up at the end of an interval. In the synchronous mode
everybody waits at the end of an interval for the others, and all are compared at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.randomness import generator, seed_of
from hopsml.search.contract import Config, Exploit, Outcome, Stopper, Verdict
from hopsml.search.space.parameter import CATEGORICAL, Choice, Integers, Parameter
from hopsml.search.space.space import Searchspace, check_filled

if TYPE_CHECKING:
    import numpy as np


@dataclass(slots=True)
class Individual:
    """One trial of the population. ``score``: at the end of its last interval, or of the one that it took over from."""

    config: Config
    intervals: int = 0  # completed so far
    score: float | None = None
    step: int = 0  # at which it had that score
    due: bool = False  # to be compared when it is resumed
    kept: bool = False  # it went on at the end of its last interval although another one waited
    verdict: Verdict = Verdict.CONTINUE
    exploit: Exploit | None = None  # synchronous mode: decided while it waited, told when it is resumed
    released: bool = False  # synchronous mode: all others have come, it may be resumed


class PopulationBased(Stopper):
    """``population`` trials are compared every ``interval`` steps; those in the worst ``quantile`` take over from the best.

    A hyper-parameter is drawn anew with ``resample_probability``, else a number is multiplied by one of ``factors``, a
    DISCRETE value moves to a neighbour, and a category stays. ``max_step``: at which a trial is complete; None: when its
    function returns. Nobody is compared before the whole population is there. ``synchronous``: a trial waits at the end of
    an interval until all have come there, so that equal amounts of training are compared, and the same seed gives the same
    exchanges whoever was faster; places are idle meanwhile. Raises ArgumentError for values that cannot be.
    """

    def __init__(
        self,
        space: Searchspace | None = None,
        population: int | None = None,
        interval: int = 1,
        max_step: int | None = None,
        quantile: float = 0.25,
        resample_probability: float = 0.25,
        factors: Sequence[float] = (1.2, 0.8),
        seed: int | None = None,
        synchronous: bool = False,
    ) -> None:
        if space is None or population is None:
            missing = "space" if space is None else "population"
            raise ArgumentError(
                f"{missing} is missing: population based training needs the search space and how many train"
            )
        check_filled(space)
        for name, value, least in (("population", population, 2), ("interval", interval, 1), ("max_step", max_step, 1)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ArgumentError(f"{name}={value!r}: an integer of {least} or more was expected")
        if not 0 < quantile <= 0.5:
            raise ArgumentError(
                f"quantile={quantile!r}: more than 0 and at most 0.5 was expected, as the best are not the worst"
            )
        if not 0 <= resample_probability <= 1:
            raise ArgumentError(
                f"resample_probability={resample_probability!r}: a probability from 0 to 1 was expected"
            )
        if not factors or not all(math.isfinite(factor) and factor > 0 for factor in factors):
            raise ArgumentError(f"factors={factors!r}: numbers above 0 were expected, such as (1.2, 0.8)")
        self.space, self.population, self.interval, self.max_step = space, population, interval, max_step
        self.quantile, self.resample, self.factors = quantile, resample_probability, tuple(factors)
        self.seed, self.synchronous = seed_of(seed), bool(synchronous)
        self._clear()

    def _clear(self) -> None:
        self._begun = 0
        self._closed = False  # whether no more trials will begin
        self._members: dict[int, Individual] = {}

    def begin(self, number: int, config: Config) -> None:
        self._begun += 1
        self._members[number] = Individual(dict(config))

    def report(self, number: int, step: int, score: float) -> Verdict | Exploit:
        """At the first report past an interval's end decide whether the trial goes on, exploits a better one or stops."""
        member = self._members[number]
        if member.verdict is not Verdict.CONTINUE:
            return member.verdict
        ended = step // self.interval > member.intervals
        if ended:
            self._close_interval(member, step, score)
        if self.max_step is not None and step >= self.max_step:
            member.verdict = Verdict.STOP
            return member.verdict
        if self.synchronous:
            return self._in_step(number, member, ended)
        yields = ended and self._others_wait(member)
        if yields and member.kept:  # else a trial that exploits at every interval would never yield its slot
            member.due = True
        elif ended or member.due:
            member.due = False
            exploit = self._compare(number, member)
            if exploit is not None:
                member.kept = yields
                return exploit
        if yields:
            member.kept = False
            member.verdict = Verdict.PAUSE
        return member.verdict

    def _in_step(self, number: int, member: Individual, ended: bool) -> Verdict | Exploit:
        """Synchronous mode: trials wait at the end of an interval until the last one has come, then all are compared."""
        exploit, member.exploit = member.exploit, None
        if exploit is not None:  # decided while it waited
            return exploit
        if not ended:
            return Verdict.CONTINUE
        member.verdict = Verdict.PAUSE
        if not self._settle_interval():
            return Verdict.PAUSE
        member.verdict, member.released = Verdict.CONTINUE, False
        exploit, member.exploit = member.exploit, None
        return exploit or Verdict.CONTINUE

    def _settle_interval(self) -> bool:
        """Compare all trials if every one waits, and release them; returns whether it was so."""
        waiting = {key: one for key, one in self._members.items() if one.verdict is Verdict.PAUSE}
        on_their_way = any(one.verdict is Verdict.CONTINUE or one.released for one in self._members.values())
        if not waiting or on_their_way or self._newcomers:
            return False
        for number, exploit in [(number, self._compare(number, one, take=False)) for number, one in waiting.items()]:
            waiting[number].exploit, waiting[number].released = exploit, True
        for one in waiting.values():
            if one.exploit is not None:
                self._take_over(one, one.exploit)
        return True

    def _close_interval(self, member: Individual, step: int, score: float) -> None:
        member.intervals, member.score, member.step = step // self.interval, score, step

    def _others_wait(self, member: Individual) -> bool:
        behind = (one.intervals < member.intervals for one in self._members.values() if one.verdict is Verdict.PAUSE)
        return self._newcomers > 0 or any(behind)

    @property
    def _newcomers(self) -> int:
        """How many trials of the population have not begun yet."""
        return 0 if self._closed else max(self.population - self._begun, 0)

    def _compare(self, number: int, member: Individual, take: bool = True) -> Exploit | None:
        """Take over from one of the best, if this is one of the worst; among equals those of greater number are worse.

        Also from one that is no better: two that have become alike would stay so for ever. Without ``take`` nothing changes
        yet, so that others are compared with the same scores.
        """
        scored = [(-other.score, key) for key, other in self._members.items() if other.score is not None]
        count = min(math.ceil(len(scored) * self.quantile), len(scored) // 2)
        if self._newcomers or member.score is None or not count:
            return None
        ranked = [key for _, key in sorted(scored)]
        if number not in ranked[-count:]:
            return None
        draw = generator(self.seed, number, member.intervals)
        source = ranked[int(draw.integers(count))]
        best = self._members[source]
        exploit = Exploit(source, self._explore(number, best, draw))
        if take:
            self._take_over(member, exploit)
        return exploit

    def _take_over(self, member: Individual, exploit: Exploit) -> None:
        """Copy configuration and score of the exploited trial, whose weights this one continues from."""
        member.config, member.score = exploit.config, self._members[exploit.source].score

    def _explore(self, number: int, source: Individual, draw: np.random.Generator) -> Config:
        return perturbed(self.space, source.config, draw, self.resample, self.factors)

    def end(self, number: int, outcome: Outcome) -> None:
        """Remove a trial that is over from the population: others are no longer compared with it."""
        self._members.pop(number, None)

    def resume(self) -> int | None:
        """The waiting trial with the fewest intervals; None while new trials are still to begin."""
        if self.synchronous:
            self._settle_interval()  # the one that all waited for may have ended
        waiting = [
            (one.intervals, key)
            for key, one in self._members.items()
            if one.verdict is Verdict.PAUSE and (one.released or not self.synchronous)
        ]
        if not waiting or self._newcomers:
            return None
        number = min(waiting)[1]
        self._members[number].verdict, self._members[number].released = Verdict.CONTINUE, False
        return number

    def settle(self) -> int | None:
        """No further trial will begin: compare those that have, even if fewer than ``population``; then as ``resume``."""
        self._closed = True
        return self.resume()

    def wants(self) -> bool:
        """Whether the population is still smaller than ``population``."""
        return len(self._members) < self.population

    def state(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "begun": self._begun,
            "closed": self._closed,
            "members": [[number, *self._written(member)] for number, member in self._members.items()],
        }

    def _written(self, one: Individual) -> list[Any]:
        config = self.space.encode(one.config)
        exploit = None if one.exploit is None else [one.exploit.source, self.space.encode(one.exploit.config)]
        written = [config, one.intervals, one.score, one.step, one.due, one.kept, one.verdict.value]
        return [*written, exploit, one.released]

    def restore(self, state: Mapping[str, Any]) -> None:
        self._clear()
        self.seed, self._begun, self._closed = state["seed"], state["begun"], state["closed"]
        for number, config, intervals, score, step, due, kept, verdict, exploit, released in state["members"]:
            decoded = self.space.decode(config)
            pending = None if exploit is None else Exploit(exploit[0], self.space.decode(exploit[1]))
            self._members[number] = Individual(
                decoded, intervals, score, step, due, kept, Verdict(verdict), pending, released
            )


def perturbed(
    space: Searchspace, config: Config, draw: np.random.Generator, resample: float, factors: Sequence[float]
) -> Config:
    """A configuration near another one; parameters that become active by a changed condition are drawn anew."""

    def choose(found: Parameter) -> Any:
        if found.name not in config or draw.random() < resample:
            return found.at(float(draw.random()))
        return _moved(found, config[found.name], float(factors[int(draw.integers(len(factors)))]))

    return space.build(choose)


def _moved(found: Parameter, value: Any, factor: float) -> Any:
    """The value after a change by a factor, within the region."""
    if found.kind == CATEGORICAL:
        return value
    if isinstance(found, Choice):
        place = found.index(value) + (1 if factor > 1 else -1)
        return found.values[min(max(place, 0), len(found.values) - 1)]
    if isinstance(found, Integers):
        moved = round(value * factor)
        if moved == value:  # small integers would never move
            moved += 1 if factor > 1 else -1
        return min(max(moved, found.low), found.high)
    low, high = found.at(0.0), found.at(1.0)
    return min(max(value * factor, low), high)
