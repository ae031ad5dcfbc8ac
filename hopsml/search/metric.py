"""Which of several values is the metric, and whether that is a number; the same for all who ask."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

METRIC = "metric"  # the name of a number that has none


def name_of(asked: str, given: Collection[str] = ()) -> str:
    """The name of the metric: the one that was ``asked`` for, else the only one that is ``given``, else "metric".

    It need not be among the given ones, the names in what a function has reported or returned.
    """
    return asked or (next(iter(given)) if len(given) == 1 else METRIC)


def finite(value: Any) -> float | None:
    """The value where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def why_no_value(asked: str, outputs: Any, value: Any) -> tuple[str, bool]:
    """Why a trial that returned has no score, and whether it is a fault of the code rather than of the numbers.

    ``outputs``: what its function returned; ``value``: what was made of that.
    """
    key, found = name_of(asked), value
    if isinstance(outputs, dict):
        key = name_of(asked, outputs)
        if key not in outputs:
            names = ", ".join(map(repr, outputs)) or "nothing"
            return (
                f"the metric {key!r} is not in what the function returned ({names}): return it, or name one of those",
                True,
            )
        found = outputs[key]
    elif outputs is not None and found is None:
        found = outputs
    if found is None:
        return f"the function neither returned nor reported the metric {key!r}: a search needs it", True
    if isinstance(found, float) and not math.isfinite(found):
        return f"the metric {key!r} is {found}, which is no finite number", False
    return f"the metric {key!r} is {found!r:.100}, a {type(found).__name__}: it must be a number", True
