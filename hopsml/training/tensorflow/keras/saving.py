"""Callbacks of Keras 3 that write files, under MultiWorkerMirroredStrategy and through the worker's agent.

All workers run the same callbacks with the same paths, and would write the same files at once. Every worker still
runs them (reading a metric or saving may need all of them), but only the chief's files go to the user's path; the
other workers write to a private temporary folder of the process. tf_keras does this itself. If a path is in the
worker's own working directory, links to those files are created there after the training, so that code which loads
one again runs on all workers. TensorBoard's event files are retained from every worker, those of the others in
``rank-<n>`` below the chief's. ``BackupAndRestore`` also reads: before training, the chief's backup is sent to the other
workers, so that all of them resume at the same epoch with the same weights, whether they see the chief's disk or not.

``ModelCheckpoint`` and ``BackupAndRestore`` save asynchronously. The training waits only until the agent has the state,
not for the file. What Keras would write is read and handed to the agent, whose writer process makes the file. It appears
whole or not at all, at the latest when ``fit`` ends. A file that could not be written raises an OSError at the next save,
or at the end of ``fit``. Keras walks through a model and has each object put its arrays into a store; the store here
records them, and the writer replays them into Keras's own store, which alone knows the format.

Keras writes itself, as it does elsewhere, if a program may expect a file at once: outside of ``fit``, with classes
derived from the two, and for ``ModelCheckpoint`` together with callbacks written by the user. It also writes what the
writer here cannot: a whole model as ``.h5``, URLs, and the copies of ``double_checkpoint``.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import io
import json
import os
import shutil
import tempfile
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hopsml.cluster.worker.context import current
from hopsml.training.checkpoint_files import FileDescription, read_umask, write_file
from hopsml.training.checkpoint_writer import CheckpointSender, checkpoint_sender, pack
from hopsml.training.tensorflow import groups
from hopsml.training.tensorflow.groups import is_leader, spans_workers
from hopsml.training.tensorflow.state_variables import as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


_WRITE = "hopsml.training.tensorflow.keras.saving:write_model"
# Entries next to the arrays: paths, metadata, names; a model's file without its weights.
_GROUPS, _ARCHIVE = "groups", "archive"
_FILES = (".keras", ".h5")
_METADATA = "_training_metadata_path"  # attribute of BackupAndRestore: the file with the epoch of the weights

_fit: bool | None = None  # True if the present fit has only callbacks of Keras and hopsml; None outside of a fit
_saves: list[tuple[str, dict[str, Any]]] | None = None  # files, with their content, of a callback that is saving


def install_agent_saving(trainer: ModuleType) -> None:
    """Patch both callbacks to save through the agent.

    Args:
        trainer: the module ``keras.src.backend.tensorflow.trainer``.
    """
    from keras.src.callbacks.backup_and_restore import BackupAndRestore
    from keras.src.callbacks.model_checkpoint import ModelCheckpoint
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.saving import saving_lib

    # Keras's own cache uses different names for storing and lookup, so that it creates a layer for each one that it
    # saves.
    saving_lib.get_attr_skipset = functools.cache(saving_lib.get_attr_skipset)
    _copy_once(BaseOptimizer)
    _note_fits(trainer.TensorFlowTrainer)
    _read_instead(saving_lib, "save_model", ".keras")
    _read_instead(saving_lib, "save_weights_only", ".weights.h5")
    _save_by_agent(BackupAndRestore, lambda self: not self.double_checkpoint and "://" not in str(self.backup_dir))
    _save_by_agent(ModelCheckpoint, lambda self: _fit)


def _copy_once(optimizer_class: Any) -> None:
    """Patch an optimizer class to put its variables, not copies of them, into the recording store."""
    original = optimizer_class.save_own_variables

    def save_own_variables(self: Any, store: Any) -> None:
        if not isinstance(store, RecordedArrays):  # the user's own dict gets copies, as before
            original(self, store)
            return
        for number, variable in enumerate(self.variables):
            store[str(number)] = variable

    optimizer_class.save_own_variables = save_own_variables


def _handover() -> CheckpointSender | None:
    """Return this worker's connection to its agent's checkpoint writer; None without one."""
    context = current()
    return checkpoint_sender(context.checkpoints) if context is not None and context.checkpoints is not None else None


def _note_fits(trainer_class: Any) -> None:
    """Patch ``fit`` to record its callbacks, and to wait for saved files at its end."""
    original = trainer_class.fit
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *arguments: Any, **named: Any) -> Any:
        global _fit
        from keras.src import tree

        given = signature.bind(self, *arguments, **named).arguments.get("callbacks")
        outer, _fit = _fit, all(map(_reads_no_files, tree.flatten(getattr(given, "callbacks", given) or [])))
        try:
            return original(self, *arguments, **named)
        finally:
            _fit = outer
            if handover := _handover():
                handover.wait_written(_FILES)  # also after an error: a caller that catches it may load what was saved

    trainer_class.fit = fit


def _reads_no_files(callback: Any) -> bool:
    """Return True for a callback of Keras or hopsml, which does not load saved files."""
    kind = type(callback)
    return kind.__module__.partition(".")[0] in ("keras", "hopsml") and kind.__name__ != "LambdaCallback"


def _read_instead(saving_lib: ModuleType, name: str, suffix: str) -> None:
    """Patch a saving function of Keras to record the content while a callback saves."""
    original = getattr(saving_lib, name)

    @functools.wraps(original)
    def save(model: Any, filepath: Any, *more: Any, **named: Any) -> None:
        path = str(filepath)
        if _saves is None or any(more) or named or not path.endswith(suffix) or "://" in path:
            original(model, filepath, *more, **named)
        else:
            _saves.append((path, read_model(model, suffix == ".keras")))

    setattr(saving_lib, name, save)


def _save_by_agent(callback_class: Any, is_ours: Any) -> None:
    """Patch a callback class to save through the agent."""
    save, end = callback_class._save_model, callback_class.on_train_end

    def save_model(self: Any, *arguments: Any, **named: Any) -> None:
        global _saves
        handover = _handover()
        if handover is None or _fit is None or type(self) is not callback_class or not is_ours(self):
            save(self, *arguments, **named)
            return
        _check(handover)
        asked, _saves = vars(self).get(_METADATA, ""), []
        with tempfile.TemporaryDirectory() if asked else nullcontext("") as folder:
            if asked:  # it must be written after the weights
                setattr(self, _METADATA, os.path.join(folder, "metadata"))
            try:
                save(self, *arguments, **named)
                text = Path(getattr(self, _METADATA)).read_text(encoding="utf-8") if asked else ""
            finally:
                found, _saves = _saves, None
                if asked:
                    setattr(self, _METADATA, asked)
        for path, content in found:
            file = FileDescription(os.path.realpath(path), read_umask(), asked and os.path.abspath(asked), text)
            if not handover.send_snapshot(pack(content, file, _WRITE), file.target):  # there is not enough memory
                handover.wait_written()
                write_file(file, functools.partial(write_model, arrays=content))

    def on_train_end(self: Any, logs: Any = None) -> None:
        if handover := _handover():
            handover.wait_written(_FILES)
            _check(handover)
        end(self, logs)

    callback_class._save_model, callback_class.on_train_end = save_model, on_train_end


def _check(handover: CheckpointSender) -> None:
    """Raise OSError for saved files that could not be written."""
    if lost := handover.abandon_failed(_FILES):
        raise OSError(f"{', '.join(lost)} could not be written; the run's notes say why")


# -- reading what Keras would write, and writing it in another process


def read_model(model: Any, whole: bool) -> dict[str, NDArray[Any]]:
    """Return what Keras would write of a model; on CPU variables are not copied. Call it on all ranks.

    Each variable is read once, in Keras's order.

    Args:
        model: the model.
        whole: include the model's configuration, not its weights alone.

    Returns:
        Arrays by name, including bytes of the other content.
    """
    import numpy as np
    from keras.src.saving import saving_lib

    class NotingStore(saving_lib.NpzIOStore):  # type: ignore[misc] # Keras accepts only its own stores
        def make(self, path: str, metadata: dict[str, str] | None = None) -> dict[str, Any]:
            entry = RecordedArrays()
            noted.append((path, metadata, entry))
            return entry

    noted: list[tuple[str, dict[str, str] | None, RecordedArrays]] = []
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        assets = None
        if whole:
            config, metadata = saving_lib._serialize_model_as_json(model)
            archive.writestr("metadata.json", metadata)
            archive.writestr("config.json", config)
            assets = saving_lib.DiskIOStore("assets", archive=archive, mode="w")
        saving_lib._save_state(model, NotingStore("", mode="w"), assets, inner_path="", visited_saveables=set())
        if assets is not None:
            assets.close()
    table = json.dumps([(path, about, list(entry)) for path, about, entry in noted]).encode()
    arrays = {f"{number}/{name}": array for number, (_, _, entry) in enumerate(noted) for name, array in entry.items()}
    rest = {_GROUPS: table} | ({_ARCHIVE: content.getvalue()} if whole else {})
    return arrays | {key: np.frombuffer(value, np.uint8) for key, value in rest.items()}


def write_model(place: str, arrays: dict[str, NDArray[Any]]) -> None:
    """Write the result of ``read_model`` as the file ``place``.

    A whole model's arrays are in a temporary file next to it at first.
    """
    from keras.src.saving import saving_lib

    weights = f"{place}.weights" if _ARCHIVE in arrays else place
    store = saving_lib.H5IOStore(weights, mode="w")
    for number, (path, metadata, names) in enumerate(json.loads(arrays[_GROUPS].tobytes())):
        entry = store.make(path, metadata=metadata)
        for name in names:
            entry[name] = arrays[f"{number}/{name}"]
    store.close()
    if _ARCHIVE in arrays:
        Path(place).write_bytes(arrays[_ARCHIVE].data)
        with zipfile.ZipFile(place, "a") as archive:
            archive.write(weights, "model.weights.h5")
        os.unlink(weights)


class RecordedArrays(dict[str, Any]):
    """Recording of the arrays that one object puts into the store, with their present values."""

    def __setitem__(self, name: str, value: Any) -> None:
        import tensorflow as tf
        from keras.src import backend

        if isinstance(value, backend.Variable):
            value = value.value.read_value()
        super().__setitem__(name, as_array(value) if isinstance(value, tf.Tensor) else backend.convert_to_numpy(value))


_scratch: Path | None = None


def patch_file_callbacks(trainer: ModuleType) -> None:
    """Patch the callbacks of Keras 3 that write files, so that workers other than the chief write to private places.

    Args:
        trainer: the module ``keras.src.backend.tensorflow.trainer``.
    """
    from keras.src.callbacks.backup_and_restore import BackupAndRestore
    from keras.src.callbacks.csv_logger import CSVLogger
    from keras.src.callbacks.model_checkpoint import ModelCheckpoint
    from keras.src.callbacks.tensorboard import TensorBoard

    install_agent_saving(trainer)  # before callbacks that read files at the end of training
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
    """Patch a callback class to write elsewhere on other workers than the chief: to ``rank-<n>`` if they are kept."""
    original = callback_class.set_model

    def set_model(self: Any, model: Any) -> None:
        strategy = model.distribute_strategy
        if spans_workers(strategy) and not is_leader(strategy) and not getattr(self, "_hopsml_private", False):
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
        if spans_workers(strategy) and "://" not in str(self.backup_dir):
            groups.broadcast_folder(strategy, Path(self.backup_dir))
        original(self, logs)

    callback_class.on_train_begin = on_train_begin
