"""Searchers that use no results (random, grid, none), and what all searchers share: seeds and optional libraries.

Random search: Bergstra and Bengio 2012, JMLR 13, with points drawn independently or from Sobol's sequence, scrambled as
in Owen 1998, J. Complexity 14; in a finite space each configuration is tried once. Grid search: every combination once,
in the predecessor's order, which is that of ``itertools.product``.

Random numbers depend on the seed and on the request alone, never on earlier calls, so no generator's state needs to be
stored, and a restored searcher continues as the original would have. A missing library is reported when a search is
started, not while it runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import secrets
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hopsml.core import extras
from hopsml.errors import ArgumentError
from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.parameter import DISCRETE, Choice, Integers, LogIntegers, Parameter
from hopsml.search.space.space import Searchspace, check_filled

if TYPE_CHECKING:
    import numpy as np


class SingleRunSearcher(Searcher):
    """Searcher that suggests the empty configuration for every trial.

    Raises ArgumentError if the space has parameters.
    """

    def __init__(self, space: Searchspace | None = None, seed: int | None = None) -> None:
        if space is not None and len(space):
            names = ", ".join(space.keys())
            raise ArgumentError(
                f"without a searcher there are no parameters, but the space has {names}; name a searcher"
            )

    def ask(self, number: int) -> Suggestion | Wait:
        """Return the empty configuration for each trial."""
        return Suggestion({})

    def tell(self, number: int, outcome: Outcome) -> None:
        """Do nothing: results are not used."""
        pass

    def state(self) -> dict[str, Any]:
        """Return an empty dict: there is no state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""
        pass


class GridSearcher(Searcher):
    """Grid searcher: every configuration of the space once, the last parameter changing fastest.

    The seed makes no difference.

    Args:
        space: search space.
        seed: not used.
        points: number of values tried for each numeric range, both ends included: of DOUBLE and LOGUNIFORM, and of an
            INTEGER or LOGINTEGER that has more; ``{"lr": 5, "layers": 3}`` sets it for each by name.

    Raises:
        ArgumentError: a DOUBLE or LOGUNIFORM without ``points``, or an invalid value.
    """

    def __init__(
        self, space: Searchspace, seed: int | None = None, points: int | Mapping[str, int] | None = None
    ) -> None:
        check_filled(space)
        self.space = space if points is None else discretized_space(space, points)
        self._combinations = self.space.combinations()  # raises for a continuous range
        self.total = self.space.size()
        self._asked = 0

    def ask(self, number: int) -> Suggestion | Wait:
        """Return the next combination; DONE after the last one."""
        config = next(self._combinations, None)
        if config is None:
            return Wait.DONE
        self._asked += 1
        return Suggestion(config)

    def tell(self, number: int, outcome: Outcome) -> None:
        """Do nothing: the combinations do not depend on results."""
        pass

    def state(self) -> dict[str, Any]:
        """Return the number of combinations returned so far."""
        return {"asked": self._asked}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after as many combinations as another instance's ``state()`` records."""
        self._asked = state["asked"]
        self._combinations = _after(self.space.combinations(), self._asked)


def _after(configs: Iterator[Config], count: int) -> Iterator[Config]:
    for _ in range(count):
        next(configs, None)
    return configs


def discretized_space(space: Searchspace, points: int | Mapping[str, int]) -> Searchspace:
    """Return the space with at most ``points`` values of each numeric range, at equal distances on its scale.

    Args:
        space: search space.
        points: number of values, for all ranges or by name.

    Raises:
        ArgumentError: an unknown name, or a number below 2.
    """
    numbers = [name for name, found in space.parameters.items() if not isinstance(found, Choice)]
    by_name = dict(points) if isinstance(points, Mapping) else dict.fromkeys(numbers, points)
    if unknown := [name for name in by_name if name not in numbers]:
        raise ArgumentError(
            f"points of {', '.join(map(str, unknown))}: the numbers of the space that have no list are "
            f"{', '.join(numbers) or 'none'}; leave others out"
        )
    for count in by_name.values() if isinstance(points, Mapping) else (points,):
        if isinstance(count, bool) or not isinstance(count, int) or count < 2:
            raise ArgumentError(f"points={points!r}: the number of values must be 2 or more")
    parameters = space.to_dict()
    for name, count in by_name.items():
        found = space.parameters[name]
        if found.count is None or found.count > count:
            parameters[name] = (DISCRETE, _spread(found, count), *parameters[name][2:])
    return Searchspace(**parameters)


def _spread(found: Parameter, count: int) -> list[Any]:
    """Return ``count`` values of the range at equal distances on its scale, both ends included."""
    if isinstance(found, LogIntegers):
        ratio = found.high / found.low
        return sorted({round(found.low * ratio ** (place / (count - 1))) for place in range(count)})
    if isinstance(found, Integers):
        return [found.low + round(place * (found.high - found.low) / (count - 1)) for place in range(count)]
    return [found.at(place / (count - 1)) for place in range(count)]


def seed_or_random(seed: int | None) -> int:
    """Return the seed to be used: a random one for None.

    Raises ArgumentError if it is not an integer of 0 or more.
    """
    if seed is None:
        return secrets.randbits(32)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ArgumentError(f"seed={seed!r}: it must be an integer, 0 or more, or None")
    return seed


def generator(*numbers: int) -> np.random.Generator:
    """Return the generator that belongs to these numbers: the seed, then numbers that identify its use."""
    import numpy as np

    return np.random.default_rng(numbers)


def derived_seed(*numbers: int) -> int:
    """Return a 32-bit number that belongs to these numbers, for libraries that take a single seed."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest(), "big")


def require_packages(who: str, *names: str) -> None:
    """Raise ArgumentError unless all packages ``names``, which ``who`` needs, are installed.

    No package is imported.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(f"{who} needs {', '.join(missing)}: {extras.install_command('search')}")


def import_optuna() -> Any:
    """Return the module ``optuna``, imported without its warning about progress bars in notebooks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import optuna
    return optuna


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
            require_packages("Sobol's sequence", "scipy")
        self.space, self.seed, self.sobol = space, seed_or_random(seed), sobol
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
        sequence = qmc.Sobol(len(self.space), scramble=True, rng=derived_seed(self.seed))
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
