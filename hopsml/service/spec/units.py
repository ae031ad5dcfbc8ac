"""Memory such as ``16g`` and durations such as ``2h``: text in a job file, integer MiB and seconds in Python.

A number without a unit is refused, as it is ambiguous (MiB or bytes, seconds or minutes).
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from hopsml.service.spec import limits

MEMORY_PATTERN = r"^[1-9][0-9]{0,8}[mgt]$"
DURATION_PATTERN = r"^[1-9][0-9]{0,8}[smhd]$"
_MIB = {"m": 1, "g": 1 << 10, "t": 1 << 20}
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def memory_mib(text: object) -> int:
    """Parse ``512m``, ``16g`` or ``1t`` to MiB. Raises ValueError for other texts, and above ``limits.MEMORY_MIB``."""
    if not isinstance(text, str) or not re.fullmatch(MEMORY_PATTERN, text):
        raise ValueError("memory is a whole number with a unit, m (MiB), g (GiB) or t (TiB): write 512m or 16g")
    if (found := int(text[:-1]) * _MIB[text[-1]]) > limits.MEMORY_MIB:
        raise ValueError(f"a worker has at most {memory_text(limits.MEMORY_MIB)}: ask for less, with more workers")
    return found


def memory_text(mib: int) -> str:
    """Return the shortest text that ``memory_mib`` parses to this size."""
    unit = max((unit for unit, size in _MIB.items() if mib % size == 0), key=_MIB.__getitem__)
    return f"{mib // _MIB[unit]}{unit}"


def duration_s(text: object) -> int:
    """Parse ``90s``, ``15m``, ``2h`` or ``1d`` to seconds. Raises ValueError for other texts, and above a leap year."""
    if not isinstance(text, str) or not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError("a duration is a whole number with a unit, s, m (minutes), h or d: write 90s, 15m or 2h")
    if (found := int(text[:-1]) * _SECONDS[text[-1]]) > limits.DURATION_S:
        raise ValueError(f"a duration is at most {duration_text(limits.DURATION_S)}: leave it out for no limit")
    return found


def duration_text(seconds: int) -> str:
    """Return the shortest text that ``duration_s`` parses to this duration."""
    unit = max((unit for unit, size in _SECONDS.items() if seconds % size == 0), key=_SECONDS.__getitem__)
    return f"{seconds // _SECONDS[unit]}{unit}"


Memory = Annotated[
    int,
    BeforeValidator(memory_mib),
    PlainSerializer(memory_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": MEMORY_PATTERN}),
]
Duration = Annotated[
    int,
    BeforeValidator(duration_s),
    PlainSerializer(duration_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
