"""Checks of the numbers and names that describe a training, and arithmetic on plain numbers; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hopsml import suggestions
from hopsml.errors import ArgumentError, ArgumentTypeError


def count(name: str, value: Any, least: int = 1) -> int:
    """``value`` where it is a whole number of ``least`` or more; raises ArgumentTypeError or ArgumentError otherwise."""
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
    """``value`` where it is a finite number within the bounds, which ``above`` and ``below`` leave out."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a number")
    outside = not least <= value <= most or (above and value == least) or (below and value == most)
    if outside or not math.isfinite(value):
        rule = f"{'more than' if above else 'at least'} {least:g}"
        rule += "" if most == math.inf else f" and {'less than' if below else 'at most'} {most:g}"
        raise ArgumentError(f"{name}={value}: it must be {rule}")
    return float(value)


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """``value`` where it is one of ``known``; the ArgumentError names the nearest otherwise."""
    names = list(known)
    if value not in names:
        raise ArgumentError(f"{name}={value!r} is not known; {suggestions.instead(str(value), names, '')}")
    return str(value)


class PlainNumbers:
    """What schedules are computed with where steps are Python's numbers; TensorFlow's twin is of tensors."""

    cos = staticmethod(math.cos)
    exp = staticmethod(math.exp)
    minimum = staticmethod(min)
    maximum = staticmethod(max)

    @staticmethod
    def where(condition: Any, first: Any, second: Any) -> Any:
        """The first where the condition holds."""
        return first if condition else second
