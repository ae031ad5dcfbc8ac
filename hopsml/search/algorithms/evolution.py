"""Evolutionary searchers: CMA-ES, and differential evolution.

CMA-ES is that of the ``cmaes`` package: Hansen 2016, "The CMA evolution strategy: a tutorial", arXiv 1604.00772. With
integers the variant with margin is used (Hamano et al. 2022, GECCO). After convergence it is restarted with a population
twice as large (Auger and Hansen 2005, CEC). Slow trials are not waited for: a generation is closed by the first results
that fill it, and later results of the same generation are not used.

Differential evolution is rand/1/bin as in the predecessor (Storn and Price 1997, J. Global Optimization 11), each
parameter on its own scale. A generation is complete before the next one begins, and a configuration is not tried twice:
its first score counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.random import derived_seed, generator, require_packages, seed_or_random
from hopsml.search.contract import Config, End, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.parameter import CATEGORICAL, Interval, LogIntegers, Parameter
from hopsml.search.space.space import Searchspace, check_filled

Vector = list[float]  # a point of the unit cube
STALE_GENERATIONS = 200  # so many in a row without a new configuration end the search: converged, or space exhausted


class DifferentialEvolution(Searcher):
    """Differential evolution: a population whose members move by the scaled differences of others.

    ``ask`` returns ``Wait.LATER`` between generations, ``Wait.DONE`` after the last one or when no new configuration is
    found.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        generations: number of generations after the first one; None: limited by the number of trials alone.
        population: size of the population, at least 4; by default three times the number of parameters, at least 6.
        mutation: factor of a difference, above 0 and at most 2.
        crossover: probability that a parameter comes from the mutated vector.

    Raises:
        ArgumentError: an invalid value.
    """

    def __init__(
        self,
        space: Searchspace,
        seed: int | None = None,
        generations: int | None = None,
        population: int | None = None,
        mutation: float = 0.5,
        crossover: float = 0.7,
    ) -> None:
        check_filled(space)
        size = max(6, 3 * len(space)) if population is None else population
        _check(generations, size, mutation, crossover)
        self.space, self.seed = space, seed_or_random(seed)
        self.generations, self.population, self.mutation, self.crossover = generations, size, mutation, crossover
        self.total = None if generations is None else (generations + 1) * size  # fewer if configurations repeat
        self._begin()

    def _begin(self) -> None:
        self._keys: list[str] = []  # by number of the trial
        self._generation_of: list[int] = []  # by number of the trial
        self._scores: dict[str, float | None] = {}  # of configurations tried, by key
        self._known: set[str] = set()  # keys of configurations tried or running
        self._learned: list[tuple[dict[str, Any], float | None]] = []
        self._generation = 0
        self._parents: list[tuple[Vector, float]] = []
        self._children: list[Vector] = []
        self._next = 0  # position in ``_children`` of the next one to try

    def generation_of(self, number: int) -> int:
        """Return the generation, counted from 0, of a trial that ``ask`` has returned."""
        return self._generation_of[number]

    def ask(self, number: int) -> Suggestion | Wait:
        """Return the next untried member of the generation.

        ``Wait.LATER`` until all its members have ended, ``Wait.DONE`` after the last generation.
        """
        self._children = self._children or self._first()
        for _ in range(STALE_GENERATIONS):
            while self._next < self.population:
                config = self.space.inverse_transform(self._children[self._next])
                self._next += 1
                key = self.space.key(config)
                if key not in self._known:
                    self._known.add(key)
                    self._keys.append(key)
                    self._generation_of.append(self._generation)
                    return Suggestion(config)
            if any(self.space.key(self.space.inverse_transform(child)) not in self._scores for child in self._children):
                return Wait.LATER
            if self._generation == self.generations:
                return Wait.DONE
            self._evolve()
        return Wait.DONE

    def tell(self, number: int, outcome: Outcome) -> None:
        """Record the score of an ended trial."""
        self._scores[self._keys[number]] = outcome.score

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Record a trial of an earlier search, a candidate for the first generation."""
        if self.space.contains(config):
            self._learned.append((self.space.encode(config), outcome.score))

    def _first(self) -> list[Vector]:
        """Return the first generation: the best recorded configurations (up to half), then a Latin hypercube.

        The Latin hypercube follows McKay et al. 1979.
        """
        learned = sorted(self._learned, key=lambda pair: _rank(pair[1]), reverse=True)[: self.population // 2]
        for encoded, score in learned:
            key = self.space.key(self.space.decode(encoded))
            self._scores[key] = score
            self._known.add(key)
        members = [self.space.transform(self.space.decode(encoded)) for encoded, _ in learned]
        count = self.population - len(members)
        draw = generator(self.seed, 0)
        columns = [(draw.permutation(count) + draw.random(count)) / count for _ in range(len(self.space))]
        return members + [[float(column[row]) for column in columns] for row in range(count)]

    def _evolve(self) -> None:
        """Create the children of the next generation by selection, mutation and crossover."""
        scores = [_rank(self._scores[self.space.key(self.space.inverse_transform(child))]) for child in self._children]
        children = list(zip(self._children, scores, strict=True))
        if self._generation == 0:
            self._parents = children
        else:
            pairs = zip(self._parents, children, strict=True)
            self._parents = [child if child[1] >= parent[1] else parent for parent, child in pairs]
        self._generation += 1
        self._next = 0
        draw = generator(self.seed, self._generation)
        self._children = []
        for place, (parent, _) in enumerate(self._parents):
            others = [other for other in range(self.population) if other != place]
            one, two, three = (self._parents[other][0] for other in draw.choice(others, 3, replace=False))
            kept = int(draw.integers(len(parent)))  # at least one parameter comes from the mutated vector
            crossed = draw.random(len(parent)) < self.crossover
            self._children.append(
                [
                    _within(base + self.mutation * (plus - minus), own) if crossed[i] or i == kept else own
                    for i, (own, base, plus, minus) in enumerate(zip(parent, one, two, three, strict=True))
                ]
            )

    def state(self) -> dict[str, Any]:
        """Return the trials and their scores as JSON values, for ``restore``."""
        told = [[number, self._scores[key]] for number, key in enumerate(self._keys) if key in self._scores]
        return {
            "seed": self.seed,
            "asked": len(self._keys),
            "told": told,
            "learned": [list(pair) for pair in self._learned],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance, by repeating its calls."""
        self.seed = state["seed"]
        self._begin()
        self._learned = [(encoded, score) for encoded, score in state["learned"]]
        told = dict(state["told"])
        for number in range(state["asked"]):  # the order of results does not matter within a generation
            self.ask(number)
            if number in told:
                self._scores[self._keys[number]] = told[number]


def _rank(score: float | None) -> float:
    return float("-inf") if score is None else score


def _within(place: float, own: float) -> float:
    """Return the coordinate within [0, 1]; one outside is moved half way between parent and bound.

    So members do not accumulate at the bounds.
    """
    if place < 0.0:
        return own / 2
    return (own + 1.0) / 2 if place > 1.0 else place


def _check(generations: int | None, population: int, mutation: float, crossover: float) -> None:
    if generations is not None and (not isinstance(generations, int) or generations < 1):
        raise ArgumentError(f"generations={generations!r}: it must be 1 or more, or None")
    if not isinstance(population, int) or population < 4:
        raise ArgumentError(
            f"population={population!r}: it must be 4 or more, since each member moves by the difference of others"
        )
    if not 0 < mutation <= 2:
        raise ArgumentError(f"mutation={mutation!r}: it must be a factor greater than 0 and at most 2")
    if not 0 <= crossover <= 1:
        raise ArgumentError(f"crossover={crossover!r}: it must be a probability from 0 to 1")


FIRST_DEVIATION = 0.11  # initial standard deviation, on the unit interval


class CmaEs(Searcher):
    """CMA-ES searcher: adapts a normal distribution over the numeric parameters, each on its own scale.

    CATEGORICAL parameters and those with a condition are drawn at random.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        population: number of trials in a generation; by default 4 + 2 ln(number of adapted parameters), fewer than the
            tutorial suggests, which assumes long runs.

    Raises:
        ArgumentError: no parameter can be adapted, an invalid value, or ``cmaes`` is not installed.
    """

    def __init__(self, space: Searchspace, seed: int | None = None, population: int | None = None) -> None:
        check_filled(space)
        require_packages("CMA-ES", "cmaes")
        if population is not None and (not isinstance(population, int) or population < 2):
            raise ArgumentError(f"population={population!r}: it must be 2 or more")
        numbers = [found for found in space.parameters.values() if found.kind != CATEGORICAL and not found.when]
        if not numbers:
            names = ", ".join(space.keys())
            raise ArgumentError(
                f"CMA-ES supports numbers only, but {names} are categories or have a condition; use 'tpe'"
            )
        self.space, self.seed = space, seed_or_random(seed)
        self._moved = [found for found in numbers if found.count != 1]
        self._population = population or 4 + int(2 * math.log(max(len(self._moved), 1)))
        self._begin()

    def _begin(self) -> None:
        self._points: list[Any] = []  # by number of the trial, in the optimizer's representation
        self._generations: list[int] = []  # by number of the trial
        self._told: list[tuple[int, float | None]] = []  # calls of ``tell`` in order: number, score
        self._learned: list[tuple[dict[str, Any], float]] = []
        self._results: list[tuple[Any, float | None]] = []  # point, score of this generation
        self._generation = 0
        self._optimizer: Any = None

    def ask(self, number: int) -> Suggestion | Wait:
        """Return a configuration drawn from the present distribution."""
        values: dict[str, Any] = {}
        point = None
        if self._moved:
            self._optimizer = self._optimizer or self._made(self._population, self._middle())
            self._optimizer.reseed_rng(derived_seed(self.seed, 0, number))
            asked = self._optimizer.ask()
            seen, point = asked if self._has_margin else (asked, asked)
            values = {found.name: _value(found, place) for found, place in zip(self._moved, seen, strict=True)}
        draw = generator(self.seed, 1, number)
        units = dict(zip(self.space.keys(), draw.random(len(self.space)).tolist(), strict=True))
        config = self.space.build(lambda one: values[one.name] if one.name in values else one.at(units[one.name]))
        self._points.append(point)
        self._generations.append(self._generation)
        return Suggestion(config)

    def tell(self, number: int, outcome: Outcome) -> None:
        """Record a result, and update the distribution when the present generation is full."""
        self._told.append((number, outcome.score))
        if self._generations[number] != self._generation or not self._moved:
            return
        self._results.append((self._points[number], outcome.score))
        if len(self._results) < self._optimizer.population_size:
            return
        results, self._results = self._results, []
        if not (scores := [score for _, score in results if score is not None]):
            return  # no trial of this generation has a score
        # The optimizer minimises; a failed trial counts as the worst of those with a score.
        self._optimizer.tell([(point, -min(scores) if score is None else -score) for point, score in results])
        self._generation += 1
        if self._optimizer.should_stop():
            mean = generator(self.seed, 2, self._generation).random(len(self._moved))
            self._optimizer = self._made(2 * self._optimizer.population_size, mean.tolist())

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Record a trial of an earlier search: the best one is the initial mean of the distribution."""
        if outcome.score is not None and self.space.contains(config):
            self._learned.append((self.space.encode(config), outcome.score))

    def _middle(self) -> list[float]:
        """Return the initial mean of the distribution: the best recorded configuration, else the middle."""
        if not self._learned:
            return [0.5] * len(self._moved)
        best = self.space.decode(max(self._learned, key=lambda pair: pair[1])[0])
        return [_place(found, best[found.name]) for found in self._moved]

    def _made(self, population: int, mean: list[float]) -> Any:
        import cmaes
        import numpy as np

        bounds = np.tile([0.0, 1.0], (len(mean), 1))
        seed = derived_seed(self.seed, 3, self._generation)
        arguments = {"mean": np.array(mean), "sigma": FIRST_DEVIATION, "bounds": bounds, "seed": seed}
        arguments |= {"population_size": population, "n_max_resampling": 10 * len(mean)}
        if self._has_margin:
            return cmaes.CMAwM(steps=np.array([_step(found) for found in self._moved]), **arguments)
        return cmaes.CMA(**arguments)

    @property
    def _has_margin(self) -> bool:
        return any(_step(found) for found in self._moved)

    def state(self) -> dict[str, Any]:
        """Return the calls of ``ask``, ``tell`` and ``learn`` as JSON values, for ``restore``."""
        return {
            "seed": self.seed,
            "generations": list(self._generations),
            "told": [list(pair) for pair in self._told],
            "learned": [list(pair) for pair in self._learned],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance, by repeating its calls."""
        self.seed = state["seed"]
        self._begin()
        self._learned = [(encoded, score) for encoded, score in state["learned"]]
        self._ask_again(state["generations"])
        for number, score in state["told"]:  # only the score matters here, not how a trial ended
            self.tell(number, Outcome(End.COMPLETED, score))
            self._ask_again(state["generations"])

    def _ask_again(self, generations: list[int]) -> None:
        """Repeat the calls of ``ask`` of the present generation."""
        while len(self._generations) < len(generations) and generations[len(self._generations)] == self._generation:
            self.ask(len(self._generations))


def _step(found: Parameter) -> float:
    """Return the distance of two values; 0 if they are continuous, or nearly so (on a logarithmic scale)."""
    if isinstance(found, Interval | LogIntegers) or found.count is None:
        return 0.0
    return 1.0 / (found.count - 1)


def _value(found: Parameter, place: float) -> Any:
    """Return the value at a place on [0, 1], whose ends are the first and the last value."""
    if not _step(found):
        return found.at(float(place))
    return found.listed()[round(float(place) * ((found.count or 1) - 1))]


def _place(found: Parameter, value: Any) -> float:
    if not _step(found):
        return found.unit(value)
    return found.listed().index(value) * _step(found)
