"""Parsing and validation of numbers in a URL's query."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    from starlette.requests import Request

LARGEST = 1 << 53  # largest integer that JavaScript represents exactly


def whole(request: Request, name: str, default: int, lowest: int = -LARGEST) -> int:
    """Return an integer of the query, or the default if it is absent. Raises ArgumentError."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if not lowest <= value <= LARGEST:
        raise ArgumentError(
            f"{name}={text[:40]!r}: it is a whole number from {lowest} to {LARGEST}; leave it out for {default}"
        )
    return value


def optional_whole(request: Request, name: str) -> int | None:
    """Return a non-negative integer of the query, or None if it is absent. Raises ArgumentError."""
    return whole(request, name, 0, 0) if request.query_params.get(name) else None


def optional_number(request: Request, name: str) -> float | None:
    """Return a finite number of the query, or None if it is absent. Raises ArgumentError."""
    text = request.query_params.get(name, "")
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise ArgumentError(f"{name}={text[:40]!r}: it is a number; leave it out for none")
    return value
