"""Search space: hyper-parameters by name, in Maggy's form, extended by logarithmic scales and conditions.

    space = Searchspace(lr=("LOGUNIFORM", [1e-4, 1e-1]), act=("CATEGORICAL", ["relu", "gelu"]))
    space.add("slope", ("DOUBLE", [0.0, 0.3]), when={"act": ["relu"]})

A parameter with ``when`` is part of a configuration only if every parameter named in it is, with one of the values.
``trial_id`` computes a configuration's id as Maggy does.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hopsml.errors import ArgumentError, BoundsError
from hopsml.search.contract import Config
from hopsml.search.space import parameter as kinds
from hopsml.search.space.parameter import Interval, Parameter, is_same_value, name_of, parameter


def trial_id(config: Mapping[str, Any], repeat: int = 0) -> str:
    """Return the id of a configuration: sixteen hex digits of its MD5, as in Maggy.

    They are the first digits of the MD5 of the configuration as JSON with sorted keys. Values that JSON does not
    support are written as follows: numbers and arrays of numpy as Python's, functions and classes as
    ``module.qualname``, anything else as its ``repr``.

    Args:
        config: the configuration.
        repeat: how often the same configuration was tried before; above 0 it makes another id.
    """
    text = json.dumps(dict(config), sort_keys=True, default=_written)
    if repeat:
        text += f"#{repeat}"
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()[:16]


def _written(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    if callable(tolist) and not isinstance(value, type):
        return tolist()
    return name_of(value)


# Attributes of Maggy's class: it rejects them as names of parameters, and so does this one.
RESERVED = {
    "DOUBLE", "INTEGER", "DISCRETE", "CATEGORICAL", "add", "to_dict", "names", "get", "items", "keys", "values", "json",
    "get_random_parameter_values", "transform", "inverse_transform",
}  # fmt: skip

_ANY_OTHER = object()


class Searchspace:
    """Set of named hyper-parameters: ``name=(type, region)`` or ``name=(type, region, when)``.

    Types: DOUBLE, INTEGER (two bounds, both included), LOGUNIFORM, LOGINTEGER (the same on a logarithmic scale),
    DISCRETE, CATEGORICAL (a list of values). The region of a parameter is an attribute by its name, unless this class
    has a method of that name.

    Raises:
        ArgumentError: an invalid parameter (see ``parameter.parameter``), a name that is taken or reserved, or a
            ``when`` that names no parameter, is circular, or can never be met.
        BoundsError: not two bounds, or not ascending.
    """

    DOUBLE, INTEGER, DISCRETE, CATEGORICAL = kinds.DOUBLE, kinds.INTEGER, kinds.DISCRETE, kinds.CATEGORICAL
    LOGUNIFORM, LOGINTEGER = kinds.LOGUNIFORM, kinds.LOGINTEGER

    def __init__(self, **parameters: Any) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._order: list[Parameter] = []  # parameters named by a condition come before those that have it
        self._given_order = True  # True if ``_order`` is the order in which they were given
        for name, given in parameters.items():
            self._parameters[self._free(name)] = parameter(name, given)
        self._arrange(self._parameters)

    def add(self, name: str, value: Any, when: Mapping[str, Any] | None = None) -> None:
        """Add a parameter ``(type, region)``, which is active only if its condition is met.

        Args:
            name: name of the parameter.
            value: type and region.
            when: name of another parameter -> the values of it with which this one is active; None: always.
        """
        self._arrange({**self._parameters, self._free(name): parameter(name, value, when)})

    def _arrange(self, parameters: dict[str, Parameter]) -> None:
        self._order = _in_order(parameters)  # first, as it may raise
        self._parameters = parameters
        self._given_order = [found.name for found in self._order] == list(parameters)

    def _free(self, name: object) -> str:
        if not isinstance(name, str) or not name or name.startswith("_") or name in RESERVED:
            raise ArgumentError(f"{name!r} cannot be the name of a hyper-parameter: it is reserved; choose another one")
        if name in self._parameters:
            raise ArgumentError(f"the name {name!r} is taken by a hyper-parameter already; choose another one")
        return name

    @classmethod
    def from_grid(cls, grid: Mapping[str, Any]) -> Searchspace:
        """Return the space of a grid, a dict of names to lists of values.

        Raises ArgumentError for an empty list, or a value that is not a list.
        """
        if not isinstance(grid, Mapping) or not grid:
            raise ArgumentError(f"a grid is a dict of lists of values, such as {{'lr': [0.1, 0.01]}}; it was {grid!r}")
        return cls(**{name: (kinds.CATEGORICAL, values) for name, values in grid.items()})

    @classmethod
    def from_boundaries(cls, boundaries: Mapping[str, Any], categories: bool = False) -> Searchspace:
        """Return the space of a dict of two bounds for each name, by the predecessor's rules.

        Args:
            boundaries: name -> two bounds.
            categories: False: the rules of ``random_search``: two integers or two numbers, ascending. True: those of
                ``differential_evolution``: the first bound's type decides; numbers may descend, and two values that are
                not numbers are a choice between the two.
        """
        if not isinstance(boundaries, Mapping) or not boundaries:
            raise ArgumentError(
                f"a dict of two bounds each is needed, such as {{'lr': [0.01, 0.1]}}; got {boundaries!r}"
            )
        of_two = _evolved if categories else _sampled
        return cls(**{name: of_two(name, bounds) for name, bounds in boundaries.items()})

    # ---------------------------------------------------------------- Maggy's interface

    def __getattr__(self, name: str) -> list[Any]:
        if not name.startswith("_") and name in self._parameters:
            return self._parameters[name].region
        raise AttributeError(f"the search space has no parameter and no method {name!r}")

    def to_dict(self) -> dict[str, tuple[Any, ...]]:
        """Return the parameters as ``Searchspace(**...)`` takes them; a third element is the condition."""
        return {
            name: (*pair, _listed(found)) if (found := self._parameters[name]).when else pair
            for name, pair in self._pairs()
        }

    def _pairs(self) -> list[tuple[str, tuple[str, list[Any]]]]:
        return [(name, (found.kind, found.region)) for name, found in self._parameters.items()]

    def names(self) -> dict[str, str]:
        """Return the parameters' names mapped to their types, such as 'DOUBLE'."""
        return {name: found.kind for name, found in self._parameters.items()}

    def keys(self) -> list[str]:
        """Return the parameters' names in the order in which they were given."""
        return list(self._parameters)

    def values(self) -> list[tuple[str, list[Any]]]:
        """Return (type, region) of each parameter, in the order of ``keys``."""
        return [pair for _, pair in self._pairs()]

    def items(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the parameters as ``{"name":, "type":, "values":}``.

        The space itself can be iterated in the same way.
        """
        return iter({"name": name, "type": kind, "values": region} for name, (kind, region) in self._pairs())

    __iter__ = items

    def get(self, name: str, default: Any = None) -> Any:
        """Return the region of the parameter ``name``; ``default`` if there is none."""
        found = self._parameters.get(name)
        return default if found is None else found.region

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def json(self) -> str:
        """Return ``to_dict`` as JSON; values that JSON cannot represent are replaced by their ``repr``."""
        return json.dumps(self.to_dict(), sort_keys=True, default=repr)

    __str__ = json

    def get_random_parameter_values(self, num: int, seed: int | None = None) -> list[Config]:
        """Return ``num`` configurations, drawn independently.

        Raises ArgumentError if ``num`` is not an integer of 0 or more.
        """
        if isinstance(num, bool) or not isinstance(num, int) or num < 0:
            raise ArgumentError(f"num={num!r}: how many configurations, 0 or more, was expected")
        draw = random.Random(seed).random
        return [self.inverse_transform([draw() for _ in self._parameters]) for _ in range(num)]

    def transform(self, hparams: Mapping[str, Any]) -> list[float]:
        """Return a configuration as a point of the unit cube, one coordinate per parameter, in the order of ``keys``.

        A listed value is mapped to the middle of its share by its position in the list (no one-hot encoding); an
        inactive parameter is 0.5.
        """
        return [found.unit(hparams[name]) if name in hparams else 0.5 for name, found in self._parameters.items()]

    def inverse_transform(self, point: Sequence[float]) -> Config:
        """Return the configuration at a point of the unit cube; inactive parameters are left out."""
        units = dict(zip(self._parameters, point, strict=True))
        return self.build(lambda found: found.at(units[found.name]))

    # ---------------------------------------------------------------- further methods for searchers

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Parameters by name, in the order in which they were given."""
        return dict(self._parameters)

    def build(self, choose: Callable[[Parameter], Any]) -> Config:
        """Return the configuration whose active parameters have the values that ``choose(parameter)`` returns."""
        values: Config = {}
        for found in self._order:
            if not found.when or _met(found, values):
                values[found.name] = choose(found)
        return values if self._given_order else {name: values[name] for name in self._parameters if name in values}

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Return True if this is a configuration of the space.

        It must have exactly the active parameters, each with a value of its region.
        """
        there = set()
        for found in self._order:
            if _met(found, config):
                there.add(found.name)
                if found.name not in config or not found.holds(config[found.name]):
                    return False
        return there == set(config)

    def combinations(self) -> Iterator[Config]:
        """Return an iterator over all configurations, the last parameter changing fastest.

        A parameter that a condition names comes before its dependants. Raises ArgumentError where a parameter has no
        list of values.
        """
        for found in self._order:
            found.listed()
        return self._combined(0, {})

    def _combined(self, place: int, values: Config) -> Iterator[Config]:
        if place == len(self._order):
            yield {name: values[name] for name in self._parameters if name in values}
            return
        found = self._order[place]
        if not _met(found, values):
            yield from self._combined(place + 1, values)
            return
        for value in found.listed():
            yield from self._combined(place + 1, {**values, found.name: value})

    def size(self) -> int | None:
        """Return the number of different configurations; None if a parameter is continuous."""
        if any(found.count is None for found in self._order):
            return None
        return self._counted(0, {})

    def _counted(self, place: int, values: Config) -> int:
        if place == len(self._order):
            return 1
        found = self._order[place]
        if not _met(found, values):
            return self._counted(place + 1, values)
        conditions = [value for other in self._order for value in other.when.get(found.name, ())]
        apart = kinds.distinct_values(conditions)  # these decide which other parameters are active; the rest is alike
        alike = int(found.count or 0) - len(apart)
        counted = sum(self._counted(place + 1, {**values, found.name: value}) for value in apart)
        return counted + (alike * self._counted(place + 1, {**values, found.name: _ANY_OTHER}) if alike else 0)

    def key(self, config: Mapping[str, Any]) -> str:
        """Return a string that is equal for equal configurations, for example as the key of a dict."""
        return json.dumps(self.encode(config), sort_keys=True)

    def encode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration as JSON values; listed values are replaced by their positions in the list."""
        return {name: _encoded(self._parameters[name], value) for name, value in config.items()}

    def decode(self, encoded: Mapping[str, Any]) -> Config:
        """Return the configuration from which ``encode`` made ``encoded``."""
        return {name: _decoded(self._parameters[name], value) for name, value in encoded.items()}


def check_filled(space: Searchspace) -> None:
    """Raise ArgumentError if the space has no parameter."""
    if not len(space):
        raise ArgumentError("the search space is empty; give it a parameter: Searchspace(lr=('DOUBLE', [0.01, 0.1]))")


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the function's parameters by name; None for a builtin without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return True if the parameters include ``**kwargs``."""
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def check_function(space: Searchspace, function: Callable[..., Any]) -> None:
    """Raise ArgumentError if the function cannot be called with the configurations of the space.

    It must have each parameter of the space, with a default where the parameter is not always active; ``**kwargs``, or
    a parameter ``hparams`` that receives the whole configuration, is accepted as well.
    """
    known = parameters_of(function)
    if known is None or "hparams" in known or takes_any(known):
        return
    name = getattr(function, "__name__", type(function).__name__)
    if missing := [key for key in space.parameters if key not in known]:
        raise ArgumentError(
            f"{name}({', '.join(known)}) has no parameter {', '.join(missing)}, which the search space gives; "
            "add it, **kwargs or hparams"
        )
    for key, found in space.parameters.items():
        if found.when and known[key].default is inspect.Parameter.empty:
            raise ArgumentError(
                f"{name}: {key} needs a default, such as {key}=None: it is not there in every configuration"
            )


def _listed(found: Parameter) -> dict[str, list[Any]]:
    return {name: list(allowed) for name, allowed in found.when.items()}


def _encoded(found: Parameter, value: Any) -> Any:
    return found.index(value) if isinstance(found, kinds.Choice) else value


def _decoded(found: Parameter, value: Any) -> Any:
    return found.values[value] if isinstance(found, kinds.Choice) else value


def _met(found: Parameter, values: Mapping[str, Any]) -> bool:
    """Return True if ``values`` meet the condition of a parameter."""
    return all(
        name in values and any(is_same_value(values[name], wanted) for wanted in allowed)
        for name, allowed in found.when.items()
    )


def _in_order(parameters: Mapping[str, Parameter]) -> list[Parameter]:
    """Return the parameters sorted so that each comes after those that its condition names.

    Otherwise the given order is preserved. Raises ArgumentError for conditions that name no parameter, are circular, or
    can never be met.
    """
    ordered: dict[str, Parameter] = {}
    # For each parameter the values of others that it needs to be active, including what those need.
    needed: dict[str, dict[str, tuple[Any, ...]]] = {}

    def place(found: Parameter, path: tuple[str, ...]) -> None:
        if found.name in path:
            circle = " -> ".join((*path[path.index(found.name) :], found.name))
            raise ArgumentError(
                f"the conditions go in a circle: {circle}; one of these must be there without the other"
            )
        if found.name in ordered:
            return
        needs: dict[str, tuple[Any, ...]] = {}
        for name, allowed in found.when.items():
            _check_named(found, name, allowed, parameters)
            place(parameters[name], (*path, found.name))
            for key, values in [*needed[name].items(), (name, allowed)]:
                both = tuple(
                    value for value in values if any(is_same_value(value, other) for other in needs.get(key, values))
                )
                if not both:
                    raise ArgumentError(
                        f"{found.name} can never be there: it needs {key} in {list(needs[key])} and in {list(values)}; "
                        "change one of the conditions"
                    )
                needs[key] = both
        needed[found.name] = needs
        ordered[found.name] = found

    for found in parameters.values():
        place(found, ())
    return list(ordered.values())


def _check_named(found: Parameter, name: str, allowed: Iterable[Any], parameters: Mapping[str, Parameter]) -> None:
    if name not in parameters:
        there = ", ".join(parameters)
        raise ArgumentError(
            f"{found.name}: its when has {name!r}, which is not a parameter; the parameters are {there}"
        )
    other = parameters[name]
    if isinstance(other, Interval):
        raise ArgumentError(
            f"{found.name}: its when names {name!r}, which is {other.kind}; it needs one with listed values"
        )
    for value in allowed:
        if not other.holds(value):
            raise ArgumentError(f"{found.name}: it is there when {name} is {value!r}, which is not of {other.region}")


def _sampled(name: str, given: Any) -> tuple[str, list[Any]]:
    """Return type and region of a parameter of random_search.

    Two integers give INTEGER, with a float among them DOUBLE; they must be ascending.
    """
    low, high = _two(name, given)
    if not _is_number(low) or not _is_number(high):
        raise ArgumentError(f"{name}: {given} was given; random search takes bounds that are integers or floats")
    if not low < high:
        raise BoundsError(f"{name}: the lower bound {low} is not less than the upper bound {high}; swap them")
    return (kinds.INTEGER if isinstance(low, int) and isinstance(high, int) else kinds.DOUBLE), [low, high]


def _evolved(name: str, given: Any) -> tuple[str, list[Any]]:
    """Return type and region of a parameter of differential_evolution: the first bound's type decides.

    Numbers may descend; two equal ones are a constant, and two values that are not numbers are a choice between the
    two. If the first bound is an integer, the region is the integers between the two.
    """
    first, second = _two(name, given)
    if _is_number(first) != _is_number(second):
        raise ArgumentError(f"{name}: {given} mixes a number and something else; give two of one kind")
    if not _is_number(first) or first == second:
        return kinds.CATEGORICAL, [first, second]
    low, high = sorted((first, second))
    if isinstance(first, float) or not math.isfinite(low) or not math.isfinite(high):
        return kinds.DOUBLE, [low, high]
    inside = [math.ceil(low), math.floor(high)]
    return (kinds.INTEGER if inside[0] < inside[1] else kinds.CATEGORICAL), inside


def _is_number(bound: object) -> bool:
    return isinstance(bound, int | float) and not isinstance(bound, bool)


def _two(name: str, given: Any) -> tuple[Any, Any]:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise BoundsError(f"{name}: {given!r} was given; a boundary list has exactly two elements")
    return given[0], given[1]
