"""The predecessor's dicts of two bounds each, as parameters of a search space: what its functions make of the types."""

from __future__ import annotations

import math
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.space.parameter import CATEGORICAL, DOUBLE, INTEGER


def sampled(name: str, given: Any) -> tuple[str, list[Any]]:
    """The parameter for random_search: two integers give INTEGER, with a float among them DOUBLE; must be ascending."""
    low, high = _two(name, given)
    if not _is_number(low) or not _is_number(high):
        raise ArgumentError(f"{name}: {given} was given; random search takes bounds that are integers or floats")
    if not low < high:
        raise ArgumentError(f"{name}: the lower bound {low} is not less than the upper bound {high}; swap them")
    return (INTEGER if isinstance(low, int) and isinstance(high, int) else DOUBLE), [low, high]


def evolved(name: str, given: Any) -> tuple[str, list[Any]]:
    """The rule of differential_evolution: the first bound's type decides.

    Numbers may descend; two that are the same are a constant, and what is no number is a choice between the two. With a
    first bound that is an integer, the integers that lie between the two.
    """
    first, second = _two(name, given)
    if _is_number(first) != _is_number(second):
        raise ArgumentError(f"{name}: {given} mixes a number and something else; give two of one kind")
    if not _is_number(first) or first == second:
        return CATEGORICAL, [first, second]
    low, high = sorted((first, second))
    if isinstance(first, float) or not math.isfinite(low) or not math.isfinite(high):
        return DOUBLE, [low, high]
    inside = [math.ceil(low), math.floor(high)]
    return (INTEGER if inside[0] < inside[1] else CATEGORICAL), inside


def _is_number(bound: object) -> bool:
    return isinstance(bound, int | float) and not isinstance(bound, bool)


def _two(name: str, given: Any) -> tuple[Any, Any]:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ArgumentError(f"{name}: {given!r} was given; a boundary list has exactly two elements")
    return given[0], given[1]
