"""Checkpoints of TensorFlow objects, complete or absent and the same on every rank, and exports as SavedModels.

All ranks call ``save`` and ``restore_latest`` at the same place of the program. Only the chief's state is stored.
Where reading a variable needs every rank (variables that are synchronised on read), the others read theirs as well,
or write it to a temporary folder. The chief chooses the checkpoint to restore, and sends it to the ranks that do not
see the very same files. Reading tensors and writing them as TensorFlow's files are separate, so that the agent's
process can write what this process has read.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared.layout import CHIEF, PS
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.storage import urls
from hopsml.training import checkpoint_files
from hopsml.training.checkpoint_writer import HeldCheckpoint, checkpoint_sender, pack
from hopsml.training.tensorflow import groups, parameter_servers, state_variables
from hopsml.training.tensorflow.groups import is_leader, latest_strategy, spans_workers
from hopsml.training.tensorflow.keras.saving import private_folder
from hopsml.training.tensorflow.state_variables import as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


def export(model: Any, name: str = "model") -> Path:
    """Write ``model`` as a SavedModel to ``<export_dir>/<name>``, and return that folder; call it on all ranks.

    Reading some variables needs all ranks; only the chief's files are retained. They appear under their name when
    they are complete; an earlier export of the name is replaced.

    Args:
        model: a Keras model or tf.Module.
        name: name of the folder.

    Raises:
        ArgumentError: the call is outside of a run, or ``name`` is not a file name.
    """
    context = current()
    if context is None:
        raise ArgumentError("export() needs a run's export folder; outside of a run use model.export(path)")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ArgumentError(f"name={name!r}: it must be a file name of letters, digits, '_', '-' and '.'")
    target = context.export_dir / name
    keep = is_leader(latest_strategy())
    aside = context.export_dir / f".{name}.tmp" if keep else private_folder() / name
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    write_saved_model(model, aside)
    if keep:
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
    else:
        shutil.rmtree(aside)
    return target


def write_saved_model(model: Any, folder: Path) -> None:
    """Write a Keras model or tf.Module as a SavedModel, in this process alone."""
    import tensorflow as tf

    if hasattr(model, "export"):  # Keras: with a serving signature
        quiet = {"verbose": False} if "verbose" in inspect.signature(model.export).parameters else {}
        model.export(str(folder), **quiet)
    else:
        tf.saved_model.save(model, str(folder))


class ServerVariableReader:
    """Reader of all variables on parameter servers in one call.

    Reading each variable separately costs several calls of some milliseconds.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._owners: list[Any] = []
        self._read: Callable[[], list[Any]] | None = None

    def read(self, names: list[str], owners: list[Any], specs: list[Any]) -> list[Any]:
        """Return tensors in the order of ``specs``, through a traced function that is reused for the same variables.

        Args:
            names: names of the tensors.
            owners: objects that the tensors belong to; the function is reused only if they are the same.
            specs: specifications of the tensors.
        """
        import tensorflow as tf

        known = self._names == names and all(a is b for a, b in zip(self._owners, owners, strict=True))
        if self._read is None or not known:
            self._names, self._owners = names, owners
            self._read = tf.function(lambda: [_brought(spec) for spec in specs], autograph=False)
        return self._read()


def read_tensors(checkpoint: Any, served: ServerVariableReader | None = None) -> dict[str, NDArray[Any]] | None:
    """Return the tensors that ``checkpoint.write`` would write, by their names in the file.

    On CPU they are not copied. All ranks must call it if reading a variable needs every rank.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
        served: fetches all variables on parameter servers in one call.

    Returns:
        The tensors by name. None if they are not all whole arrays (the state of a dataset's iterator, a variable in
            parts): TensorFlow has to write those itself.
    """
    from tensorflow.python.training.saving.saveable_object import SaveSpec

    by_object, _, registered, _ = checkpoint._saver._gather_serialized_tensors()
    found = list(_flat(by_object))
    if registered or not all(_is_array(slice_spec, tensor) for _, _, slice_spec, tensor in found):
        return None
    tensors = {name: tensor for _, name, _, tensor in found}
    if served is not None:
        there = [(owner, name) for owner, name, _, tensor in found if _is_served(tensor)]
        names = [name for _, name in there]
        fetched = served.read(names, [owner for owner, _ in there], [tensors[name] for name in names])
        tensors.update(zip(names, fetched, strict=True))
    for name, tensor in tensors.items():
        tensors[name] = _tensor_of(tensor) if isinstance(tensor, SaveSpec) else tensor
    # None: a variable that has no value yet.
    return {name: as_array(tensor) for name, tensor in tensors.items() if tensor is not None}


def _tensor_of(spec: Any) -> Any:
    """Return the tensor of a specification, read on its device."""
    import tensorflow as tf

    with tf.device(spec.device):
        return spec.tensor


def _brought(spec: Any) -> Any:
    """Return the tensor of a specification, copied to the chief."""
    import tensorflow as tf

    tensor = _tensor_of(spec)
    with tf.device(f"/job:{CHIEF}/replica:0/task:0/device:CPU:0"):
        return tf.identity(tensor)


def _is_served(tensor: Any) -> bool:
    """Return True for a tensor on a parameter server."""
    from tensorflow.python.training.saving.saveable_object import SaveSpec

    return isinstance(tensor, SaveSpec) and f"/job:{PS}/" in str(tensor.device)


def write_tensors(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the result of ``read_tensors`` as ``prefix.index`` and ``prefix.data-00000-of-00001``."""
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(arrays), shape_and_slices=[""] * len(arrays), tensors=list(arrays.values())
    )


def _flat(by_object: Mapping[Any, Mapping[str, Any]]) -> Iterator[tuple[Any, str, str, Any]]:
    """Yield owner, name, slice and tensor (or its specification) of all entries."""
    for owner, tensors in by_object.items():
        for name, value in tensors.items():
            for slice_spec, tensor in value.items() if isinstance(value, dict) else (("", value),):
                yield owner, name, slice_spec, tensor


def _is_array(slice_spec: str, tensor: Any) -> bool:
    """Return True for a whole tensor of a type that numpy has."""
    import tensorflow as tf

    return not slice_spec.strip() and not tensor.dtype.is_quantized and tensor.dtype not in (tf.variant, tf.resource)


_WRITE = "hopsml.training.tensorflow.checkpoints:write_tensors"


class Checkpointer:
    """Saving and restoring of TensorFlow objects: models, optimizers, variables, datasets' iterators.

        checkpointer = hopsml.tensorflow.Checkpointer(model=model, optimizer=optimizer)
        step = checkpointer.restore_latest()          # 0 when there is nothing to continue from
        ...
        checkpointer.save(step)                       # on every rank

    After a restore, ``notes`` holds what was passed to ``save`` in addition to the step.

    In a worker ``save`` delays the training only until its agent has a copy of the state in memory. From there it is
    written to the agent's disk and to the run's shared storage in the background. Consequences of failures:

    - The worker ends in any way: everything that was saved arrives.
    - The agent, its executor or its machine fails: what had not reached shared storage is lost, so the run continues
      from the newest checkpoint there. ``save(durable=True)``, or ``wait()``, returns when that is the one just
      saved.
    - A disk or a store refuses writes: the training continues, a note reports it, and another note its end. The end
      of a run waits for the last checkpoint, within the time allowed for copying files to the store, and names what
      is missing.
    - If saving is faster than the disk for long, checkpoints in between are skipped in favour of newer ones.

    Outside a worker, and for a state that does not fit in memory or cannot be read as arrays, ``save`` writes to this
    machine's disk itself.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, keep: int = 3, **trackables: Any) -> None:
        """Create a checkpointer for named objects.

        Args:
            directory: default the run's checkpoint directory.
            keep: number of newest checkpoints to retain.
            **trackables: the objects to save, by name.

        Raises:
            ArgumentError: there is no directory (outside of a run, none given) or nothing to save.
        """
        import tensorflow as tf

        self._context = current()
        self._directory = _directory(directory, self._context)
        self._keep = _positive(keep)
        if not trackables:
            raise ArgumentError("Checkpointer() got nothing to save; name the objects: Checkpointer(model=model)")
        self._trackables = trackables
        self._checkpoint = tf.train.Checkpoint(**trackables)
        self.notes: dict[str, Any] = {}
        self._served = ServerVariableReader() if parameter_servers.is_chief(self._context) else None
        self._handover = (
            checkpoint_sender(self._context.checkpoints) if self._context and self._context.checkpoints else None
        )
        self._last: tuple[HeldCheckpoint | None, str] | None = None  # the newest save: its slot and its folder

    def save(self, step: int, *, durable: bool = False, **notes: Any) -> Path:
        """Save the objects as checkpoint ``step``, and return its folder; call it on all ranks.

        The folder may be written only after the call returns.

        Args:
            step: 0 or more.
            durable: wait until the checkpoint is on shared storage; see ``wait``.
            **notes: values for JSON that are stored with the step.

        Raises:
            ArgumentTypeError: ``step`` is not an integer.
            ArgumentError: ``step`` is negative.
            OSError: the chief has to write itself and cannot.
        """
        if isinstance(step, bool) or not isinstance(step, int):
            raise ArgumentTypeError(f"step={step!r}: it must be an int, not {type(step).__name__}")
        if step < 0:
            raise ArgumentError(f"step={step}: it must be 0 or more")
        target = self._directory / checkpoint_files.folder_name(step)
        if is_leader(latest_strategy()):
            content = json.dumps({"step": step, **notes, "id": uuid.uuid4().hex}).encode()
            here = checkpoint_files.CheckpointDescription(
                os.path.abspath(target), content, step, self._keep, self._is_in_run_dir(), checkpoint_files.read_umask()
            )
            self._last = self._save(here), here.target
        elif self._needs_every_rank():
            self._take_part(private_folder() / checkpoint_files.folder_name(step))
        if durable:
            self.wait()
        return target

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the newest save is on the run's shared storage; ranks other than the chief return at once.

        Args:
            timeout_s: seconds to wait; None waits without limit.

        Raises:
            OSError: this machine's disk refuses the checkpoint.
            StorageTimeout: ``timeout_s`` seconds have passed.
        """
        if self._handover is not None and self._last is not None:
            self._handover.wait_stored(*self._last, timeout_s)

    def _save(self, description: checkpoint_files.CheckpointDescription) -> HeldCheckpoint | None:
        """Have the agent write a checkpoint if possible, else write it here after the agent's earlier ones."""
        write: Callable[[str], object] = functools.partial(self._checkpoint.write, options=self._options())
        arrays = self._read()
        if self._handover is not None and arrays is not None:
            if held := self._handover.send_snapshot(pack(arrays, description, _WRITE), description.target):
                return held
            write = functools.partial(write_tensors, arrays=arrays)
        self._wait_written()
        checkpoint_files.write_checkpoint(description, write)
        return None

    def _options(self) -> Any:
        """Return options for files on the chief: a parameter server may be on another machine than the files."""
        import tensorflow as tf

        device = "/job:chief/replica:0/task:0/device:CPU:0" if parameter_servers.is_chief(self._context) else None
        return tf.train.CheckpointOptions(experimental_io_device=device)

    def _read(self) -> dict[str, Any] | None:
        """Return the objects' tensors for the agent; None if the agent cannot write them."""
        return read_tensors(self._checkpoint, self._served) if self._handover is not None else None

    def _take_part(self, unused: Path) -> None:
        """Take part in the chief's save as far as it needs every rank; both do the same for the same objects."""
        if self._read() is None:
            self._checkpoint.write(str(unused / "variables"))
            shutil.rmtree(unused)

    def _wait_written(self) -> None:
        """Wait until the agent has written all earlier checkpoints to this machine's disk."""
        if self._handover is not None:
            self._handover.wait_written()

    def restore_latest(self) -> int:
        """Restore the directory's newest complete checkpoint, else the one that the run continues from.

        Variables that do not exist yet get their values when they are created.

        Returns:
            Its step, 0 if there is none.

        Raises:
            ArgumentError: the objects have variables that the checkpoint does not hold.
        """
        self._wait_written()
        source = self._agree_on_source()
        if source is None:
            return 0
        # Keras creates an optimizer's variables at the first step; they must exist to be restored.
        state_variables.build_compiled(self._trackables.values())
        status = self._checkpoint.read(source.prefix, options=self._options())
        try:
            status.assert_existing_objects_matched()
        except AssertionError as error:
            raise ArgumentError(
                f"checkpoint {source.folder} lacks variables of what is to be restored ({error}); "
                "restore into the objects that were saved, under the same names"
            ) from error
        self.notes = {key: value for key, value in source.notes.items() if key not in ("step", "id")}
        return source.step

    def _needs_every_rank(self) -> bool:
        """Return True if some variable is synchronised on read, which is a reduction over all ranks."""
        from tensorflow.python.checkpoint import trackable_view
        from tensorflow.python.distribute.values import SyncOnReadVariable

        for node in trackable_view.TrackableView(self._checkpoint).descendants():
            # A Keras 3 variable holds TensorFlow's; looked up without running code, which might read the variable.
            inner = getattr(node, "__dict__", {}).get("_value")
            if isinstance(node, SyncOnReadVariable) or isinstance(inner, SyncOnReadVariable):
                return True
        return False

    def _is_in_run_dir(self) -> bool:
        """Return True if the directory is in the run directory itself, where no mirror adds the manifest."""
        if self._context is None:
            return False
        scheme, _, path = urls.split(self._context.run_url)
        return scheme in ("", "file") and self._directory.is_relative_to(path)

    def _agree_on_source(self) -> checkpoint_files.SavedStep | None:
        """Return the checkpoint that all ranks restore, in a folder that this rank can read."""
        strategy = latest_strategy()
        if not spans_workers(strategy):
            return self._newest()
        chosen = self._newest() if is_leader(strategy) else None
        answer = json.dumps(None if chosen is None else [str(chosen.folder), chosen.notes]).encode()
        agreed = json.loads(groups.broadcast_bytes(strategy, answer))
        if agreed is None:
            return None
        there = checkpoint_files.read_saved_step(Path(agreed[0]))
        if groups.all_agree(strategy, there is not None and there.notes == agreed[1]):
            return there
        folder = chosen.folder if chosen is not None else private_folder() / Path(agreed[0]).name
        groups.broadcast_folder(strategy, folder)
        return checkpoint_files.read_saved_step(folder)

    def _newest(self) -> checkpoint_files.SavedStep | None:
        """Return the checkpoint to restore, by this process alone; None if there is none."""
        if newest := checkpoint_files.newest_valid_checkpoint(self._directory):
            return newest
        resume = self._resume()
        if resume is None:
            return None
        saved = checkpoint_files.read_saved_step(resume)
        if saved is None:
            raise ArgumentError(
                f"{resume} is not a complete checkpoint: it has no readable {checkpoint_files.DESCRIPTION}"
            )
        return saved

    def _resume(self) -> Path | None:
        """Return the checkpoint that the run continues from."""
        return self._context.resume_checkpoint if self._context is not None else None


def _directory(given: str | os.PathLike[str] | None, context: WorkerContext | None) -> Path:
    """Return the directory of checkpoints, created if it does not exist."""
    if given is None and context is None:
        raise ArgumentError("Checkpointer() needs directory=... here: this process is not a worker of a run")
    directory = Path(given) if given is not None else context.checkpoint_dir  # type: ignore[union-attr]
    if "://" in str(given or ""):
        raise ArgumentError(
            f"directory={given!r}: it must be a local path; the run's own is mirrored to shared storage"
        )
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _positive(keep: int) -> int:
    """Return the number of checkpoints to retain, checked."""
    if isinstance(keep, bool) or not isinstance(keep, int):
        raise ArgumentTypeError(f"keep={keep!r}: it must be an int, not {type(keep).__name__}")
    if keep < 1:
        raise ArgumentError(f"keep={keep}: it must be 1 or more, or the checkpoint just saved would be removed")
    return keep
