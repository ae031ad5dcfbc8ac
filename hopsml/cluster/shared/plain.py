"""What a training function returned, as it is recorded: dicts of plain values."""

from __future__ import annotations

from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.metric import METRIC


def utf8(text: str) -> str:
    """The same text with a "?" for what UTF-8 cannot hold, such as the bytes of a strange file name."""
    return text.encode(errors="replace").decode()


def outputs(value: Any, log: str, metric_key: str | None = None) -> dict[str, Any]:
    """The returned value as the dict that is recorded: a number becomes ``metric``, nothing ``metric: None``."""
    fields = value if isinstance(value, dict) else {METRIC: _number(value)}
    recorded = {str(key): item for key, item in fields.items()}
    if metric_key is not None and metric_key not in recorded:
        raise ArgumentError(
            f"metric_key='{metric_key}' is not among what the training function returned: {', '.join(recorded)}"
        )
    recorded["log"] = log
    return recorded


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value


def as_json(value: Any) -> Any:
    """The same for a JSON file: numpy numbers and arrays as Python's, anything else as text."""
    if isinstance(value, dict):
        return {utf8(str(key)): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, (bool, int, float, type(None))):
        return value
    if hasattr(value, "tolist"):
        return as_json(value.tolist())
    return utf8(str(value))
