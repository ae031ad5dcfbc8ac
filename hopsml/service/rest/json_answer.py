"""JSON responses that browsers can read: numbers that are not finite are strings."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response


class JsonAnswer(Response):
    """Response of strict JSON, which is not cached, made of any record of ``browse`` or of plain values."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200) -> None:
        super().__init__(content, status_code, {"cache-control": "no-store"})

    def render(self, content: Any) -> bytes:
        """Encode the content as JSON.

        msgspec would write NaN as null, but a diverged loss must be distinguished from a missing one.
        """
        return msgspec.json.encode(_told(msgspec.to_builtins(content)))


def _told(value: Any) -> Any:
    """Replace numbers that are not finite by the strings "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return value
