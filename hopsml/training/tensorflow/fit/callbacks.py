"""Callbacks for ``fit`` of Keras 3 and tf_keras: checkpoints to resume from, and reports to the driver.

They derive from neither framework's class, so that one class serves both and importing it imports none.

Each ``fit`` of a function has its own checkpoint folder, by the order of calls, the same on all ranks and after a
restart. Those of the first are in the run's checkpoint directory, those of the n-th in ``fit-<n>/checkpoints`` next to
it. Once a ``fit`` has trained, checkpoints of later ones from an earlier run result from different weights, and are not
used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.search.metric import BATCH, is_misspelt, unknown_metric_hint
from hopsml.storage.run_dir import fit_name, parse_fit_name
from hopsml.training.checkpoint_files import complete_checkpoints
from hopsml.training.messages import ProgressSender
from hopsml.training.tensorflow import groups, state_variables
from hopsml.training.tensorflow.checkpoints import Checkpointer
from hopsml.training.tensorflow.groups import latest_strategy, spans_workers

_function: tuple[str, Any] = ("", None)  # the function whose calls are counted: its run, and its trial
_begun = 0
_one_has_trained = False


def next_fit_number() -> int:
    """Count a call of ``fit`` that begins now and return its number: 1 for the function's first."""
    global _begun
    _look_at_function()
    _begun += 1
    return _begun


def record_training() -> None:
    """Record that a ``fit`` has trained: an earlier run's checkpoints of later ones are outdated from now on."""
    global _one_has_trained
    _look_at_function()
    _one_has_trained = True


def _look_at_function() -> None:
    """Reset the count for another function; a new context alone may also mean that the group has changed."""
    global _function, _begun, _one_has_trained
    context = current()
    run, trial = (context.run_id, context.trial) if context is not None else ("", None)
    if _function[0] != run or _function[1] is not trial:
        _function, _begun, _one_has_trained = (run, trial), 0, False


class FitCheckpointer(Checkpointer):
    """Checkpointer of the model of one ``fit``, with its own folder in the run."""

    def __init__(self, number: int, model: Any, keep: int = 3) -> None:
        """Create the checkpointer of one ``fit``.

        Args:
            number: number of the ``fit``, from 1.
            model: the model to save.
            keep: number of newest checkpoints to retain.

        Raises:
            ArgumentError: outside of a run, which has no folder for it.
        """
        context = current()
        place = context.checkpoint_dir if context is not None else None
        self._number, self._takes_over = number, not _one_has_trained
        super().__init__(_place(place, number) if place is not None else None, keep, model=model)

    def next_epoch(self) -> int:
        """Return the epoch to continue with after ``restore_latest``, 0 if that found nothing; call it on all ranks.

        A ``fit`` is complete, however it ended, if a later one has begun: it then continues only with more epochs
        than it had.
        """
        epoch = int(self.notes.get("epoch", 0))
        return max(epoch, int(self.notes.get("epochs", 0))) if self.notes and self._later_has_begun() else epoch

    def _later_has_begun(self) -> bool:
        """Return True if a later ``fit`` has a checkpoint, as seen by the chief."""
        begun = any(complete_checkpoints(folder) for folder in self._later())
        strategy = latest_strategy()
        return bool(groups.broadcast_bytes(strategy, b"1" if begun else b"")) if spans_workers(strategy) else begun

    def _later(self) -> Iterator[Path]:
        """Yield the folders of checkpoints of later fits, in this run and in the resumed one."""
        for root, below in ((self._root(), "checkpoints"), (self._resume_fits(), "")):
            for folder in root.glob("fit-*") if root is not None else ():
                if (parse_fit_name(folder.name) or 0) > self._number:
                    yield folder / below

    def _root(self) -> Path | None:
        """Return the folder that holds the folders of all fits."""
        return self._context.checkpoint_dir.parent if self._context is not None else None

    def _resume_fits(self) -> Path | None:
        """Return the local copy of the resumed run's further fits, unless a fit has trained since."""
        return self._context.resume_fits if self._context is not None and self._takes_over else None

    def _resume(self) -> Path | None:
        """Return the checkpoint of the resumed run for this ``fit``."""
        if self._number == 1:
            return super()._resume()
        folder = self._resume_fits()
        complete = complete_checkpoints(folder / fit_name(self._number)) if folder is not None else []
        return complete[-1].folder if complete else None


def _place(first: Path, number: int) -> Path:
    """Return the checkpoint directory of a ``fit``."""
    return first if number == 1 else first.parent / fit_name(number) / "checkpoints"


Logs = dict[str, Any] | None


class FitHooks:
    """Base class of callbacks for Keras 3 and tf_keras, with empty hooks of ``fit``, ``evaluate``, ``predict``."""

    model: Any = None
    params: dict[str, Any] | None = None
    _supports_tf_logs = False
    _chief_worker_only = False  # runs on all ranks; callbacks decide themselves what only the chief does

    def set_model(self, model: Any) -> None:
        """Store the model that is trained; called by Keras before training."""
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        """Store the parameters of ``fit``; called by Keras before training."""
        self.params = params

    def _nothing(self, *arguments: Any, **named: Any) -> None:
        """Ignore a call by Keras."""

    on_train_begin = on_train_end = on_test_begin = on_test_end = _nothing
    on_predict_begin = on_predict_end = on_epoch_begin = on_epoch_end = _nothing
    on_batch_begin = on_batch_end = on_train_batch_begin = on_train_batch_end = _nothing
    on_test_batch_begin = on_test_batch_end = on_predict_batch_begin = on_predict_batch_end = _nothing

    def _implements_train_batch_hooks(self) -> bool:
        """Return False with parameter servers, for which tf_keras refuses hooks of training batches."""
        return not _with_servers()

    def _implements_test_batch_hooks(self) -> bool:
        """Return False, because the hooks of test batches do nothing."""
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        """Return False, because the hooks of prediction batches do nothing."""
        return False


def _with_servers() -> bool:
    """Return True if ``fit`` of tf_keras sends its steps to workers, and calls back at the end of epochs only."""
    import tensorflow as tf

    return bool(getattr(tf.distribute.get_strategy(), "_should_use_with_coordinator", False))


class CheckpointCallback(FitHooks):
    """Callback that saves the model and its optimizer while ``fit`` runs, and restores them when it begins.

    Keras 3 continues at the epoch that was restored. tf_keras does not let a callback choose the epoch:

        callback = hopsml.tensorflow.CheckpointCallback()
        model.fit(..., initial_epoch=callback.restore(model), callbacks=[callback])

    A checkpoint within an epoch holds the weights at that step; ``fit`` then repeats that epoch from its beginning,
    because the checkpoint does not include a dataset's position.

    A function may call ``fit`` several times, always in the same order: each call has its own checkpoints. After a
    restart, calls that were complete restore their weights and history and train no more. A ``directory`` that is
    given is used by every ``fit`` to which the callback is passed.
    """

    def __init__(
        self, every: int | Literal["epoch"] = "epoch", keep: int = 3, directory: str | os.PathLike[str] | None = None
    ) -> None:
        """Create a callback for one or several calls of ``fit``.

        Args:
            every: "epoch", or the number of steps from one checkpoint to the next.
            keep: number of newest checkpoints to retain.
            directory: default the run's, with a separate folder for each ``fit`` of the function.
        """
        if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ArgumentError(f"every={every!r}: it must be 'epoch', or a number of steps of 1 or more")
        self._every = every
        self._keep = keep
        self._directory = directory
        self._checkpointer: Checkpointer | None = None
        self._number = 0  # number of the fit among those of the function, if the directory is the run's
        self._begun = False  # True once the fit that the checkpointer was made for has begun
        self._saved_step = 0
        self._epoch = 0
        self._history: dict[str, list[Any]] = {}
        self._gives_back = False

    @property
    def initial_epoch(self) -> int:
        """Epoch to continue with, 0 before anything was restored."""
        return self._epoch

    def restore(self, model: Any) -> int:
        """Restore ``model`` and return the epoch to continue with; call it on all ranks.

        ``fit`` calls it otherwise.
        """
        if self._checkpointer is not None and not self._begun:
            return self._epoch
        self._begun = False
        if self._directory is None:
            self._number = next_fit_number()
            self._checkpointer = of_run = FitCheckpointer(self._number, model, self._keep)
        else:
            self._checkpointer, of_run = Checkpointer(self._directory, self._keep, model=model), None
        self._saved_step = self._checkpointer.restore_latest()
        notes = self._checkpointer.notes
        self._epoch = int(notes.get("epoch", 0)) if of_run is None else of_run.next_epoch()
        self._history = notes.get("history", {})
        self._gives_back = bool(self._history)
        return self._epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restore the model, and set Keras 3's initial epoch."""
        if self.restore(self.model):
            self.model._initial_epoch = self._epoch
        self._begun = True
        if self._number > 1 and self._checkpointer is not None and not self._checkpointer.notes:
            state_variables.build_compiled([self.model])  # restoring needs the optimizer's variables
            self._save()  # a checkpoint of this fit shows that the earlier ones are complete

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Record the epoch that a restart from a checkpoint within it has to repeat."""
        self._epoch = epoch
        self._give_history_back()
        if self._directory is None:
            record_training()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Save if ``every`` steps have been made since the last checkpoint.

        The last step of an epoch is saved at the end of the epoch instead.
        """
        if self._is_due() and batch + 1 != (self.params or {}).get("steps"):
            self._save()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save at the end of an epoch, if ``every`` is "epoch" or its number of steps has been reached."""
        self._epoch = epoch + 1
        self._history = append_epoch(self._history, logs)
        if self._every == "epoch" or self._is_due():
            self._save()

    def on_train_end(self, logs: Logs = None) -> None:
        """Save the last step, unless it is saved already."""
        self.model._initial_epoch = None  # otherwise the model's next fit would begin there, too
        self._give_history_back()
        if self._step() > self._saved_step:
            self._save()

    def _is_due(self) -> bool:
        """Return True if ``every`` steps have been made since the last checkpoint."""
        return isinstance(self._every, int) and self._step() - self._saved_step >= self._every

    def _step(self) -> int:
        """Return the number of the model's updates so far."""
        return state_variables.update_count(self.model)

    def _save(self) -> Path:
        """Save a checkpoint of the present step."""
        assert self._checkpointer is not None  # made when training began
        self._saved_step = self._step()
        epochs = int((self.params or {}).get("epochs") or 0)
        return self._checkpointer.save(self._saved_step, epoch=self._epoch, epochs=epochs, history=self._history)

    def _give_history_back(self) -> None:
        """Restore the history once Keras has created a new one; done once."""
        if self._gives_back:
            self._gives_back = False
            prepend_history(self.model, self._history)


def append_epoch(history: Mapping[str, Sequence[Any]], logs: Logs) -> dict[str, list[Any]]:
    """Return a copy of a history with the metrics of one more epoch: numbers, or arrays of them as lists."""
    import numpy as np

    found = {name: list(values) for name, values in history.items()}
    for name, value in (logs or {}).items():
        found.setdefault(name, []).append(np.asarray(value).tolist())
    return found


def prepend_history(model: Any, history: Mapping[str, Sequence[Any]]) -> None:
    """Let the history that ``fit`` will return begin with these values of earlier epochs."""
    kept = {name: list(values) for name, values in history.items()}
    model.history.history = kept
    model.history.epoch = list(range(max(map(len, kept.values()), default=0)))


class ReportCallback(FitHooks):
    """Callback that sends the chief's step, loss and metrics to the driver.

    At the end of an epoch it sends the values that Keras reports for it, such as ``loss`` and ``val_loss``. Within an
    epoch it sends, at most once an interval, Keras's running values under other names: ``batch_loss`` is the mean of
    the epoch's batches so far.
    """

    def __init__(self, interval_s: float = 1.0) -> None:
        """Create the callback for one or several calls of ``fit``.

        Args:
            interval_s: seconds between two messages within an epoch; 0 sends every step.
        """
        if not interval_s >= 0:
            raise ArgumentError(f"interval_s={interval_s!r}: it must be 0 or more seconds")
        self._interval_s = interval_s
        self._next = 0.0
        self._progress = ProgressSender()
        # Batches of an earlier epoch, used if Keras does not know the number in advance.
        self._epoch, self._batches = 0, 0
        self._monitored: dict[str, str] = {}  # metric -> the callback that decides by it

    def set_companions(self, callbacks: Sequence[Any]) -> None:
        """Store the metrics by which Keras's callbacks of this ``fit`` decide; called when training begins."""
        named = [(getattr(one, "monitor", None), type(one).__name__) for one in callbacks]
        self._monitored = {metric: kind for metric, kind in named if isinstance(metric, str)}

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reset the count of batches from an earlier call of ``fit``."""
        self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Record the epoch, and report it as progress if the number of batches is unknown."""
        self._epoch = epoch
        if not self._steps():
            self._progress.send_progress(epoch, (self.params or {}).get("epochs") or 0, "epoch")

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Send the running values if the interval is over."""
        self._tell_progress(batch + 1)
        self._batches = max(self._batches, batch + 1)
        if time.monotonic() >= self._next:
            self._send({f"{BATCH}{name}": value for name, value in (logs or {}).items()})

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Send the epoch's values, including those of the validation.

        Raises:
            ArgumentError: a callback decides by a misspelt metric, of which Keras only warns at each epoch.
        """
        for metric, kind in self._monitored.items():
            if metric not in (logs or {}) and any(is_misspelt(metric, name) for name in logs or {}):
                raise ArgumentError(
                    f"{kind}(monitor={metric!r}): there is no such metric {unknown_metric_hint(metric, list(logs or {}))}"
                )
        self._epoch = epoch + 1
        self._tell_progress(0, at_once=True)
        self._send(logs)

    def _steps(self) -> int:
        """Return the batches of an epoch, known to Keras or counted in an earlier epoch; 0 for unknown."""
        return (self.params or {}).get("steps") or (self._batches if self._epoch else 0)

    def _tell_progress(self, batch: int, at_once: bool = False) -> None:
        """Report the progress if the number of batches is known."""
        steps, epochs = self._steps(), (self.params or {}).get("epochs") or 0
        if batch <= steps:
            self._progress.send_progress(self._epoch * steps + batch, epochs * steps, at_once=at_once)

    def _send(self, logs: Logs) -> None:
        """Send values with the present step, on the chief."""
        self._next = time.monotonic() + self._interval_s
        context = current()
        if context is None or not context.is_chief:
            return
        context.send(
            {"kind": "report", "step": state_variables.update_count(self.model), "metrics": scalars(logs or {})}
        )


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are single numbers; a metric with one value for each class is left out."""
    import numpy as np

    return {name: float(np.reshape(value, ())) for name, value in values.items() if np.size(value) == 1}
