"""Selection and validation of the metric's value, shared by all components of a search."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

METRIC = "metric"  # name of a metric that is returned as a plain number


def name_of(asked: str, given: Collection[str] = ()) -> str:
    """Return the name of the metric: ``asked`` if set, else the only name in ``given``, else "metric".

    Args:
        asked: name that the user gave; "" for none. It need not be in ``given``.
        given: names in what a function has reported or returned.
    """
    return asked or (next(iter(given)) if len(given) == 1 else METRIC)


def finite(value: Any) -> float | None:
    """Return the value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def why_no_value(asked: str, outputs: Any, value: Any) -> tuple[str, bool]:
    """Explain why a trial that returned has no score.

    Args:
        asked: name of the metric that the user gave; "" for none.
        outputs: what the trial's function returned.
        value: the metric's value that was derived from it.

    Returns:
        The error message, and whether the fault lies in the code rather than in the numbers.
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
