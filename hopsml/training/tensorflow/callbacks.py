"""Callbacks for ``fit`` of Keras 3 and tf_keras: checkpoints to go on from, and reports to the driver.

They derive from neither framework's class, so that one class serves both and importing it imports none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.training.report import ProgressSender
from hopsml.training.tensorflow import fits, optimizers
from hopsml.training.tensorflow.checkpoints import Checkpointer

Logs = dict[str, Any] | None


class FitHooks:
    """Base of callbacks for Keras 3 and tf_keras: all hooks of ``fit``, ``evaluate``, ``predict``, doing nothing."""

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

    def _implements_train_batch_hooks(self) -> bool:  # asked by tf_keras, which refuses them with parameter servers
        return not _with_servers()

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def _with_servers() -> bool:
    """Whether ``fit`` of tf_keras hands its steps to workers: it calls back at the end of an epoch alone."""
    import tensorflow as tf

    return bool(getattr(tf.distribute.get_strategy(), "_should_use_with_coordinator", False))


class CheckpointCallback(FitHooks):
    """Saves the model and its optimizer while ``fit`` runs, and restores them when it begins.

    Keras 3 goes on at the epoch that was restored. tf_keras does not let a callback choose the epoch:

        callback = hopsml.tensorflow.CheckpointCallback()
        model.fit(..., initial_epoch=callback.restore(model), callbacks=[callback])

    A checkpoint within an epoch holds the weights at that step; ``fit`` then repeats that epoch from its
    beginning, because a dataset's position is not part of it.

    A function may call ``fit`` several times, always in the same order: each has checkpoints of its own, and after a restart
    those that were complete get their weights and history back and train no more. A ``directory`` that is given belongs to
    every ``fit`` that it is given to.
    """

    def __init__(
        self, every: int | Literal["epoch"] = "epoch", keep: int = 3, directory: str | os.PathLike[str] | None = None
    ) -> None:
        """``every``: "epoch", or the number of steps from one checkpoint to the next.

        ``directory``: default the run's, where each ``fit`` of the function has a place of its own.
        """
        if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ArgumentError(f"every={every!r}: it must be 'epoch', or a number of steps of 1 or more")
        self._every = every
        self._keep = keep
        self._directory = directory
        self._checkpointer: Checkpointer | None = None
        self._number = 0  # of the fit among those of the function, where the directory is the run's
        self._begun = False  # the fit that the checkpointer was made for
        self._saved_step = 0
        self._epoch = 0
        self._history: dict[str, list[Any]] = {}
        self._gives_back = False

    @property
    def initial_epoch(self) -> int:
        """The epoch to go on with, 0 before anything was restored."""
        return self._epoch

    def restore(self, model: Any) -> int:
        """Restore ``model``; the epoch to go on with. On all ranks; ``fit`` does it by itself otherwise."""
        if self._checkpointer is not None and not self._begun:
            return self._epoch
        self._begun = False
        if self._directory is None:
            self._number = fits.next_number()
            self._checkpointer = of_run = fits.FitCheckpointer(self._number, model, self._keep)
        else:
            self._checkpointer, of_run = Checkpointer(self._directory, self._keep, model=model), None
        self._saved_step = self._checkpointer.restore_latest()
        notes = self._checkpointer.notes
        self._epoch = int(notes.get("epoch", 0)) if of_run is None else of_run.next_epoch()
        self._history = notes.get("history", {})
        self._gives_back = bool(self._history)
        return self._epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restore, and tell Keras 3 where to go on."""
        if self.restore(self.model):
            self.model._initial_epoch = self._epoch
        self._begun = True
        if self._number > 1 and self._checkpointer is not None and not self._checkpointer.notes:
            optimizers.build_compiled([self.model])  # restoring needs the optimizer's variables
            self._save()  # a checkpoint of this fit shows that those before it are over

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the epoch that a checkpoint within it has to repeat."""
        self._epoch = epoch
        self._give_history_back()
        if self._directory is None:
            fits.trains()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Save when ``every`` steps have been made since the last checkpoint; behind an epoch's last one when it is over."""
        if self._is_due() and batch + 1 != (self.params or {}).get("steps"):
            self._save()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save, where an epoch is the measure."""
        self._epoch = epoch + 1
        self._remember(logs)
        if self._every == "epoch" or self._is_due():
            self._save()

    def on_train_end(self, logs: Logs = None) -> None:
        """Save the last step, unless it is saved already."""
        self.model._initial_epoch = None  # else the model's next fit would begin there, too
        self._give_history_back()
        if self._step() > self._saved_step:
            self._save()

    def _is_due(self) -> bool:
        return isinstance(self._every, int) and self._step() - self._saved_step >= self._every

    def _step(self) -> int:
        return optimizers.updates(self.model)

    def _save(self) -> Path:
        assert self._checkpointer is not None  # made when training began
        self._saved_step = self._step()
        epochs = int((self.params or {}).get("epochs") or 0)
        return self._checkpointer.save(self._saved_step, epoch=self._epoch, epochs=epochs, history=self._history)

    def _remember(self, logs: Logs) -> None:
        import numpy as np  # the metrics of an epoch are its numbers, or arrays of them

        for name, value in (logs or {}).items():
            self._history.setdefault(name, []).append(np.asarray(value).tolist())

    def _give_history_back(self) -> None:
        """Restore the history once Keras has created a new one; done once."""
        if self._gives_back:
            self._gives_back = False
            give_history_back(self.model, self._history)


def give_history_back(model: Any, history: Mapping[str, Sequence[Any]]) -> None:
    """Let the history that ``fit`` will return begin with these values of earlier epochs."""
    kept = {name: list(values) for name, values in history.items()}
    model.history.history = kept
    model.history.epoch = list(range(max(map(len, kept.values()), default=0)))


class ReportCallback(FitHooks):
    """Sends the chief's step, loss and metrics to the driver: at most once an interval, and every epoch."""

    def __init__(self, interval_s: float = 1.0) -> None:
        """``interval_s``: seconds between two messages within an epoch; 0 sends every step."""
        if not interval_s >= 0:
            raise ArgumentError(f"interval_s={interval_s!r}: it must be 0 or more seconds")
        self._interval_s = interval_s
        self._next = 0.0
        self._progress = ProgressSender()
        self._epoch, self._batches = 0, 0  # batches of an epoch, where Keras does not know before

    def on_train_begin(self, logs: Logs = None) -> None:
        """Forget the epochs of another call of ``fit``."""
        self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the epoch, which is all that can be told as long as nobody knows how many batches it has."""
        self._epoch = epoch
        if not self._steps():
            self._progress.tell(epoch, (self.params or {}).get("epochs") or 0, "epoch")

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Send the running values if the interval is over."""
        self._tell_progress(batch + 1)
        self._batches = max(self._batches, batch + 1)
        if time.monotonic() >= self._next:
            self._send(logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Send the epoch's values, those of the validation among them."""
        self._epoch = epoch + 1
        self._tell_progress(0, at_once=True)
        self._send(logs)

    def _steps(self) -> int:
        """Batches of an epoch: as Keras knows, or as an earlier one had; 0 for unknown."""
        return (self.params or {}).get("steps") or (self._batches if self._epoch else 0)

    def _tell_progress(self, batch: int, at_once: bool = False) -> None:
        steps, epochs = self._steps(), (self.params or {}).get("epochs") or 0
        if batch <= steps:
            self._progress.tell(self._epoch * steps + batch, epochs * steps, at_once=at_once)

    def _send(self, logs: Logs) -> None:
        self._next = time.monotonic() + self._interval_s
        context = current()
        if context is None or not context.is_chief:
            return
        context.send({"kind": "report", "step": optimizers.updates(self.model), "metrics": scalars(logs or {})})


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Those that are one number. A metric may give one for each class: it stands in the history, and is not reported."""
    import numpy as np

    return {name: float(np.reshape(value, ())) for name, value in values.items() if np.size(value) == 1}
