"""Adaptation of Keras 3 callbacks that write files to MultiWorkerMirroredStrategy.

All workers run the same callbacks with the same paths, and would write the same files at once. Every worker still
runs them (reading a metric or saving may need all of them), but only the chief's files go to the user's path; the
other workers write to a private temporary folder of the process. tf_keras does this itself. If a path is in the
worker's own working directory, links to those files are created there after the training, so that code which loads
one again runs on all workers. TensorBoard's event files are retained from every worker, those of the others in
``rank-<n>`` below the chief's.

``BackupAndRestore`` also reads: before training, the chief's backup is sent to the other workers, so that all of them
resume at the same epoch with the same weights, whether they see the chief's disk or not.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.training.tensorflow import file_exchange, keras_saving
from hopsml.training.tensorflow.groups import in_group, leads

_scratch: Path | None = None


def install(trainer: ModuleType) -> None:
    """Patch the callbacks of Keras 3 that write files, so that workers other than the chief write to private places.

    Args:
        trainer: the module ``keras.src.backend.tensorflow.trainer``.
    """
    from keras.src.callbacks.backup_and_restore import BackupAndRestore
    from keras.src.callbacks.csv_logger import CSVLogger
    from keras.src.callbacks.model_checkpoint import ModelCheckpoint
    from keras.src.callbacks.tensorboard import TensorBoard

    keras_saving.install(trainer)  # before callbacks that read files at the end of training
    _write_privately(ModelCheckpoint, "filepath")
    _write_privately(TensorBoard, "log_dir", keep=True)
    _write_privately(CSVLogger, "filename")
    _write_privately(BackupAndRestore, "backup_dir")
    _share_backup(BackupAndRestore)
    _link_after_training(ModelCheckpoint)
    _link_after_training(CSVLogger)
    _begin_training()


def _begin_training() -> None:
    """Patch the start of a training: pass all callbacks to ``set_companions``, and reset the initial epoch.

    Keras stores in the model the epoch from which an earlier ``fit`` continued, and would use it for every further
    one.
    """
    from keras.src.callbacks.callback_list import CallbackList

    original = CallbackList.on_train_begin

    def on_train_begin(self: Any, logs: Any = None) -> None:
        if getattr(self.model, "_initial_epoch", None):
            self.model._initial_epoch = None
        for one in self.callbacks:
            if hasattr(one, "set_companions"):
                one.set_companions(tuple(self.callbacks))
        original(self, logs)

    CallbackList.on_train_begin = on_train_begin


def private_folder() -> Path:
    """Return a temporary folder of this process, which is removed at its exit."""
    global _scratch
    if _scratch is None:
        context = current()
        parent = context.work_dir if context is not None and context.work_dir.is_dir() else None
        _scratch = Path(tempfile.mkdtemp(prefix="hopsml-unused-", dir=parent))
        atexit.register(shutil.rmtree, _scratch, ignore_errors=True)
    return _scratch


def _write_privately(callback_class: Any, attribute: str, keep: bool = False) -> None:
    """Patch a callback class to write to another place on workers other than the chief.

    Args:
        callback_class: the class.
        attribute: its attribute with the user's path.
        keep: retain the files, in ``rank-<n>`` below the user's path.
    """
    original = callback_class.set_model

    def set_model(self: Any, model: Any) -> None:
        strategy = model.distribute_strategy
        if in_group(strategy) and not leads(strategy) and not getattr(self, "_hopsml_private", False):
            self._hopsml_private = True
            context = current()
            asked = str(getattr(self, attribute)).rstrip("/")
            if keep and context is not None:
                _move(self, asked, f"{asked}/rank-{context.rank}")
            else:
                _move(self, asked, str(private_folder() / (_in_own_folder(asked) or os.path.basename(asked))))
        original(self, model)

    callback_class.set_model = set_model


def _in_own_folder(path: str) -> Path | None:
    """Return a path relative to the worker's working directory; None if it is elsewhere."""
    context = current()
    if context is None or "://" in path:
        return None
    absolute = Path(os.path.abspath(path))
    return absolute.relative_to(context.work_dir) if absolute.is_relative_to(context.work_dir) else None


def _link_after_training(callback_class: Any) -> None:
    """Patch a callback class to link private files into the worker's working directory when training ends."""
    original = callback_class.on_train_end

    def on_train_end(self: Any, logs: Any = None) -> None:
        original(self, logs)
        context = current()
        if context is not None and getattr(self, "_hopsml_private", False):
            _link_below(private_folder(), context.work_dir)

    callback_class.on_train_end = on_train_end


def _link_below(source: Path, folder: Path) -> None:
    """Create links in ``folder`` to the files below ``source``, with the same names; existing files stay."""
    for parent, _, names in os.walk(source):
        place = folder / os.path.relpath(parent, source)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not os.path.lexists(place / name):
                (place / name).symlink_to(Path(parent, name))


def _move(callback: Any, asked: str, target: str) -> None:
    """Change every path of the callback that is at or below the user's to ``target``."""
    for name, value in vars(callback).items():
        path = os.fspath(value) if isinstance(value, (str, Path)) else ""
        if path.rstrip("/") == asked or path.startswith(asked + "/"):
            setattr(callback, name, target + path[len(asked) :])


def _share_backup(callback_class: Any) -> None:
    """Patch a callback class to send the chief's backup to all workers before training."""
    original = callback_class.on_train_begin

    def on_train_begin(self: Any, logs: Any = None) -> None:
        strategy = self.model.distribute_strategy
        if in_group(strategy) and "://" not in str(self.backup_dir):
            file_exchange.share_folder(strategy, Path(self.backup_dir))
        original(self, logs)

    callback_class.on_train_begin = on_train_begin
