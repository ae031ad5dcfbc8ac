"""Parsing of the time and level of a log line; pure."""

from __future__ import annotations

import functools
import re
from datetime import datetime

LEVELS = ("debug", "info", "warning", "error")
_TIME = re.compile(rb"\D{0,3}(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_HEAD = 160  # bytes of a line that are searched for its level
_LEVEL = re.compile(
    rb"\b(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|^([IWEF])\d{4} "
    rb"|^(Traceback \(most recent call last\))|^(\w*(?:Error|Exception))\b"
)
_OF_WORD = {b"DEBUG": 0, b"INFO": 1, b"WARN": 2, b"WARNING": 2, b"ERROR": 3, b"CRITICAL": 3, b"FATAL": 3}
_OF_LETTER = {b"I": 1, b"W": 2, b"E": 3, b"F": 3}


def time_of(line: bytes) -> float | None:
    """Return the time at the beginning of a line, in seconds since 1970; None if there is none."""
    found = _TIME.match(line)
    if not found:
        return None
    whole = _seconds(*found.groups()[:6])
    return whole if whole is None or not found[7] else whole + float(b"0." + found[7])


@functools.lru_cache(1024)
def _seconds(*parts: bytes) -> float | None:
    """Return the time of day in seconds since 1970; cached, as many lines share a second and time zones are slow."""
    year, month, day, hour, minute, second = map(int, parts)
    try:
        return datetime(year, month, day, hour, minute, second).timestamp()
    except (ValueError, OverflowError):  # an invalid date, such as the 31st of February
        return None


def level_of(line: bytes) -> int | None:
    """Return the index in ``LEVELS`` of the level that a line names near its beginning; None if it names none."""
    found = _LEVEL.search(line[:_HEAD])
    if not found:
        return None
    if found[1]:
        return _OF_WORD[found[1]]
    return _OF_LETTER[found[2]] if found[2] else 3
