"""Which strategy this process trains under, whether it spans several workers, and who leads them."""

from __future__ import annotations

import weakref
from typing import Any

from hopsml.cluster.worker.context import current

_latest: weakref.ref[Any] | None = None


def remember(strategy: Any) -> None:
    """Keep a weak reference to a strategy that was just built, for ``latest_strategy``."""
    global _latest
    _latest = weakref.ref(strategy)


def latest_strategy() -> Any:
    """The youngest MultiWorkerMirroredStrategy of this process that is in use; None if there is none."""
    return _latest() if _latest is not None else None


def in_group(strategy: Any) -> bool:
    """Whether ``strategy`` (or None) spans several workers by collectives."""
    import tensorflow as tf

    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and strategy.extended._in_multi_worker_mode()
        and (getattr(strategy.extended, "spans_group", False) or strategy.extended._num_workers > 1)
    )


def leads(strategy: Any) -> bool:
    """Whether this worker's files are kept: it is the chief of the strategy's group, or of the run."""
    if in_group(strategy):
        return bool(strategy.extended._is_chief)
    context = current()
    return context is None or context.is_chief
