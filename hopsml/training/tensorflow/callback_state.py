"""What callbacks of ``fit`` have counted so far, which a newcomer is given: it has not seen what they counted.

``EarlyStopping`` would otherwise stop some workers and not others, and ``ReduceLROnPlateau`` lower the rate of some alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DECIDING = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint", "BackupAndRestore")

State = tuple[str, Any]  # of one callback: the name of its class, and what it has counted


def read(callbacks: Sequence[Any]) -> list[State]:
    """What each has counted: its ``state_dict()``, or, of those of Keras's that decide by it, its numbers and arrays."""
    return [(type(one).__name__, _counted(one)) for one in callbacks]


def give(callbacks: Sequence[Any], states: Sequence[State]) -> None:
    """Have each go on from what its counterpart, at the same place in the list and of the same class, has counted."""
    for one, (kind, counted) in zip(callbacks, states, strict=False):
        if type(one).__name__ != kind:
            continue
        if _has_state_dict(one):
            one.load_state_dict(counted)
        elif _decides(one):
            vars(one).update(counted)


def _counted(callback: Any) -> Any:
    if _has_state_dict(callback):
        return callback.state_dict()
    return {name: value for name, value in vars(callback).items() if _is_plain(value)} if _decides(callback) else {}


def _decides(callback: Any) -> bool:
    return any(kind.__name__ in DECIDING for kind in type(callback).__mro__)


def _has_state_dict(callback: Any) -> bool:
    return callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None))


def _is_plain(value: Any) -> bool:
    """A number or None, an array, or a list of arrays, such as the best weights."""
    import numpy as np

    if isinstance(value, list):
        return all(isinstance(one, np.ndarray) for one in value)
    return value is None or isinstance(value, (bool, int, float, np.generic, np.ndarray))
