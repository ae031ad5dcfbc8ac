"""JSON on one line that every parser accepts, for output of commands and results that programs read.

Python writes a loss that diverged as NaN, and can read it; JavaScript, jq and strict parsers reject the whole line.
Here it is the text "NaN", an overflow "Infinity" or "-Infinity": ``float()``, like JavaScript's ``Number()``, converts
them to numbers again. The files of a run directory, which Python reads, contain the numbers.
"""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(content: Any, ascii_only: bool = False) -> str:
    """Return the content as one line of JSON; raises TypeError for values that JSON cannot represent.

    ``ascii_only``: escape all other characters.
    """
    return json.dumps(_finite(content), ensure_ascii=ascii_only, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
