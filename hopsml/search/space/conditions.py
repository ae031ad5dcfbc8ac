"""Conditional parameters: which are active, and the order in which that can be decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.space.parameter import Interval, Parameter, same


def met(found: Parameter, values: Mapping[str, Any]) -> bool:
    """Whether ``values`` meet the condition of a parameter."""
    return all(
        name in values and any(same(values[name], wanted) for wanted in allowed) for name, allowed in found.when.items()
    )


def in_order(parameters: Mapping[str, Parameter]) -> list[Parameter]:
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
