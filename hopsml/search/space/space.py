"""What may be tried: hyper-parameters by name, in Maggy's form, with logarithmic scales and conditions besides.

    space = Searchspace(lr=("LOGUNIFORM", [1e-4, 1e-1]), act=("CATEGORICAL", ["relu", "gelu"]))
    space.add("slope", ("DOUBLE", [0.0, 0.3]), when={"act": ["relu"]})

A parameter with ``when`` is part of a configuration only if every parameter named there is, with one of the values.
"""

from __future__ import annotations

import inspect
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.contract import Config
from hopsml.search.space import parameter as kinds
from hopsml.search.space.parameter import Interval, Parameter, parameter, same

# Attributes that Maggy's class has: it refuses them as names of parameters, and so does this one.
RESERVED = {
    "DOUBLE", "INTEGER", "DISCRETE", "CATEGORICAL", "add", "to_dict", "names", "get", "items", "keys", "values", "json",
    "get_random_parameter_values", "transform", "inverse_transform",
}  # fmt: skip

_ANY_OTHER = object()


class Searchspace:
    """Hyper-parameters by name: ``name=(type, region)`` or ``name=(type, region, when)``.

    Types: DOUBLE, INTEGER (two bounds, both included), LOGUNIFORM, LOGINTEGER (the same on a logarithmic scale), DISCRETE,
    CATEGORICAL (a list of values). The region of a parameter is an attribute by its name, unless this class has a method
    of that name. Raises ArgumentError or BoundsError for what cannot be tried: see ``parameter.parameter``; besides, for a
    name that is taken or reserved, and for a ``when`` that names no parameter, goes in a circle, or never comes true.
    """

    DOUBLE, INTEGER, DISCRETE, CATEGORICAL = kinds.DOUBLE, kinds.INTEGER, kinds.DISCRETE, kinds.CATEGORICAL
    LOGUNIFORM, LOGINTEGER = kinds.LOGUNIFORM, kinds.LOGINTEGER

    def __init__(self, **parameters: Any) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._order: list[Parameter] = []  # those that a condition names come before those that have it
        self._given_order = True  # whether that is the order in which they were given
        for name, given in parameters.items():
            self._parameters[self._free(name)] = parameter(name, given)
        self._arrange(self._parameters)

    def add(self, name: str, value: Any, when: Mapping[str, Any] | None = None) -> None:
        """Add a parameter ``(type, region)``. ``when``: it is active only with these values of other parameters."""
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
        """The space of a grid: name -> list of values. Raises ArgumentError for an empty list, or no list."""
        if not isinstance(grid, Mapping) or not grid:
            raise ArgumentError(f"a grid is a dict of lists of values, such as {{'lr': [0.1, 0.01]}}; it was {grid!r}")
        return cls(**{name: (kinds.CATEGORICAL, values) for name, values in grid.items()})

    @classmethod
    def from_boundaries(cls, boundaries: Mapping[str, Any], categories: bool = False) -> Searchspace:
        """The space of a dict of two bounds each, by the predecessor's rules.

        Of ``random_search``: two integers or two numbers, ascending. With ``categories``, of ``differential_evolution``: the
        first bound's type decides; numbers may descend, and what is no number is a choice between the two.
        """
        if not isinstance(boundaries, Mapping) or not boundaries:
            raise ArgumentError(
                f"a dict of two bounds each is needed, such as {{'lr': [0.01, 0.1]}}; got {boundaries!r}"
            )
        of_two = _evolved if categories else _sampled
        return cls(**{name: of_two(name, bounds) for name, bounds in boundaries.items()})

    # ---------------------------------------------------------------- Maggy's questions

    def __getattr__(self, name: str) -> list[Any]:
        if not name.startswith("_") and name in self._parameters:
            return self._parameters[name].region
        raise AttributeError(f"the search space has no parameter and no method {name!r}")

    def to_dict(self) -> dict[str, tuple[Any, ...]]:
        """The parameters as ``Searchspace(**...)`` takes them; a third element is the condition."""
        return {
            name: (*pair, _listed(found)) if (found := self._parameters[name]).when else pair
            for name, pair in self._pairs()
        }

    def _pairs(self) -> list[tuple[str, tuple[str, list[Any]]]]:
        return [(name, (found.kind, found.region)) for name, found in self._parameters.items()]

    def names(self) -> dict[str, str]:
        """Parameter names mapped to their types, such as 'DOUBLE'."""
        return {name: found.kind for name, found in self._parameters.items()}

    def keys(self) -> list[str]:
        """Parameter names in the order in which they were given."""
        return list(self._parameters)

    def values(self) -> list[tuple[str, list[Any]]]:
        """(type, region) of each parameter, in the order of ``keys``."""
        return [pair for _, pair in self._pairs()]

    def items(self) -> Iterator[dict[str, Any]]:
        """Each parameter as ``{"name":, "type":, "values":}``; the space itself can be iterated in the same way."""
        return iter({"name": name, "type": kind, "values": region} for name, (kind, region) in self._pairs())

    __iter__ = items

    def get(self, name: str, default: Any = None) -> Any:
        """The region of the parameter ``name``; ``default`` if there is none."""
        found = self._parameters.get(name)
        return default if found is None else found.region

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def json(self) -> str:
        """``to_dict`` as JSON; values that JSON cannot represent are given by their ``repr``."""
        return json.dumps(self.to_dict(), sort_keys=True, default=repr)

    __str__ = json

    def get_random_parameter_values(self, num: int, seed: int | None = None) -> list[Config]:
        """``num`` configurations, each drawn on its own. Raises ArgumentError if ``num`` is no number from 0."""
        if isinstance(num, bool) or not isinstance(num, int) or num < 0:
            raise ArgumentError(f"num={num!r}: how many configurations, 0 or more, was expected")
        draw = random.Random(seed).random
        return [self.inverse_transform([draw() for _ in self._parameters]) for _ in range(num)]

    def transform(self, hparams: Mapping[str, Any]) -> list[float]:
        """A configuration as a point of the unit cube, one coordinate a parameter, in the order of ``keys``.

        A listed value is the middle of its share by its place in the list (no one-hot); one that is not there is 0.5.
        """
        return [found.unit(hparams[name]) if name in hparams else 0.5 for name, found in self._parameters.items()]

    def inverse_transform(self, point: Sequence[float]) -> Config:
        """The configuration at a point of the unit cube; inactive parameters are left out."""
        units = dict(zip(self._parameters, point, strict=True))
        return self.build(lambda found: found.at(units[found.name]))

    # ---------------------------------------------------------------- what searchers ask besides

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Parameters by name, in the order in which they were given."""
        return dict(self._parameters)

    def build(self, choose: Callable[[Parameter], Any]) -> Config:
        """The configuration whose active parameters have the values that ``choose(parameter)`` gives."""
        values: Config = {}
        for found in self._order:
            if not found.when or _met(found, values):
                values[found.name] = choose(found)
        return values if self._given_order else {name: values[name] for name in self._parameters if name in values}

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Whether this is a configuration of the space: exactly the active parameters, each with a value of its region."""
        there = set()
        for found in self._order:
            if _met(found, config):
                there.add(found.name)
                if found.name not in config or not found.holds(config[found.name]):
                    return False
        return there == set(config)

    def combinations(self) -> Iterator[Config]:
        """All configurations, the last parameter changing fastest; one that a condition names goes before its dependants.

        Raises ArgumentError where a parameter has no list of values.
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
        """Number of different configurations; None where a parameter is continuous."""
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
        apart = kinds.distinct(conditions)  # values that make a difference to others; the rest is alike
        alike = int(found.count or 0) - len(apart)
        counted = sum(self._counted(place + 1, {**values, found.name: value}) for value in apart)
        return counted + (alike * self._counted(place + 1, {**values, found.name: _ANY_OTHER}) if alike else 0)

    def key(self, config: Mapping[str, Any]) -> str:
        """A string that is equal for equal configurations, such as for a dict's key."""
        return json.dumps(self.encode(config), sort_keys=True)

    def encode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration as JSON values; values of a list are replaced by their positions in it."""
        return {name: _encoded(self._parameters[name], value) for name, value in config.items()}

    def decode(self, encoded: Mapping[str, Any]) -> Config:
        """The configuration that ``encode`` was given."""
        return {name: _decoded(self._parameters[name], value) for name, value in encoded.items()}


def check_filled(space: Searchspace) -> None:
    """Raise ArgumentError if the space has no parameter."""
    if not len(space):
        raise ArgumentError("the search space is empty; give it a parameter: Searchspace(lr=('DOUBLE', [0.01, 0.1]))")


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The function's parameters by name; None of a builtin, which does not say."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether there is a ``**kwargs`` among them."""
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def check_function(space: Searchspace, function: Callable[..., Any]) -> None:
    """Raise ArgumentError if the function cannot be called with the configurations of the space.

    It must have each parameter of the space, with a default where that is not always there; ``**kwargs`` or a parameter
    ``hparams``, which is given the whole configuration, serves as well.
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
    """Whether ``values`` meet the condition of a parameter."""
    return all(
        name in values and any(same(values[name], wanted) for wanted in allowed) for name, allowed in found.when.items()
    )


def _in_order(parameters: Mapping[str, Parameter]) -> list[Parameter]:
    """The parameters so that each comes after those that its condition names, else in the order given.

    Raises ArgumentError for conditions that name no parameter, go in a circle, or never come true.
    """
    ordered: dict[str, Parameter] = {}
    # For each parameter what must hold of others for it to be there, theirs included.
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
                both = tuple(value for value in values if any(same(value, other) for other in needs.get(key, values)))
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
        raise ArgumentError(f"{found.name}: its when names {name!r}, which is no parameter; there are {there}")
    other = parameters[name]
    if isinstance(other, Interval):
        raise ArgumentError(
            f"{found.name}: its when names {name!r}, which is {other.kind}; it needs one with listed values"
        )
    for value in allowed:
        if not other.holds(value):
            raise ArgumentError(f"{found.name}: it is there when {name} is {value!r}, which is not of {other.region}")


def _sampled(name: str, given: Any) -> tuple[str, list[Any]]:
    """The parameter for random_search: two integers give INTEGER, with a float among them DOUBLE; must be ascending."""
    low, high = _two(name, given)
    if not _is_number(low) or not _is_number(high):
        raise ArgumentError(f"{name}: {given} was given; random search takes bounds that are integers or floats")
    if not low < high:
        raise ArgumentError(f"{name}: the lower bound {low} is not less than the upper bound {high}; swap them")
    return (kinds.INTEGER if isinstance(low, int) and isinstance(high, int) else kinds.DOUBLE), [low, high]


def _evolved(name: str, given: Any) -> tuple[str, list[Any]]:
    """The rule of differential_evolution: the first bound's type decides.

    Numbers may descend; two that are the same are a constant, and what is no number is a choice between the two. With a
    first bound that is an integer, the integers that lie between the two.
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
        raise ArgumentError(f"{name}: {given!r} was given; a boundary list has exactly two elements")
    return given[0], given[1]
