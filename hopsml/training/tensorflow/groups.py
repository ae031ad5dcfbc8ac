"""Present strategy of this process: access to it, its extent over workers, and the worker that leads."""

from __future__ import annotations

import weakref
from typing import Any

from hopsml.cluster.worker.context import current

_latest: weakref.ref[Any] | None = None


def remember(strategy: Any) -> None:
    """Store a weak reference to a strategy that was just built, for ``latest_strategy``."""
    global _latest
    _latest = weakref.ref(strategy)


def latest_strategy() -> Any:
    """Return the newest MultiWorkerMirroredStrategy of this process that is in use; None if there is none."""
    return _latest() if _latest is not None else None


def in_group(strategy: Any) -> bool:
    """Return True if ``strategy`` trains with several workers through collectives; False for None."""
    import tensorflow as tf

    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and strategy.extended._in_multi_worker_mode()
        and (getattr(strategy.extended, "spans_group", False) or strategy.extended._num_workers > 1)
    )


def leads(strategy: Any) -> bool:
    """Return True if this worker's files are retained: it is the chief of the strategy's group, or of the run."""
    if in_group(strategy):
        return bool(strategy.extended._is_chief)
    context = current()
    return context is None or context.is_chief
