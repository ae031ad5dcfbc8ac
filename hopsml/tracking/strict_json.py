"""JSON that every reader takes, on one line: what commands and results print for programs.

Python writes a loss that diverged as NaN, and reads it so; JavaScript, jq and strict parsers refuse the whole line. Here it
is the text "NaN", an overflow "Infinity" or "-Infinity": ``float()``, as JavaScript's ``Number()``, makes numbers of them
again. The files of a run directory, which Python reads, keep the numbers.
"""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(content: Any, ascii_only: bool = False) -> str:
    """The content on one line; ``ascii_only``: with an escape for each other character. TypeError where JSON has no form."""
    return json.dumps(_finite(content), ensure_ascii=ascii_only, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
