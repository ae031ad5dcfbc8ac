"""``hopsml.tensorflow.callbacks()``: what nearly every ``fit`` of a run wants, in one word."""

from __future__ import annotations

import os
from typing import Any, Literal

from hopsml.cluster.context import current
from hopsml.training.tensorflow.callbacks import CheckpointCallback, ReportCallback


def callbacks(checkpoint_every: int | Literal["epoch"] = "epoch", keep: int = 3) -> list[Any]:
    """Progress to the driver, TensorBoard events, and checkpoints that ``resume=`` continues from.

    Args:
        checkpoint_every: "epoch", or the number of steps from one checkpoint to the next.
        keep: how many checkpoints are kept.

    Outside a worker, where there is no run directory, the list is empty: the same function runs alone.
    """
    context = current()
    if context is None:
        return []
    events = _keras().callbacks.TensorBoard(log_dir=context.logdir or str(context.events_dir))
    return [ReportCallback(), events, CheckpointCallback(every=checkpoint_every, keep=keep)]


def _keras() -> Any:
    """The Keras that the user's code gets from ``tf.keras``."""
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        import tf_keras

        return tf_keras
    import keras

    return keras
