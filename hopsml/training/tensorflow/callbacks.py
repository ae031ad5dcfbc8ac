"""Callbacks for ``fit`` of Keras 3 and tf_keras: checkpoints to go on from, and reports to the driver.

They derive from neither framework's class, so that one class serves both and importing it imports none.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from hopsml.cluster.context import current
from hopsml.errors import ArgumentError
from hopsml.training.tensorflow.checkpoints import Checkpointer

Logs = dict[str, Any] | None


class FitHooks:
    """Every hook that ``fit``, ``evaluate`` and ``predict`` call, doing nothing."""

    model: Any = None
    params: dict[str, Any] | None = None
    _supports_tf_logs = False
    _chief_worker_only = False  # all ranks run it; what only the chief does is decided inside

    def set_model(self, model: Any) -> None:
        """Called by Keras before training."""
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        """Called by Keras before training."""
        self.params = params

    def _nothing(self, *arguments: Any, **named: Any) -> None:
        """Called by Keras."""

    on_train_begin = on_train_end = on_test_begin = on_test_end = _nothing
    on_predict_begin = on_predict_end = on_epoch_begin = on_epoch_end = _nothing
    on_batch_begin = on_batch_end = on_train_batch_begin = on_train_batch_end = _nothing
    on_test_batch_begin = on_test_batch_end = on_predict_batch_begin = on_predict_batch_end = _nothing

    def _implements_train_batch_hooks(self) -> bool:  # asked by tf_keras
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


class CheckpointCallback(FitHooks):
    """Saves the model and its optimizer while ``fit`` runs, and restores them when it begins.

    Keras 3 goes on at the epoch that was restored. tf_keras does not let a callback choose the epoch:

        callback = hopsml.tensorflow.CheckpointCallback()
        model.fit(..., initial_epoch=callback.restore(model), callbacks=[callback])

    A checkpoint within an epoch holds the weights at that step; ``fit`` then repeats that epoch from its
    beginning, because a dataset's position is not part of it.
    """

    def __init__(
        self,
        every: int | Literal["epoch"] = "epoch",
        keep: int = 3,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        """``every``: "epoch", or the number of steps from one checkpoint to the next."""
        if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ArgumentError(f"every={every!r}: it must be 'epoch', or a number of steps of 1 or more")
        self._every = every
        self._keep = keep
        self._directory = directory
        self._checkpointer: Checkpointer | None = None
        self._saved_step = 0
        self._epoch = 0

    @property
    def initial_epoch(self) -> int:
        """The epoch to go on with, 0 before anything was restored."""
        return self._epoch

    def restore(self, model: Any) -> int:
        """Restore ``model``; the epoch to go on with. On all ranks; ``fit`` does it by itself otherwise."""
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(self._directory, self._keep, model=model)
            self._saved_step = self._checkpointer.restore_latest()
            self._epoch = int(self._checkpointer.notes.get("epoch", 0))
        return self._epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restore, and tell Keras 3 where to go on."""
        if self.restore(self.model):
            self.model._initial_epoch = self._epoch

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the epoch that a checkpoint within it has to repeat."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Save when ``every`` steps have been made since the last checkpoint."""
        if isinstance(self._every, int) and self._step() - self._saved_step >= self._every:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save, where an epoch is the measure."""
        self._epoch = epoch + 1
        if self._every == "epoch":
            self._save()

    def on_train_end(self, logs: Logs = None) -> None:
        """Save the last step, unless it is saved already."""
        if self._step() > self._saved_step:
            self._save()

    def _step(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def _save(self) -> Path:
        assert self._checkpointer is not None  # made when training began
        self._saved_step = self._step()
        return self._checkpointer.save(self._saved_step, epoch=self._epoch)


class ReportCallback(FitHooks):
    """Sends the chief's step, loss and metrics to the driver: at most once an interval, and every epoch."""

    def __init__(self, interval_s: float = 1.0) -> None:
        """``interval_s``: seconds between two messages within an epoch; 0 sends every step."""
        if not interval_s >= 0:
            raise ArgumentError(f"interval_s={interval_s!r}: it must be 0 or more seconds")
        self._interval_s = interval_s
        self._next = 0.0

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Send the running values if the interval is over."""
        if time.monotonic() >= self._next:
            self._send(logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Send the epoch's values, those of the validation among them."""
        self._send(logs)

    def _send(self, logs: Logs) -> None:
        self._next = time.monotonic() + self._interval_s
        context = current()
        if context is None or not context.is_chief:
            return
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        context.send({"kind": "report", "step": int(self.model.optimizer.iterations.numpy()), "metrics": metrics})
