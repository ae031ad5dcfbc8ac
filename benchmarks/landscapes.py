"""Functions with known minima for searchers: Branin, Hartmann 6, Rosenbrock; standard library only.

Formulas and domains: Dixon and Szegoe 1978, "The global optimization problem"; Rosenbrock 1960, Computer Journal 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Landscape:
    """A function on a box, with ``least``, its smallest value there."""

    name: str
    bounds: tuple[tuple[float, float], ...]
    height: Callable[[Sequence[float]], float]
    least: float

    @property
    def names(self) -> list[str]:
        """The names of the parameters, in the order of ``bounds``."""
        return [f"x{place}" for place in range(len(self.bounds))]


def branin(x: Sequence[float]) -> float:
    """Return Branin's function, which has three equal minima."""
    b, c = 5.1 / (4 * math.pi**2), 5 / math.pi
    return (x[1] - b * x[0] ** 2 + c * x[0] - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x[0]) + 10


_WEIGHTS = (1.0, 1.2, 3.0, 3.2)
_SCALES = (
    (10, 3, 17, 3.5, 1.7, 8),
    (0.05, 10, 17, 0.1, 8, 14),
    (3, 3.5, 1.7, 10, 17, 8),
    (17, 8, 0.05, 10, 0.1, 14),
)
_CENTRES = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def hartmann6(x: Sequence[float]) -> float:
    """Return Hartmann's function in 6 dimensions: six minima of different depth on a flat surface."""
    total = 0.0
    for weight, scales, centres in zip(_WEIGHTS, _SCALES, _CENTRES, strict=True):
        away = sum(scale * (value - centre) ** 2 for scale, value, centre in zip(scales, x, centres, strict=True))
        total -= weight * math.exp(-away)
    return total


def rosenbrock(x: Sequence[float]) -> float:
    """Return Rosenbrock's function, a long bent valley."""
    return sum(100 * (after - here**2) ** 2 + (1 - here) ** 2 for here, after in itertools.pairwise(x))


ALL = (
    Landscape("branin", ((-5.0, 10.0), (0.0, 15.0)), branin, 0.397887),
    Landscape("hartmann6", ((0.0, 1.0),) * 6, hartmann6, -3.32237),
    Landscape("rosenbrock2", ((-5.0, 10.0),) * 2, rosenbrock, 0.0),
    Landscape("rosenbrock6", ((-5.0, 10.0),) * 6, rosenbrock, 0.0),
)
