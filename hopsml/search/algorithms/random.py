"""Random search: points of the unit cube, drawn independently or from Sobol's sequence.

Bergstra and Bengio 2012, "Random search for hyper-parameter optimization", JMLR 13; the sequence is scrambled as in
Owen 1998, "Scrambling Sobol' and Niederreiter-Xing points", J. Complexity 14. In a finite space each configuration is
tried once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.libraries import require
from hopsml.search.algorithms.randomness import generator, number_of, seed_of
from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.space import Searchspace, check_filled

BLOCK = 256  # points drawn at a time; a power of two, as Sobol's sequence requires
MISSES = 1000  # after so many points in a row that were tried before, the untried configurations are listed
LISTED_AT_MOST = 1_000_000  # largest space whose configurations are listed


class RandomSearcher(Searcher):
    """Random searcher: configurations drawn uniformly, on each parameter's own scale.

    ``ask`` returns DONE when every configuration of the space has been tried.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        sobol: draw from Sobol's sequence, which is spread more evenly than independent points.

    Raises:
        ArgumentError: an invalid value, or scipy is missing for ``sobol``.
    """

    def __init__(self, space: Searchspace, seed: int | None = None, sobol: bool = False) -> None:
        check_filled(space)
        if sobol:
            require("Sobol's sequence", "scipy")
        self.space, self.seed, self.sobol = space, seed_of(seed), sobol
        self._begin()

    def _begin(self, position: int = 0) -> None:
        """Set the state after ``position`` points were used."""
        self._asked = position
        self._size = self.space.size()
        self._seen: set[str] = set()
        self._learned: list[str] = []
        self._points = self._sobol_points(position) if self.sobol else self._uniform_points(position)
        self._rest: Iterator[Config] | None = None

    def ask(self, number: int) -> Suggestion | Wait:
        """Return a random configuration, which was not tried before if the space is finite."""
        config = self._drawn() if self._size is None else self._untried(self._size)
        if config is None:
            return Wait.DONE
        self._asked += 1
        return Suggestion(config)

    def _drawn(self) -> Config:
        return self.space.inverse_transform(next(self._points))

    def _untried(self, size: int) -> Config | None:
        """Return a configuration of a space of ``size`` that was not tried before; None if there is none."""
        while len(self._seen) < size:
            if self._rest is None:
                for _ in range(MISSES):
                    if self._is_new(config := self._drawn()):
                        return config
                if size <= LISTED_AT_MOST:
                    self._rest = self._shuffled()
            elif self._is_new(config := next(self._rest)):
                return config
        return None

    def _is_new(self, config: Config) -> bool:
        before = len(self._seen)
        self._seen.add(self.space.key(config))
        return len(self._seen) > before

    def _shuffled(self) -> Iterator[Config]:
        left = [config for config in self.space.combinations() if self.space.key(config) not in self._seen]
        return iter([left[place] for place in generator(self.seed, 1).permutation(len(left))])

    def _uniform_points(self, position: int) -> Iterator[list[float]]:
        block, used = divmod(position, BLOCK)
        while True:
            yield from generator(self.seed, 0, block).random((BLOCK, len(self.space))).tolist()[used:]
            block, used = block + 1, 0

    def _sobol_points(self, position: int) -> Iterator[list[float]]:
        from scipy.stats import qmc

        if len(self.space) > qmc.Sobol.MAXDIM:
            raise ArgumentError(f"sobol=True takes at most {qmc.Sobol.MAXDIM} parameters; there are {len(self.space)}")
        sequence = qmc.Sobol(len(self.space), scramble=True, rng=number_of(self.seed))
        block, used = divmod(position, BLOCK)
        if block:
            sequence.fast_forward(block * BLOCK)
        while True:
            yield from sequence.random(BLOCK).tolist()[used:]
            used = 0

    def tell(self, number: int, outcome: Outcome) -> None:
        """Do nothing: suggestions do not depend on results."""
        pass

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Mark a configuration of an earlier search as tried, if the space is finite."""
        if self._size is not None and self.space.contains(config) and self._is_new(config):
            self._learned.append(self.space.key(config))

    def state(self) -> dict[str, Any]:
        """Return seed, position and configurations of earlier searches as JSON values, for ``restore``."""
        return {"seed": self.seed, "asked": self._asked, "learned": list(self._learned)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        self.seed = state["seed"]
        if self.space.size() is None:
            self._begin(state["asked"])
            return
        self._begin()
        self._learned = list(state["learned"])
        self._seen.update(self._learned)
        for number in range(state["asked"]):
            self.ask(number)
