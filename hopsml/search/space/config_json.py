"""Configurations as JSON and back; tuples are preserved, and functions and objects are resolved by their names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

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


def marked(value: Any) -> Any:
    """Return a copy of ``value`` that JSON can represent: tuples and named objects become tagged dicts."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {key: marked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [marked(item) for item in value]
    if isinstance(value, tuple):
        return {_TUPLE: [marked(item) for item in value]}
    if isinstance(value, NameOnly):
        return {_VALUE: str(value)}
    if isinstance(value, bool | int | float | str):  # a subclass, such as an IntEnum
        return value
    tolist = getattr(value, "tolist", None)  # numpy's scalars and arrays
    if callable(tolist) and not isinstance(value, type):
        return marked(tolist())
    return {_VALUE: name_of(value)}


def to_line(value: Any) -> str:
    """Return ``value`` as one line of JSON, for ``reader``."""
    return json.dumps(marked(value), separators=(",", ":"))


def reader(values: Iterable[Any]) -> Callable[[str], Any]:
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
