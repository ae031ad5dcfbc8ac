"""Values of unquoted YAML scalars by the core schema of YAML 1.2, in which ``on``, ``yes`` and ``1:30`` are text.

    null   ~, null, or nothing        number  12, -3, 0x1f, 0o17, 1.5, 1e-4
    truth  true, false                text    everything else, and everything in quotes

Numbers with a leading zero are refused, as YAML 1.1 reads them as octal and 1.2 as decimal. So are infinite numbers and
NaN.
"""

from __future__ import annotations

import math
import re

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUTH = {**dict.fromkeys(("true", "True", "TRUE"), True), **dict.fromkeys(("false", "False", "FALSE"), False)}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_REAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LONGEST = 40  # most characters of a number, as Python converts very long ones slowly

Scalar = str | int | float | bool | None


def plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar. Raises ValueError for an ambiguous or unbounded number."""
    if text in _NULL:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError(
            f"{text:.40}: a leading zero means octal to some readers of YAML and nothing to others: leave it out, write "
            "0o17 for octal, or quotes for text"
        )
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text}: a number must be finite: write the largest that makes sense, or quotes for text")
    if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
        return int(_bounded(text), 0)
    if _REAL.fullmatch(text):
        if not math.isfinite(number := float(_bounded(text))):
            raise ValueError(f"{text}: a number must be finite: write a smaller one, or quotes for text")
        return number
    return text


def _bounded(text: str) -> str:
    """Return the text of a number, if it is not too long. Raises ValueError."""
    if len(text) > _LONGEST:
        raise ValueError(f"{text:.40}...: a number has at most {_LONGEST} characters: write quotes for text")
    return text
