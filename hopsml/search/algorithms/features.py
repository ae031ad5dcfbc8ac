"""Encoding of points of the unit cube as inputs of a Gaussian process.

Equal values have equal encodings, and categories are unordered: integers and listed numbers are mapped to the middle of
their share; a category gets one coordinate per value, so that two different ones are as far apart as the ends of a
scale; an inactive parameter has a separate encoding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hopsml.search.space.parameter import CATEGORICAL, Choice, Integers, LogIntegers, Parameter, same
from hopsml.search.space.space import Searchspace

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

NOT_THERE = 0.5


class FeatureEncoder:
    """Encoder of points of the unit cube as model inputs: one column per number, one-hot columns per category."""

    def __init__(self, space: Searchspace) -> None:
        self._parameters = list(space.parameters.values())
        self._place = {found.name: place for place, found in enumerate(self._parameters)}
        columns = [found.count if _is_category(found) else 1 for found in self._parameters]
        self.count = sum(int(column or 1) for column in columns)
        starts = [sum(int(column or 1) for column in columns[:place]) for place in range(len(columns))]
        # Coordinates of a point that are features without a change: (coordinate, feature).
        self.smooth = [
            (place, starts[place])
            for place, found in enumerate(self._parameters)
            if found.count is None and not found.when
        ]

    def of(self, points: Array) -> Array:
        """Return a row of model inputs for each row of ``points``."""
        import numpy as np

        there: dict[str, Any] = {}
        levels: dict[str, Any] = {}
        for found in self._parameters:
            if found.count is not None:
                levels[found.name] = _levels(found, points[:, self._place[found.name]])
        columns = []
        for place, found in enumerate(self._parameters):
            here = self._there(found, levels, there, len(points))
            if _is_category(found):
                ones = np.eye(int(found.count or 1))[levels[found.name]] / math.sqrt(2.0)
                columns.append(ones * here[:, None])
                continue
            column = points[:, place] if found.count is None else _units(found, levels[found.name])
            columns.append(np.where(here, column, NOT_THERE)[:, None])
        return np.hstack(columns)

    def _there(self, found: Parameter, levels: dict[str, Any], known: dict[str, Any], rows: int) -> Any:
        """Return for each row True if the parameter is active, that is, its condition is met."""
        import numpy as np

        if found.name not in known:
            here = np.ones(rows, dtype=bool)
            for name, allowed in found.when.items():
                other = self._parameters[self._place[name]]
                here &= np.isin(levels[name], [_level(other, value) for value in allowed])
                here &= self._there(other, levels, known, rows)
            known[found.name] = here
        return known[found.name]


def _is_category(found: Parameter) -> bool:
    return found.kind == CATEGORICAL


def _levels(found: Parameter, units: Array) -> Any:
    """Return the index of the value to which each unit belongs."""
    import numpy as np

    count = int(found.count or 1)
    if isinstance(found, LogIntegers):
        bottom, top = math.log(found.low - 0.5), math.log(found.high + 0.5)
        exact = np.exp(bottom + np.clip(units, 0.0, 1.0) * (top - bottom))
        return np.clip(np.rint(exact), found.low, found.high).astype(np.int64) - found.low
    return np.clip((units * count).astype(np.int64), 0, count - 1)


def _level(found: Parameter, value: Any) -> int:
    if isinstance(found, Choice):
        return next(place for place, known in enumerate(found.values) if same(known, value))
    assert isinstance(found, Integers)
    return int(value) - found.low


def _units(found: Parameter, levels: Any) -> Any:
    """Return the middle of the share of each level, as ``Parameter.unit`` does."""
    import numpy as np

    if isinstance(found, LogIntegers):
        bottom, top = math.log(found.low - 0.5), math.log(found.high + 0.5)
        return (np.log(levels + found.low) - bottom) / (top - bottom)
    return (levels + 0.5) / int(found.count or 1)
