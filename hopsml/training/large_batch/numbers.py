"""Checks of the numbers and names that describe a training, and arithmetic on plain numbers; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hopsml.core import suggestions
from hopsml.errors import ArgumentError, ArgumentTypeError


def count(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` if it is an integer of ``least`` or more.

    Args:
        name: name of the argument, for the error.
        value: the value to check.
        least: lower bound.

    Raises:
        ArgumentTypeError: it is not an integer.
        ArgumentError: it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(
            f"{name}={value!r} is a {type(value).__name__}; it must be a whole number of {least} or more"
        )
    if value < least:
        raise ArgumentError(f"{name}={value} is too small; it must be {least} or more")
    return value


def number(
    name: str, value: Any, least: float, most: float = math.inf, *, above: bool = False, below: bool = False
) -> float:
    """Return ``value`` as a float if it is a finite number within the bounds; raise an error otherwise.

    Args:
        name: name of the argument, for the error.
        value: the value to check.
        least: lower bound.
        most: upper bound.
        above: exclude the lower bound itself.
        below: exclude the upper bound itself.

    Raises:
        ArgumentTypeError: it is not a number.
        ArgumentError: it is not finite, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a number")
    outside = not least <= value <= most or (above and value == least) or (below and value == most)
    if outside or not math.isfinite(value):
        rule = f"{'more than' if above else 'at least'} {least:g}"
        rule += "" if most == math.inf else f" and {'less than' if below else 'at most'} {most:g}"
        raise ArgumentError(f"{name}={value}: it must be {rule}")
    return float(value)


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``known``; raise ArgumentError with the nearest name otherwise."""
    names = list(known)
    if value not in names:
        raise ArgumentError(f"{name}={value!r} is not known; {suggestions.instead(str(value), names, '')}")
    return str(value)


class PlainNumbers:
    """Functions for computing schedules with Python numbers; a counterpart for TensorFlow uses tensors."""

    cos = staticmethod(math.cos)
    exp = staticmethod(math.exp)
    minimum = staticmethod(min)
    maximum = staticmethod(max)

    @staticmethod
    def where(condition: Any, first: Any, second: Any) -> Any:
        """Return ``first`` if the condition holds, else ``second``."""
        return first if condition else second
