"""Grid search: every combination once, in the predecessor's order, which is that of ``itertools.product``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait
from hopsml.search.parameter import DISCRETE
from hopsml.search.space import Searchspace, check_filled


class GridSearch(Searcher):
    """Every configuration of the space, the last parameter changing fastest; then DONE.

    ``points``: how many values of each DOUBLE and LOGUNIFORM are tried, both ends among them. Raises ArgumentError if there
    is one and no ``points``. The seed makes no difference.
    """

    def __init__(self, space: Searchspace, seed: int | None = None, points: int | None = None) -> None:
        check_filled(space)
        self.space = space if points is None else listed(space, points)
        self._combinations = self.space.combinations()  # which refuses endless ones
        self.total = self.space.size()
        self._asked = 0

    def ask(self, number: int) -> Suggestion | Wait:
        config = next(self._combinations, None)
        if config is None:
            return Wait.DONE
        self._asked += 1
        return Suggestion(config)

    def tell(self, number: int, outcome: Outcome) -> None:
        pass  # the combinations are those of the space, whatever came of them

    def state(self) -> dict[str, Any]:
        return {"asked": self._asked}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._asked = state["asked"]
        self._combinations = _after(self.space.combinations(), self._asked)


def _after(configs: Iterator[Config], count: int) -> Iterator[Config]:
    for _ in range(count):
        next(configs, None)
    return configs


def listed(space: Searchspace, points: int) -> Searchspace:
    """The space with ``points`` values of each parameter that has endless ones, at equal distances on its scale."""
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ArgumentError(f"points={points!r}: how many values of a continuous parameter, 2 or more, was expected")
    parameters = space.to_dict()
    for name, found in space.parameters.items():
        if found.count is None:
            values = [found.at(place / (points - 1)) for place in range(points)]
            parameters[name] = (DISCRETE, values, *parameters[name][2:])
    return Searchspace(**parameters)
