"""Transfer of the counters of ``fit`` callbacks to a joining worker, which has not seen what they counted.

Otherwise ``EarlyStopping`` would stop some workers and not others, and ``ReduceLROnPlateau`` would lower the rate on
some only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DECIDING = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint", "BackupAndRestore")

State = tuple[str, Any]  # of one callback: the name of its class, and its counters


def read(callbacks: Sequence[Any]) -> list[State]:
    """Return each callback's counters: its ``state_dict()``, or the plain attributes of Keras's own callbacks.

    Only Keras's callbacks that decide by their counters (``DECIDING``) are included.
    """
    return [(type(one).__name__, _counted(one)) for one in callbacks]


def give(callbacks: Sequence[Any], states: Sequence[State]) -> None:
    """Restore each callback's counters from those of its counterpart.

    The counterpart has the same position in the list and the same class.
    """
    for one, (kind, counted) in zip(callbacks, states, strict=False):
        if type(one).__name__ != kind:
            continue
        if _has_state_dict(one):
            one.load_state_dict(counted)
        elif _decides(one):
            vars(one).update(counted)


def _counted(callback: Any) -> Any:
    """Return the counters of one callback, empty if it has none."""
    if _has_state_dict(callback):
        return callback.state_dict()
    return {name: value for name, value in vars(callback).items() if _is_plain(value)} if _decides(callback) else {}


def _decides(callback: Any) -> bool:
    """Return True for a callback of Keras that decides by what it has counted."""
    return any(kind.__name__ in DECIDING for kind in type(callback).__mro__)


def _has_state_dict(callback: Any) -> bool:
    """Return True if a callback has ``state_dict`` and ``load_state_dict``."""
    return callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None))


def _is_plain(value: Any) -> bool:
    """Return True for a number or None, an array, or a list of arrays, such as the best weights."""
    import numpy as np

    if isinstance(value, list):
        return all(isinstance(one, np.ndarray) for one in value)
    return value is None or isinstance(value, (bool, int, float, np.generic, np.ndarray))
