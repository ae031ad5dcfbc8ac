"""Notes on reported values that are no numbers: they would be stored without a word, and be missed at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hopsml.cluster.shared.plain import utf8

_SHOWN = 60  # characters of a value in a note


class ReportedValues:
    """Check of the values that one worker reports; each metric has at most one note of each kind."""

    def __init__(self) -> None:
        self._noted: set[tuple[str, str]] = set()

    def notes(self, given: Mapping[Any, Any], stored: Mapping[str, Any], step: int | None) -> Iterator[str]:
        """Yield a note for each metric that is NaN, or a container of several values, for the first time.

        Args:
            given: The values as they were reported.
            stored: The values as they are stored.
            step: Their step.
        """
        at = "" if step is None else f" at step {step}"
        for key, value in given.items():
            name = utf8(str(key))
            kept = stored.get(name)
            if isinstance(kept, float) and math.isnan(kept) and self._is_first("nan", name):
                yield f"{name} is NaN{at}: the training may have diverged, or its data contain NaN"
            elif isinstance(kept, str) and _is_container(value) and self._is_first("text", name):
                text = " ".join(kept.split())
                text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
                yield f"{name} is no number: {text} is stored as text; report one number, such as its mean"

    def _is_first(self, kind: str, name: str) -> bool:
        is_first = (kind, name) not in self._noted
        self._noted.add((kind, name))
        return is_first


def _is_container(value: Any) -> bool:
    """Return True for arrays, tensors, lists and the like, but not for text."""
    return not isinstance(value, str | bytes) and (hasattr(value, "__len__") or hasattr(value, "shape"))
