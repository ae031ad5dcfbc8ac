"""One hyper-parameter: what it may be, and its place on the interval from 0 to 1.

Every searcher works on that interval: steps that look alike there (a factor on a logarithmic scale, the next of the
listed values) matter alike. What a user gives for a parameter is checked here; the errors are Maggy's, with a remedy.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.errors import ArgumentError, BoundsError

DOUBLE, INTEGER, LOGUNIFORM, LOGINTEGER = "DOUBLE", "INTEGER", "LOGUNIFORM", "LOGINTEGER"
DISCRETE, CATEGORICAL = "DISCRETE", "CATEGORICAL"
KINDS = (DOUBLE, INTEGER, DISCRETE, CATEGORICAL, LOGUNIFORM, LOGINTEGER)

When = Mapping[str, tuple[Any, ...]]  # name of another parameter -> the values of it with which this one is there


@dataclass(frozen=True)
class Parameter(ABC):
    """A hyper-parameter. ``region`` is as the user gave it; without ``when`` it is always active."""

    name: str
    kind: str
    region: list[Any]
    when: When

    @property
    @abstractmethod
    def count(self) -> int | None:
        """Number of distinct values; None for a continuous range."""

    @abstractmethod
    def at(self, unit: float) -> Any:
        """The value at ``unit``, a position in [0, 1]; positions outside are clipped."""

    @abstractmethod
    def unit(self, value: Any) -> float:
        """The position of a value in [0, 1]; ``at(unit(value)) == value`` for values of the region, up to rounding."""

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether ``value`` lies in the region."""

    def listed(self) -> Sequence[Any]:
        """All values, ascending or as given. Raises ArgumentError for a continuous range."""
        raise ArgumentError(
            f"{self.name} is {self.kind} {self.region}, which has no list of values; make it DISCRETE, "
            'or say points=5 for a grid: searcher_args={"points": 5}'
        )


@dataclass(frozen=True)
class Interval(Parameter):
    """Type DOUBLE, or LOGUNIFORM if ``logarithmic``."""

    low: float
    high: float
    logarithmic: bool = False

    @property
    def count(self) -> int | None:
        return None

    def at(self, unit: float) -> float:
        unit = min(max(unit, 0.0), 1.0)
        if self.logarithmic:
            value = math.exp(math.log(self.low) * (1.0 - unit) + math.log(self.high) * unit)
        else:
            value = self.low * (1.0 - unit) + self.high * unit
        return min(max(value, self.low), self.high)

    def unit(self, value: Any) -> float:
        if self.logarithmic:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        half = self.high / 2 - self.low / 2  # the difference of two finite numbers need not be finite
        return float((value / 2 - self.low / 2) / half)

    def holds(self, value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high


@dataclass(frozen=True)
class Integers(Parameter):
    """Type INTEGER: both ends included, every value has an equal share of [0, 1]."""

    low: int
    high: int

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def at(self, unit: float) -> int:
        return self.low + min(max(int(unit * self.count), 0), self.count - 1)

    def unit(self, value: Any) -> float:
        return float((value - self.low + 0.5) / self.count)

    def holds(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def listed(self) -> Sequence[int]:
        return range(self.low, self.high + 1)


@dataclass(frozen=True)
class LogIntegers(Integers):
    """Type LOGINTEGER: both ends included; a value's share of [0, 1] is that of value ± 0.5 on a logarithmic scale."""

    def at(self, unit: float) -> int:
        bottom, top = math.log(self.low - 0.5), math.log(self.high + 0.5)
        exact = math.exp(bottom + min(max(unit, 0.0), 1.0) * (top - bottom))
        return min(max(round(exact), self.low), self.high)

    def unit(self, value: Any) -> float:
        bottom, top = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return (math.log(value) - bottom) / (top - bottom)


@dataclass(frozen=True)
class Choice(Parameter):
    """Types DISCRETE and CATEGORICAL; ``values`` are those of the region without duplicates."""

    values: tuple[Any, ...]

    @property
    def count(self) -> int:
        return len(self.values)

    def at(self, unit: float) -> Any:
        return self.values[min(max(int(unit * len(self.values)), 0), len(self.values) - 1)]

    def unit(self, value: Any) -> float:
        return (self.index(value) + 0.5) / len(self.values)

    def index(self, value: Any) -> int:
        """The position of ``value`` in ``values``. Raises ValueError if it is not among them."""
        for place, known in enumerate(self.values):
            if same(known, value):
                return place
        raise ValueError(f"{self.name}: {value!r} is none of {list(self.values)}")

    def holds(self, value: Any) -> bool:
        return any(same(known, value) for known in self.values)

    def listed(self) -> Sequence[Any]:
        return self.values


def same(one: Any, other: Any) -> bool:
    """Equality that distinguishes True from 1, and 1 from 1.0: a function may treat them differently."""
    return type(one) is type(other) and bool(one == other)


def parameter(name: str, given: object, when: Mapping[str, Any] | None = None) -> Parameter:
    """The parameter of ``(type, region)`` or ``(type, region, when)``; a list does for a tuple.

    Raises ArgumentError (a ValueError): wrong length, unknown type, empty region, bounds that are no numbers, not
    finite, or not above 0 on a logarithmic scale. Raises BoundsError (an AssertionError, too): bounds that are not two, or
    not ascending.
    """
    if not isinstance(given, tuple | list) or len(given) not in (2, 3) or (len(given) == 3 and when is not None):
        raise ArgumentError(f"{name}={given!r}: (type, region) was expected, such as ('DOUBLE', [0.1, 1.0])")
    kind = given[0]
    if all(isinstance(value, int | float) for value in given):
        values = ", ".join(map(repr, given))
        raise ArgumentError(
            f'{name}={given!r} names no type: (type, region) was expected, such as ("DOUBLE", [0.0, 1.0]) for what lies '
            f'between two bounds, or ("DISCRETE", [{values}]) for these values'
        )
    region = _region(name, given[1])
    conditions = _conditions(name, given[2] if len(given) == 3 else when)
    kind = kind.upper() if isinstance(kind, str) else kind
    if kind not in KINDS:
        raise ArgumentError(f"{name}: type {given[0]!r} is not known; there are {', '.join(KINDS)}")
    if not region:
        raise ArgumentError(f"{name}: the region of {kind} is empty; give it at least one value")
    if kind in (DISCRETE, CATEGORICAL):
        return Choice(name, kind, region, conditions, distinct(region))
    if kind in (INTEGER, LOGINTEGER):
        first, last = _bounds(name, kind, [_integer(name, kind, bound) for bound in region])
        return (LogIntegers if kind == LOGINTEGER else Integers)(name, kind, region, conditions, int(first), int(last))
    low, high = _bounds(name, kind, [_real(name, kind, bound) for bound in region])
    return Interval(name, kind, region, conditions, low, high, logarithmic=kind == LOGUNIFORM)


_FORM = 'as in ("DOUBLE", [0.0, 1.0])'


def _region(name: str, given: object) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        tolist = getattr(given, "tolist", None)  # an array
        if tolist is None:
            raise ArgumentError(f"{name}: the region is {given!r}; a list of bounds or of values was expected, {_FORM}")
        given = tolist()
        if not isinstance(given, list):
            raise ArgumentError(f"{name}: the region is the single value {given!r}; a list was expected, {_FORM}")
    return list(given)


def _conditions(name: str, given: object) -> dict[str, tuple[Any, ...]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ArgumentError(
            f"{name}: when={given!r}; a dict of lists was expected, such as {{'act': ['relu', 'gelu']}}"
        )
    conditions = {}
    for key, values in given.items():
        if isinstance(values, str | bytes) or not isinstance(values, list | tuple | set | frozenset):
            values = [values]
        if not values:
            raise ArgumentError(f"{name}: no value of {key!r} is listed in its when, so it would never be there")
        conditions[key] = tuple(values)
    return conditions


def distinct(region: Iterable[Any]) -> tuple[Any, ...]:
    """The values without duplicates, in order; they need not be hashable."""
    kept: list[Any] = []
    known: set[tuple[type, Any]] = set()
    others: list[Any] = []  # which cannot be hashed: each is compared with all of them
    for value in region:
        try:
            is_new = value != value or (type(value), value) not in known  # NaN is none of those before it
            known.add((type(value), value))
        except (TypeError, ValueError):  # an array's comparison has no truth value
            is_new = not any(same(other, value) for other in others)
            others.append(value)
        if is_new:
            kept.append(value)
    return tuple(kept)


def _integer(name: str, kind: str, bound: Any) -> int:
    try:
        if isinstance(bound, bool):
            raise TypeError
        return operator.index(bound)
    except TypeError:
        raise ArgumentError(f"{name}: the bound {bound!r} of {kind} is no integer; DOUBLE takes others") from None


def _real(name: str, kind: str, bound: Any) -> float:
    if isinstance(bound, bool | str | bytes) or not hasattr(bound, "__float__"):
        raise ArgumentError(f"{name}: the bound {bound!r} of {kind} is no number; CATEGORICAL takes any values")
    if not math.isfinite(bound):
        raise ArgumentError(f"{name}: the bound {bound!r} of {kind} is not finite; give the widest that makes sense")
    return float(bound)


def _bounds(name: str, kind: str, bounds: Sequence[float]) -> tuple[float, float]:
    if len(bounds) != 2:
        raise BoundsError(f"{name}: {kind} takes two bounds, was given {bounds}; DISCRETE takes a list of values")
    low, high = bounds
    if not low < high:
        raise BoundsError(f"{name}: the lower bound {low} of {kind} is not less than the upper bound {high}; swap them")
    if kind in (LOGUNIFORM, LOGINTEGER) and low <= 0:
        raise ArgumentError(f"{name}: the lower bound {low} of {kind} must be above 0, where a logarithm begins")
    return low, high
