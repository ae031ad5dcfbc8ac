"""Checks of single argument values, each of which returns the value in its type, and older names of arguments.

The checks raise ArgumentError (a ValueError) or ArgumentTypeError (a TypeError), which name the value, the rule and the
remedy.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from hopsml.errors import ArgumentError, ArgumentTypeError

_Value = TypeVar("_Value")
_Parameters = ParamSpec("_Parameters")
_noted: set[tuple[str, str]] = set()  # older and present names that this process has printed
IMPLEMENTATIONS = ("auto", "tensorflow", "hopsml")
PREFLIGHT_MODES = ("off", "warn", "enforce", "strict")
COMPRESSIONS = ("fp16", "bf16", "topk", "powersgd")
REDUCTIONS = ("sum", "adasum")
LONGEST_EVALUATION = 60  # characters of an evaluation's name
BACKENDS = ("auto", "hopsml", "gloo", "nccl")


def whole_number(name: str, value: Any, at_least: int = 1) -> int:
    """Return the value as an int of at least ``at_least``; NumPy integers are accepted, Booleans are not."""
    try:
        number = operator.index(value)
        if type(value).__name__ in ("bool", "bool_"):
            raise TypeError
    except TypeError:
        raise ArgumentTypeError(
            f"{name}={value!r} is a {type(value).__name__}; it must be a whole number, at least {at_least}"
        ) from None
    if number < at_least:
        raise ArgumentError(f"{name}={value} is too small; it must be at least {at_least}")
    return number


def seconds(name: str, value: Any, above: float = 0.0) -> float:
    """Return a duration in seconds, greater than ``above``, as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a number of seconds")
    if not value > above:
        raise ArgumentError(f"{name}={value!r} is too small; it must be greater than {above:g} seconds")
    return float(value)


def merge_scope(name: str, value: Any) -> int | str:
    """Return the number of gradients merged into one collective: 1 for no merging, n for up to n, "all" for all."""
    if isinstance(value, str) and value.isdecimal():  # as it comes from a command line
        value = int(value)
    if value == "all":
        return "all"
    if isinstance(value, str):
        raise ArgumentError(f"{name}={value!r}: it must be a whole number, 1 or more, or 'all'")
    return whole_number(name, value)


def implementation(name: str, value: Any) -> str:
    """Return the library whose collectives reduce gradients, one of ``IMPLEMENTATIONS``."""
    if value not in IMPLEMENTATIONS:
        raise ArgumentError(f"{name}={value!r}: it must be one of {', '.join(map(repr, IMPLEMENTATIONS))}")
    return str(value)


def backend(name: str, value: Any) -> str:
    """Return the backend of torch's process group, one of ``BACKENDS``."""
    if value not in BACKENDS:
        raise ArgumentError(f"{name}={value!r}: it must be one of {', '.join(map(repr, BACKENDS))}")
    return str(value)


def tuning_record(name: str, value: Any) -> bool | str:
    """Return the tuning record to use: True for the project's own, False for none, a URL or path for another."""
    if isinstance(value, bool):
        return value
    return text(name, value)


def ring_order(name: str, value: Any) -> tuple[int | str, ...]:
    """Return a ring order of hosts or of ranks, each named once, as a tuple; an empty one for None."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple, range)):
        raise ArgumentTypeError(
            f"{name}={value!r:.80} is a {type(value).__name__}; it must be a list of hosts or of ranks"
        )
    found = [one if isinstance(one, str) else whole_number(name, one, at_least=0) for one in value]
    if len({type(one) for one in found}) > 1 or len(set(found)) < len(found):
        raise ArgumentError(f"{name}={found}: it must be a list of hosts, or one of ranks, each named once")
    return tuple(found)


def preflight(name: str, value: Any) -> str:
    """Return the preflight mode of slots, one of ``PREFLIGHT_MODES``. Raises ArgumentError for other values."""
    if value not in PREFLIGHT_MODES:
        raise ArgumentError(f"{name}={value!r}: it must be one of {', '.join(map(repr, PREFLIGHT_MODES))}")
    return str(value)


def compression(name: str, value: Any) -> str:
    """Return the compression of gradients for the transfer, one of ``COMPRESSIONS``."""
    if value not in COMPRESSIONS:
        raise ArgumentError(f"{name}={value!r}: it must be None, or one of {', '.join(map(repr, COMPRESSIONS))}")
    return str(value)


def reduction(name: str, value: Any) -> str:
    """Return the reduction of the workers' gradients, one of ``REDUCTIONS``."""
    if value not in REDUCTIONS:
        raise ArgumentError(f"{name}={value!r}: it must be one of {', '.join(map(repr, REDUCTIONS))}")
    return str(value)


def share(name: str, value: Any) -> float:
    """Return a share of a whole: a float greater than 0 and less than 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a number, such as 0.01")
    if not 0 < value < 1:
        raise ArgumentError(f"{name}={value!r}: it must be a share, greater than 0 and less than 1, such as 0.01")
    return float(value)


def order(name: str, value: Any) -> str:
    """Return the order in which several are handled, "oldest" or "newest" first."""
    return _one_of(("oldest", "newest"), name, value)


def direction(name: str, value: Any) -> str:
    """Return the direction in which a metric improves, "max" or "min", given in any case."""
    return _one_of(("max", "min"), name, value.lower() if isinstance(value, str) else value)


def _one_of(known: tuple[str, ...], name: str, value: Any) -> str:
    """Return the value as a str if it is one of ``known``."""
    if value not in known:
        raise ArgumentError(f"{name}={value!r}: it must be one of {', '.join(map(repr, known))}")
    return str(value)


def switch(name: str, value: Any) -> bool:
    """Return the truth value of any object."""
    return bool(value)


def or_none(check: Callable[[str, Any], _Value]) -> Callable[[str, Any], _Value | None]:
    """Return the same check for an argument that may also be None."""
    return lambda name, value: None if value is None else check(name, value)


def description(name: str, value: Any) -> str:
    """Check the value of the argument ``name``, a free text such as a run's description; return it, "" for None."""
    return "" if value is None else text(name, value)


def text(name: str, value: Any) -> str:
    """Return the value if it is a str."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name}={value!r:.80} is a {type(value).__name__}; it must be text")
    return value


def evaluation_name(name: str, value: Any) -> str:
    """Return the name of an evaluation if it is valid, also as a folder's name; else raise ArgumentError."""
    plain = text(name, value).replace("-", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum()) or len(value) > LONGEST_EVALUATION or value.startswith("step-"):
        raise ArgumentError(
            f"{name}={value!r:.80}: an evaluation's name has letters, digits, - and _, at most {LONGEST_EVALUATION} of "
            "them, and does not begin with 'step-'"
        )
    return str(value)


def model_name(name: str, value: Any) -> str:
    """Return a valid name for a model registry; MLflow refuses some characters in URLs and queries."""
    if not text(name, value).strip() or any(letter in value for letter in "/:'\"%"):
        raise ArgumentError(f"{name}={value!r}: the name of a model must not be empty, or contain any of / : ' \" %")
    return str(value)


def modules(name: str, value: Any) -> tuple[str, ...]:
    """Return a tuple of module names; a single str is refused, since it would be a list of letters."""
    if isinstance(value, (list, tuple)) and all(isinstance(module, str) for module in value):
        return tuple(value)
    raise ArgumentTypeError(f"{name}={value!r:.80} must be a list of module names, for instance ['numpy']")


def variables(name: str, value: Any) -> dict[str, str]:
    """Return environment variables whose names and values the operating system accepts, as a dict."""
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"{name}={value!r:.80} is a {type(value).__name__}; it must be a dict of variables")
    for variable, content in value.items():
        if not isinstance(variable, str) or not isinstance(content, str):
            raise ArgumentTypeError(f"{name}[{variable!r:.80}]={content!r:.80}: name and value must both be str")
        if not variable or "=" in variable or "\0" in variable + content:
            raise ArgumentError(
                f"{name}[{variable!r:.80}]: the name of a variable must not be empty or contain '=', and neither "
                "name nor value can contain NUL"
            )
    return dict(value)


def present_names(given: Mapping[str, Any], older: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments under their present names, and print one line in a process for each older name.

    Args:
        given: arguments of a call by name.
        older: present names by older ones.

    Raises:
        ArgumentTypeError: an argument is given under both names.
    """
    for name, present in older.items():
        if name in given and present in given:
            raise ArgumentTypeError(f"{name} and {present} are the same argument; omit {name}, the older name")
        if name in given and (name, present) not in _noted:
            _noted.add((name, present))
            print(f"hopsml: the argument {name} is now named {present}", file=sys.stderr, flush=True)
    return {older.get(name, name): value for name, value in given.items()}


def accepts_older(**older: str) -> Callable[[Callable[_Parameters, _Value]], Callable[_Parameters, _Value]]:
    """Return a decorator that accepts older names of keyword arguments: ``@accepts_older(old="present")``."""

    def decorate(function: Callable[_Parameters, _Value]) -> Callable[_Parameters, _Value]:
        @functools.wraps(function)
        def call(*positional: _Parameters.args, **named: _Parameters.kwargs) -> _Value:
            return function(*positional, **present_names(named, older))

        return call

    return decorate


def is_spark_session(value: object) -> bool:
    """Return True for a SparkSession or SparkContext, the first argument in the predecessor's first releases."""
    return type(value).__module__.startswith("pyspark.") and type(value).__name__ in ("SparkSession", "SparkContext")
