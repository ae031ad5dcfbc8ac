"""JSON as browsers take it: what is no finite number is a text."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response


class JsonAnswer(Response):
    """Any record of ``browse``, or plain values, as strict JSON that nobody keeps."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200) -> None:
        super().__init__(content, status_code, {"cache-control": "no-store"})

    def render(self, content: Any) -> bytes:
        """The content's bytes. msgspec would write NaN as null: a diverged loss must be told from none."""
        return msgspec.json.encode(_told(msgspec.to_builtins(content)))


def _told(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return value
