"""Extraction of the searched metric from the value that a trial's function returned."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.worker.returned import plain
from hopsml.errors import ArgumentError
from hopsml.search.metric import name_of


def score_of(value: Any, metric: str) -> float:
    """Return the searched number, which may be NaN, from a training function's return value.

    Args:
        value: a number, or a dict with numbers.
        metric: key in the returned dict, or any name if a single number was returned; "" accepts a single number, or
            a dict with one entry.

    Raises:
        ArgumentError: there is no such number; the error describes what the function should return.
    """
    if isinstance(value, dict):
        fields = {str(key): item for key, item in value.items()}
        wanted = name_of(metric, fields)
        if wanted not in fields:
            raise ArgumentError(
                f"the training function returned {', '.join(fields) or 'an empty dict'}, but the search is about "
                f"'{wanted}': return it, or name one of those as the metric"
            )
        found, name = fields[wanted], f"'{wanted}'"
    else:
        found, name = value, "a value"
    number = as_number(found)
    if number is None:
        text = "nothing" if found is None else f"{name} of type {type(found).__name__}: {found!r:.80}"
        raise ArgumentError(f"the training function returned {text}; a search needs a number, or a dict with one")
    return number


def as_number(value: Any) -> float | None:
    """Return a number, numpy scalar or one-element tensor as a float; None for all else, text and bools included."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number)
