"""Grid search: every combination once, in the predecessor's order, which is that of ``itertools.product``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.parameter import DISCRETE, Choice, Integers, LogIntegers, Parameter
from hopsml.search.space.space import Searchspace, check_filled


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
        self.space = space if points is None else listed(space, points)
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


def listed(space: Searchspace, points: int | Mapping[str, int]) -> Searchspace:
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
            raise ArgumentError(f"points={points!r}: how many values of a number, 2 or more, was expected")
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
