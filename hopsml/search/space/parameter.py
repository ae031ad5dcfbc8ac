"""Types of hyper-parameters: region, validation, and mapping of values to the interval from 0 to 1.

Every searcher works on that interval: equal steps on it (a factor on a logarithmic scale, the next one of listed
values) count as equal changes. The user's definition of a parameter is validated here; the errors are Maggy's, with a
remedy.

Configurations are written as JSON by ``to_line`` and read by ``line_parser``: tuples are preserved, and functions and
objects are resolved by their names.
"""

from __future__ import annotations

import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.errors import ArgumentError, BoundsError

_TUPLE = "hopsml tuple"
_VALUE = "hopsml value"


class NameOnly(str):
    """Placeholder for a value of an earlier session that cannot be resolved by its name in this one."""


def name_of(value: Any) -> str:
    """Return ``module.qualname`` of a function or class, else the ``repr`` of the value.

    The ``repr`` of functions and classes differs from process to process.
    """
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{getattr(value, '__module__', '')}.{name}"


def to_json_value(value: Any) -> Any:
    """Return a copy of ``value`` that JSON can represent: tuples and named objects become tagged dicts."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {key: to_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json_value(item) for item in value]
    if isinstance(value, tuple):
        return {_TUPLE: [to_json_value(item) for item in value]}
    if isinstance(value, NameOnly):
        return {_VALUE: str(value)}
    if isinstance(value, bool | int | float | str):  # a subclass, such as an IntEnum
        return value
    tolist = getattr(value, "tolist", None)  # numpy's scalars and arrays
    if callable(tolist) and not isinstance(value, type):
        return to_json_value(tolist())
    return {_VALUE: name_of(value)}


def to_line(value: Any) -> str:
    """Return ``value`` as one line of JSON, for ``line_parser``."""
    return json.dumps(to_json_value(value), separators=(",", ":"))


def line_parser(values: Iterable[Any]) -> Callable[[str], Any]:
    """Return a function that parses lines of ``to_line``.

    Args:
        values: the objects that are resolved by their names; others become ``NameOnly``.
    """
    by_name = {name_of(value): value for value in values}

    def back(written: dict[str, Any]) -> Any:
        if len(written) != 1:
            return written
        if _TUPLE in written:
            return tuple(written[_TUPLE])
        if _VALUE in written:
            name = written[_VALUE]
            return by_name.get(name, NameOnly(name))
        return written

    return lambda line: json.loads(line, object_hook=back)


DOUBLE, INTEGER, LOGUNIFORM, LOGINTEGER = "DOUBLE", "INTEGER", "LOGUNIFORM", "LOGINTEGER"
DISCRETE, CATEGORICAL = "DISCRETE", "CATEGORICAL"
KINDS = (DOUBLE, INTEGER, DISCRETE, CATEGORICAL, LOGUNIFORM, LOGINTEGER)

When = Mapping[str, tuple[Any, ...]]  # name of another parameter -> the values of it with which this one is active


@dataclass(frozen=True)
class Parameter(ABC):
    """Hyper-parameter of a search space.

    ``region`` is as the user gave it; with an empty ``when`` the parameter is always active.
    """

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
        """Return the value at ``unit``, a position in [0, 1]; positions outside are clipped."""

    @abstractmethod
    def unit(self, value: Any) -> float:
        """Return the position of a value in [0, 1].

        ``at(unit(value)) == value`` for values of the region, up to rounding.
        """

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Return True if ``value`` lies in the region."""

    def listed(self) -> Sequence[Any]:
        """Return all values, ascending or as given; raises ArgumentError for a continuous range."""
        raise ArgumentError(
            f"{self.name} is {self.kind} {self.region}, which has no list of values; make it DISCRETE, "
            'or say points=5 for a grid: searcher_args={"points": 5}'
        )


@dataclass(frozen=True)
class Interval(Parameter):
    """Continuous parameter: type DOUBLE, or LOGUNIFORM if ``logarithmic``."""

    low: float
    high: float
    logarithmic: bool = False

    @property
    def count(self) -> int | None:
        """None, since the range is continuous."""
        return None

    def at(self, unit: float) -> float:
        """Return the value at ``unit``, a position in [0, 1]; positions outside are clipped."""
        unit = min(max(unit, 0.0), 1.0)
        if self.logarithmic:
            value = math.exp(math.log(self.low) * (1.0 - unit) + math.log(self.high) * unit)
        else:
            value = self.low * (1.0 - unit) + self.high * unit
        return min(max(value, self.low), self.high)

    def unit(self, value: Any) -> float:
        """Return the position of a value in [0, 1], on the parameter's scale."""
        if self.logarithmic:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        half = self.high / 2 - self.low / 2  # the difference of two finite numbers need not be finite
        return float((value / 2 - self.low / 2) / half)

    def holds(self, value: Any) -> bool:
        """Return True if ``value`` is a number within the bounds."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high


@dataclass(frozen=True)
class Integers(Parameter):
    """Parameter of type INTEGER: both bounds included, every value has an equal share of [0, 1]."""

    low: int
    high: int

    @property
    def count(self) -> int:
        """Number of integers from the lower to the upper bound."""
        return self.high - self.low + 1

    def at(self, unit: float) -> int:
        """Return the integer in whose share of [0, 1] ``unit`` lies; positions outside are clipped."""
        return self.low + min(max(int(unit * self.count), 0), self.count - 1)

    def unit(self, value: Any) -> float:
        """Return the middle of the value's share of [0, 1]."""
        return float((value - self.low + 0.5) / self.count)

    def holds(self, value: Any) -> bool:
        """Return True if ``value`` is an integer within the bounds."""
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def listed(self) -> Sequence[int]:
        """Return all integers from the lower to the upper bound."""
        return range(self.low, self.high + 1)


@dataclass(frozen=True)
class LogIntegers(Integers):
    """Parameter of type LOGINTEGER: both bounds included, on a logarithmic scale.

    A value's share of [0, 1] is that of the interval value ± 0.5 on this scale.
    """

    def at(self, unit: float) -> int:
        """Return the integer in whose share of [0, 1] ``unit`` lies; positions outside are clipped."""
        bottom, top = math.log(self.low - 0.5), math.log(self.high + 0.5)
        exact = math.exp(bottom + min(max(unit, 0.0), 1.0) * (top - bottom))
        return min(max(round(exact), self.low), self.high)

    def unit(self, value: Any) -> float:
        """Return the position of the value in [0, 1], on a logarithmic scale."""
        bottom, top = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return (math.log(value) - bottom) / (top - bottom)


@dataclass(frozen=True)
class Choice(Parameter):
    """Parameter of type DISCRETE or CATEGORICAL; ``values`` are those of the region without duplicates."""

    values: tuple[Any, ...]

    @property
    def count(self) -> int:
        """Number of distinct values."""
        return len(self.values)

    def at(self, unit: float) -> Any:
        """Return the value in whose share of [0, 1] ``unit`` lies; all shares are equal."""
        return self.values[min(max(int(unit * len(self.values)), 0), len(self.values) - 1)]

    def unit(self, value: Any) -> float:
        """Return the middle of the value's share of [0, 1]."""
        return (self.index(value) + 0.5) / len(self.values)

    def index(self, value: Any) -> int:
        """Return the position of ``value`` in ``values``; raises ValueError if it is not among them."""
        for place, known in enumerate(self.values):
            if is_same_value(known, value):
                return place
        raise ValueError(f"{self.name}: {value!r} is none of {list(self.values)}")

    def holds(self, value: Any) -> bool:
        """Return True if ``value`` is one of the listed values."""
        return any(is_same_value(known, value) for known in self.values)

    def listed(self) -> Sequence[Any]:
        """Return the values in the order in which they were given."""
        return self.values


def is_same_value(one: Any, other: Any) -> bool:
    """Return True if both values are equal and of the same type.

    So True differs from 1, and 1 from 1.0: a function may treat them differently.
    """
    return type(one) is type(other) and bool(one == other)


def parameter(name: str, given: object, when: Mapping[str, Any] | None = None) -> Parameter:
    """Return the parameter for the user's definition ``(type, region)`` or ``(type, region, when)``.

    Args:
        name: name of the parameter.
        given: the definition, a tuple or a list.
        when: condition, if it is not part of ``given``: name of another parameter -> the values of it with which this
            one is active.

    Raises:
        ArgumentError: (a ValueError) wrong length, unknown type, empty region, bounds that are not numbers, not finite,
            or not above 0 on a logarithmic scale.
        BoundsError: (an AssertionError, too) not two bounds, or not ascending.
    """
    if not isinstance(given, tuple | list) or len(given) not in (2, 3) or (len(given) == 3 and when is not None):
        raise ArgumentError(f"{name}={given!r}: it must be (type, region), such as ('DOUBLE', [0.1, 1.0])")
    kind = given[0]
    if all(isinstance(value, int | float) for value in given):
        values = ", ".join(map(repr, given))
        raise ArgumentError(
            f'{name}={given!r} names no type: it must be (type, region), such as ("DOUBLE", [0.0, 1.0]) for what '
            f'lies between two bounds, or ("DISCRETE", [{values}]) for these values'
        )
    region = _region(name, given[1])
    conditions = _conditions(name, given[2] if len(given) == 3 else when)
    kind = kind.upper() if isinstance(kind, str) else kind
    if kind not in KINDS:
        raise ArgumentError(f"{name}: type {given[0]!r} is not known; there are {', '.join(KINDS)}")
    if not region:
        raise ArgumentError(f"{name}: the region of {kind} is empty; give it at least one value")
    if kind in (DISCRETE, CATEGORICAL):
        return Choice(name, kind, region, conditions, distinct_values(region))
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
            raise ArgumentError(f"{name}: the region is {given!r}; it must be a list of bounds or of values, {_FORM}")
        given = tolist()
        if not isinstance(given, list):
            raise ArgumentError(f"{name}: the region is the single value {given!r}; it must be a list, {_FORM}")
    return list(given)


def _conditions(name: str, given: object) -> dict[str, tuple[Any, ...]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ArgumentError(f"{name}: when={given!r}; it must be a dict of lists, such as {{'act': ['relu', 'gelu']}}")
    conditions = {}
    for key, values in given.items():
        if isinstance(values, str | bytes) or not isinstance(values, list | tuple | set | frozenset):
            values = [values]
        if not values:
            raise ArgumentError(f"{name}: its when lists no value of {key!r}, so it would never be used")
        conditions[key] = tuple(values)
    return conditions


def distinct_values(region: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values without duplicates, in order; they need not be hashable."""
    kept: list[Any] = []
    known: set[tuple[type, Any]] = set()
    others: list[Any] = []  # unhashable values: each is compared with all of them
    for value in region:
        try:
            is_new = value != value or (type(value), value) not in known  # NaN differs from all before it
            known.add((type(value), value))
        except (TypeError, ValueError):  # an array's comparison has no truth value
            is_new = not any(is_same_value(other, value) for other in others)
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
        raise ArgumentError(
            f"{name}: the bound {bound!r} of {kind} is not an integer; use DOUBLE for other numbers"
        ) from None


def _real(name: str, kind: str, bound: Any) -> float:
    if isinstance(bound, bool | str | bytes) or not hasattr(bound, "__float__"):
        raise ArgumentError(f"{name}: the bound {bound!r} of {kind} is not a number; use CATEGORICAL for other values")
    if not math.isfinite(bound):
        raise ArgumentError(f"{name}: the bound {bound!r} of {kind} is not finite; give the widest that makes sense")
    return float(bound)


def _bounds(name: str, kind: str, bounds: Sequence[float]) -> tuple[float, float]:
    if len(bounds) != 2:
        raise BoundsError(f"{name}: {kind} takes two bounds, not {bounds}; use DISCRETE for a list of values")
    low, high = bounds
    if not low < high:
        raise BoundsError(f"{name}: the lower bound {low} of {kind} is not less than the upper bound {high}; swap them")
    if kind in (LOGUNIFORM, LOGINTEGER) and low <= 0:
        raise ArgumentError(f"{name}: the lower bound {low} of {kind} must be greater than 0 for a logarithmic scale")
    return low, high
