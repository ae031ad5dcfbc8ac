"""Standard set of callbacks for a ``fit`` inside a run (``hopsml.tensorflow.callbacks()``)."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any, Literal

from hopsml.cluster.shared.checks import accepts_older
from hopsml.cluster.worker.context import current
from hopsml.core.versions import uses_keras_2
from hopsml.errors import ArgumentError
from hopsml.training import collective
from hopsml.training.elastic.sampler import Scaling
from hopsml.training.tensorflow.fit.callbacks import CheckpointCallback, FitHooks, ReportCallback
from hopsml.training.tensorflow.fit.elastic_fit import ElasticCallback

if TYPE_CHECKING:
    from hopsml.training.large_batch.schedules import BatchSizeSchedule


@accepts_older(checkpoint_every="checkpoint_every_steps")
def callbacks(
    checkpoint_every_steps: int | Literal["epoch"] = "epoch",
    keep: int = 3,
    scaling: Scaling = "constant",
    reference_workers: int = 1,
    batch_size_schedule: BatchSizeSchedule | None = None,
) -> list[Any]:
    """Return callbacks for progress reports, TensorBoard events, and checkpoints or commits.

    In a run of fixed size they make checkpoints, from which ``resume=`` continues, each ``fit`` of the function at
    its own. With ``min_workers`` they make commits, by which ``fit`` follows the group as it grows and shrinks, from
    the exact sample on (Keras 3; tf_keras continues at the last epoch's checkpoint). Outside a worker, where there is
    no run directory, the list is empty, so that the same function runs alone.

    Args:
        checkpoint_every_steps: "epoch", or the number of steps from one checkpoint, or commit, to the next. With the
            default, commits are made as often as costs 1 % of the time.
        keep: number of checkpoints to retain, in a run of fixed size.
        scaling: treatment of global batch and learning rate when the group's size changes; see
            ``hopsml.elastic.Sampler``.
        reference_workers: number of workers for which batch and learning rate are meant; see
            ``hopsml.elastic.Sampler``.
        batch_size_schedule: a ``hopsml.large_batch.BatchSizeSchedule``, whose number of workers ``fit`` requests at each
            epoch; it requires ``scaling="linear"``.

    Raises:
        ArgumentError: ``scaling`` or a schedule is given in a run of fixed size, or a schedule without
            ``scaling="linear"``.
    """
    if batch_size_schedule is not None and scaling != "linear":
        raise ArgumentError(
            f"callbacks(batch_size_schedule=...) with scaling={scaling!r}: the global batch does not depend on the group; "
            'pass scaling="linear"'
        )
    context = current()
    if context is None:
        return []
    events = event_callbacks(context.logdir or str(context.events_dir))
    if context.commits is not None and not _is_legacy():
        if keep != 3:
            print(f"hopsml: keep={keep} has no effect under min_workers: checkpoints are made of commits", flush=True)
        every = None if checkpoint_every_steps == "epoch" else checkpoint_every_steps
        return [ReportCallback(), *events, ElasticCallback(every, scaling, reference_workers, batch_size_schedule)]
    if scaling != "constant":
        raise ArgumentError(f"callbacks(scaling={scaling!r}) needs a group that may change: min_workers=, and Keras 3")
    if context.commits is not None:
        print("hopsml: fit() of tf_keras goes on at the last epoch's checkpoint, newcomers wait for it", flush=True)
        collective.forbid_joining("fit() of tf_keras begins no epoch in its middle")
    return [ReportCallback(), *events, CheckpointCallback(every=checkpoint_every_steps, keep=keep)]


def event_callbacks(folder: str) -> list[Any]:
    """Return Keras's callback that writes TensorBoard's events; none if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        print(
            "hopsml: TensorBoard is not installed here, so no events are written: pip install tensorboard", flush=True
        )
        return []
    return [EventsCallback(folder)]


class EventsCallback:
    """TensorBoard callback of the Keras version that the model belongs to, known only when ``fit`` begins."""

    def __init__(self, folder: str) -> None:
        """Create the callback without the actual one of Keras.

        Args:
            folder: folder of the event files.
        """
        self._folder = folder
        self._own: Any = FitHooks()  # Keras 3 inspects the hooks before it sets the model

    def set_model(self, model: Any) -> None:
        """Create the actual callback; called by Keras before any other hook."""
        legacy = any(kind.__module__.startswith("tf_keras.") for kind in type(model).__mro__)
        if isinstance(self._own, FitHooks):
            self._own = _keras(legacy).callbacks.TensorBoard(log_dir=self._folder)
        self._own.set_model(model)

    def __getattr__(self, name: str) -> Any:
        """Return the actual callback's attribute, such as a hook."""
        if name == "_own":  # a copy in progress has none yet
            raise AttributeError(name)
        return getattr(self._own, name)


def _is_legacy() -> bool:
    """Return True if the user has chosen tf_keras."""
    return uses_keras_2(os.environ)


def _keras(legacy: bool) -> Any:
    """Import tf_keras or Keras 3."""
    if legacy:
        import tf_keras

        return tf_keras
    import keras

    return keras
