"""``hopsml.tensorflow.callbacks()``: what nearly every ``fit`` of a run wants, in one word."""

from __future__ import annotations

import importlib.util
import os
from typing import Any, Literal

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.training import collective
from hopsml.training.elastic.sampler import Scaling
from hopsml.training.tensorflow.callbacks import CheckpointCallback, FitHooks, ReportCallback
from hopsml.training.tensorflow.elastic_fit import ElasticCallback


def callbacks(
    checkpoint_every: int | Literal["epoch"] = "epoch",
    keep: int = 3,
    scaling: Scaling = "constant",
    reference_workers: int = 1,
) -> list[Any]:
    """Progress to the driver, TensorBoard events, and what the training goes on from after a loss.

    In a run of fixed size these are checkpoints, which ``resume=`` continues from, each ``fit`` of the function at its own;
    with ``min_workers`` they are commits, by which ``fit`` follows the group as it grows and shrinks, from the exact sample
    on (Keras 3; tf_keras goes on at the last epoch's checkpoint).

    Args:
        checkpoint_every: "epoch", or the number of steps from one checkpoint, or commit, to the next. Commits are made
            as often as costs 1 % of the time where nothing is said.
        keep: how many checkpoints are kept, in a run of fixed size.
        scaling, reference_workers: of a group that may change: what becomes of global batch and learning rate with
            another size; see ``hopsml.elastic.Sampler``.

    Outside a worker, where there is no run directory, the list is empty: the same function runs alone.

    Raises ArgumentError for ``scaling`` in a run of fixed size.
    """
    context = current()
    if context is None:
        return []
    events = event_callbacks(context.logdir or str(context.events_dir))
    if context.commits is not None and not _is_legacy():
        if keep != 3:
            print(f"hopsml: keep={keep} has no effect under min_workers: checkpoints are made of commits", flush=True)
        every = None if checkpoint_every == "epoch" else checkpoint_every
        return [ReportCallback(), *events, ElasticCallback(every, scaling, reference_workers)]
    if scaling != "constant":
        raise ArgumentError(f"callbacks(scaling={scaling!r}) needs a group that may change: min_workers=, and Keras 3")
    if context.commits is not None:
        print("hopsml: fit() of tf_keras goes on at the last epoch's checkpoint, newcomers wait for it", flush=True)
        collective.keep_out("fit() of tf_keras begins no epoch in its middle")
    return [ReportCallback(), *events, CheckpointCallback(every=checkpoint_every, keep=keep)]


def event_callbacks(folder: str) -> list[Any]:
    """Keras's callback that writes TensorBoard's events; none where TensorBoard is missing: fit() would fail."""
    if importlib.util.find_spec("tensorboard") is None:
        print(
            "hopsml: TensorBoard is not installed here, so no events are written: pip install tensorboard", flush=True
        )
        return []
    return [EventsCallback(folder)]


class EventsCallback:
    """The callback for TensorBoard of the Keras that the model is of, which shows when ``fit`` begins."""

    def __init__(self, folder: str) -> None:
        """``folder``: of the event files."""
        self._folder = folder
        self._own: Any = FitHooks()  # Keras 3 looks at hooks before it says of which model they are

    def set_model(self, model: Any) -> None:
        """Called by Keras before it asks for anything else."""
        legacy = any(kind.__module__.startswith("tf_keras.") for kind in type(model).__mro__)
        if isinstance(self._own, FitHooks):
            self._own = _keras(legacy).callbacks.TensorBoard(log_dir=self._folder)
        self._own.set_model(model)

    def __getattr__(self, name: str) -> Any:
        """The hooks, and all else that Keras asks a callback for."""
        if name == "_own":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._own, name)


def _is_legacy() -> bool:
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def _keras(legacy: bool) -> Any:
    if legacy:
        import tf_keras

        return tf_keras
    import keras

    return keras
