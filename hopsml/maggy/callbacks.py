"""Module ``maggy.callbacks``: callbacks that report to the search, for the Keras that the training function uses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError


def KerasBatchEnd(reporter: Any, metric: str = "loss") -> Any:
    """Return a Keras callback that reports ``metric`` after every batch."""
    return _callback(reporter, metric, "on_train_batch_end")


def KerasEpochEnd(reporter: Any, metric: str = "val_loss") -> Any:
    """Return a Keras callback that reports ``metric`` after every epoch."""
    return _callback(reporter, metric, "on_epoch_end")


def _callback(reporter: Any, metric: str, when: str) -> Any:
    step = 0

    def tell(self: Any, number: int, logs: Mapping[str, Any] | None = None) -> None:
        nonlocal step
        if metric not in (logs or {}):
            raise ArgumentError(f"Keras has no metric {metric!r} here; it has {', '.join(logs or {}) or 'none'}")
        reporter.broadcast(dict(logs or {})[metric], step)
        step += 1

    return type("Reporting", (_base(),), {when: tell})()


def _base() -> Any:
    """Return the Callback class of tf_keras if that was imported, else of Keras."""
    for name in ("tf_keras", "keras"):
        if name in sys.modules:
            return sys.modules[name].callbacks.Callback
    import keras

    return keras.callbacks.Callback
