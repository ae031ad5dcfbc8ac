"""Learning-rate schedules by epoch: the factor of the highest rate, and the gradual warm-up before; pure.

A schedule's ``factor`` uses operators and the few functions of a ``space`` only, so that the same code works on
Python numbers and on the tensors of a compiled TensorFlow step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hopsml.core import suggestions
from hopsml.errors import ArgumentError, ArgumentTypeError

WARMUP_EPOCHS = 5.0  # arXiv 1706.02677, section 2.2


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
        raise ArgumentError(f"{name}={value!r} is unknown; {suggestions.instead(str(value), names, '')}")
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


@dataclass(frozen=True)
class Constant:
    """Schedule that retains the highest rate until the end."""

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return 1 for every epoch, in the type of ``epoch``."""
        return epoch * 0.0 + 1.0


@dataclass(frozen=True)
class Steps:
    """Schedule that multiplies the rate by ``decay`` at each of ``boundaries``: arXiv 1706.02677, section 5.1.

    Args:
        boundaries: ascending epochs.
        decay: factor above 0 and at most 1.

    Raises:
        ArgumentError: boundaries do not ascend, or ``decay`` is out of range.
    """

    boundaries: tuple[float, ...] = (30.0, 60.0, 80.0)
    decay: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "boundaries", tuple(number("boundaries", each, 0, above=True) for each in self.boundaries)
        )
        number("decay", self.decay, 0, 1, above=True)
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ArgumentError(
                f"Steps(boundaries={self.boundaries}): they must be different epochs in ascending order"
            )

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return the factor at ``epoch``, which may be a fraction."""
        return _pieces(
            epoch, self.boundaries, [self.decay**passed for passed in range(len(self.boundaries) + 1)], space
        )


@dataclass(frozen=True)
class Cosine:
    """Schedule that falls along half a cosine, from the end of the warm-up to ``end`` of the rate (1608.03983).

    It ends with the last epoch. ``end`` is a fraction of the highest rate, from 0 to 1.
    """

    end: float = 0.0

    def __post_init__(self) -> None:
        number("end", self.end, 0, 1)

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return the factor at ``epoch``, which may be a fraction."""
        passed = _passed(epoch, warmup_epochs, epochs, space)
        return self.end + (1 - self.end) * 0.5 * (1 + space.cos(math.pi * passed))


@dataclass(frozen=True)
class Polynomial:
    """Schedule that falls as (1 - passed)^power from the end of the warm-up to the last epoch.

    arXiv 1708.03888, section 5.
    """

    power: float = 2.0

    def __post_init__(self) -> None:
        number("power", self.power, 0, above=True)

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return the factor at ``epoch``, which may be a fraction."""
        return (1 - _passed(epoch, warmup_epochs, epochs, space)) ** self.power


@dataclass(frozen=True)
class SlowStart:
    """Schedule with a low rate at first instead of a warm-up, then three falls: arXiv 1711.04325, section 2.2.

    The factor is 0.5 until epoch 40 of 90, 0.075 until 70, 0.01 until 85, then 0.001; for other lengths the epochs
    are in proportion.
    """

    def factor(self, epoch: Any, warmup_epochs: float, epochs: float, space: Any = PlainNumbers) -> Any:
        """Return the factor at ``epoch``, which may be a fraction."""
        return _pieces(epoch, [epochs * until / 90 for until in (40, 70, 85)], [0.5, 0.075, 0.01, 0.001], space)


Schedule = Constant | Steps | Cosine | Polynomial | SlowStart


def warm_up(epoch: Any, start: float, target: float, warmup_epochs: float, space: Any = PlainNumbers) -> Any:
    """Return the rate at ``epoch`` of a linear warm-up from ``start`` to ``target``, and ``target`` afterwards.

    Gradual warm-up, arXiv 1706.02677, section 2.2. A ``target`` below ``start`` applies at once, because the higher
    rate would be too high for it.
    """
    if warmup_epochs <= 0 or target <= start:
        return epoch * 0.0 + target
    return start + (target - start) * space.minimum(epoch / warmup_epochs, epoch * 0.0 + 1.0)


def sgd_share(epoch: Any, center: float = 10.0, period: float = 5.0, space: Any = PlainNumbers) -> Any:
    """Return SGD's share of an update, of which RMSprop has the rest: arXiv 1711.04325, section 2.1.

    It grows exponentially to 1/2 at ``center`` epochs, then linearly to 1 at ``center + period / 2``, without a jump.
    """
    distance = (epoch - center) / period
    zero = distance * 0.0
    rising = space.exp(2 * space.minimum(distance, zero)) / 2
    return space.where(distance < 0, rising, space.minimum(0.5 + distance, zero + 1.0))


def _passed(epoch: Any, warmup_epochs: float, epochs: float, space: Any) -> Any:
    """Return the fraction of the time between warm-up and end that has passed."""
    passed = (epoch - warmup_epochs) / max(epochs - warmup_epochs, 1e-12)
    return space.minimum(space.maximum(passed, epoch * 0.0), epoch * 0.0 + 1.0)


def _pieces(epoch: Any, boundaries: Any, factors: list[float], space: Any) -> Any:
    """Return a piecewise constant function of the epoch."""
    found = epoch * 0.0 + factors[0]
    for boundary, factor in zip(boundaries, factors[1:], strict=True):
        found = space.where(epoch >= boundary, epoch * 0.0 + factor, found)
    return found
