"""Differential evolution, rand/1/bin, with complete generations as in the predecessor.

Storn and Price 1997, "Differential evolution - a simple and efficient heuristic for global optimization over continuous
spaces", Journal of Global Optimization 11.

A generation is complete before the next one begins, and a configuration is not tried twice: its first score counts.
Parameters are changed on the unit interval, each on its own scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.randomness import generator, seed_of
from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait
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
        self.space, self.seed = space, seed_of(seed)
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
        raise ArgumentError(f"generations={generations!r}: 1 or more, or None was expected")
    if not isinstance(population, int) or population < 4:
        raise ArgumentError(f"population={population!r}: 4 or more was expected, as a member moves by three others")
    if not 0 < mutation <= 2:
        raise ArgumentError(f"mutation={mutation!r}: a factor above 0 and at most 2 was expected")
    if not 0 <= crossover <= 1:
        raise ArgumentError(f"crossover={crossover!r}: a probability from 0 to 1 was expected")
