"""Conversion of a configuration into the training function's arguments, by the names in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hopsml.errors import ArgumentTypeError
from hopsml.search.space.space import parameters_of, takes_any

WHOLE, REPORTER, BUDGET = "hparams", "reporter", "budget"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def bind(
    function: Callable[..., Any], fixed: Mapping[str, Any], config: Mapping[str, Any], reporter: Any
) -> dict[str, Any]:
    """Return the keyword arguments of the training function for one trial.

    A parameter named like a hyper-parameter gets its value, ``hparams`` the whole configuration as a dict,
    ``reporter`` the reporter. A ``budget`` is left out if the function has no parameter for it.

    Args:
        function: the training function.
        fixed: arguments that are the same in every trial.
        config: the trial's hyper-parameters.
        reporter: the trial's reporter.

    Raises:
        ArgumentTypeError: a value has no parameter, or a parameter has no value.
    """
    given = {**fixed, **config}
    names = parameters_of(function)
    if names is None:
        return given
    offered = {WHOLE: dict(config), REPORTER: reporter}
    extra = {name: value for name, value in offered.items() if name in names and name not in given}
    if takes_any(names):
        return {**given, **extra}
    refuse(function, config)
    bound = {**{name: value for name, value in given.items() if name in names}, **extra}
    missing = [
        name
        for name, parameter in names.items()
        if parameter.kind in _BY_NAME and parameter.default is inspect.Parameter.empty and name not in bound
    ]
    if missing:
        raise ArgumentTypeError(
            f"{_name(function)} needs {', '.join(missing)}, which the search space does not have; it has "
            f"{', '.join(config) or 'nothing'}: add the names to the space, or give the parameters defaults"
        )
    return bound


def refuse(function: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise ArgumentTypeError if the function has no parameter for one of these hyper-parameters."""
    parameters = parameters_of(function)
    if parameters is None or WHOLE in parameters or takes_any(parameters):
        return
    known = [name for name, parameter in parameters.items() if parameter.kind in _BY_NAME]
    strangers = [name for name in names if name not in known and name != BUDGET]
    if strangers:
        raise ArgumentTypeError(
            f"{_name(function)} has no parameter {', '.join(strangers)}; it has {', '.join(known) or 'none'}: add it, or a "
            "parameter hparams, which gets the whole configuration"
        )


def _name(function: Callable[..., Any]) -> str:
    """Return a function's name for messages."""
    return str(getattr(function, "__name__", repr(function)))
