"""Checkpoints of TensorFlow objects: complete or absent, the same on every rank.

All ranks call ``save`` and ``restore_latest`` at the same place of the program. Only the chief's state is kept: the others
read theirs, or write it to a folder that goes away, where reading a variable needs every rank (those synchronised on read).
The chief picks what is restored, and sends it to the ranks that do not see the very same files.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.storage import urls
from hopsml.training import checkpoint_files
from hopsml.training.checkpoint_handover import HeldCheckpoint, handover_of
from hopsml.training.checkpoint_writer import pack
from hopsml.training.tensorflow import bundle, file_exchange, optimizers, parameter_servers
from hopsml.training.tensorflow.groups import in_group, latest_strategy, leads
from hopsml.training.tensorflow.keras_callbacks import private_folder

_WRITE = "hopsml.training.tensorflow.bundle:write"


class Checkpointer:
    """Saves and restores TensorFlow objects: models, optimizers, variables, datasets' iterators.

        checkpointer = hopsml.tensorflow.Checkpointer(model=model, optimizer=optimizer)
        step = checkpointer.restore_latest()          # 0 when there is nothing to go on from
        ...
        checkpointer.save(step)                       # on every rank

    ``notes`` holds, after a restore, what was given to ``save`` beside the step.

    In a worker ``save`` holds the training up only until its agent has a copy of the state in memory. From there it goes to
    the agent's disk and to the run's shared storage, beside the training. What that means for a loss:

    - The worker ends, however: everything that was saved arrives.
    - The agent, its executor or its machine is lost: what had not reached shared storage is lost, so the run goes on from
      the newest checkpoint there. ``save(durable=True)``, or ``wait()``, comes back when that is the one just saved.
    - A disk or a store takes nothing: the training goes on, a note says so, and another one that it is over. The end of a
      run waits for the last checkpoint, for as long as its files have to be brought to its store, and names what is missing.
    - Where saving is faster than the disk for long, those in between are passed over for newer ones.

    Elsewhere, and for a state that memory does not take, or not as arrays, ``save`` writes to this machine's disk itself.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, keep: int = 3, **trackables: Any) -> None:
        """``directory``: default the run's checkpoint directory. ``keep``: how many of the newest stay.

        Raises ArgumentError where there is no directory (outside of a run, none given) or nothing to save.
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
        self._served = bundle.ServedVariables() if parameter_servers.is_chief(self._context) else None
        self._handover = handover_of(self._context.checkpoints) if self._context and self._context.checkpoints else None
        self._last: tuple[HeldCheckpoint | None, str] | None = None  # what was saved, where

    def save(self, step: int, *, durable: bool = False, **notes: Any) -> Path:
        """Save as checkpoint ``step`` (0 or more) with JSON ``notes``; the folder that it has, or will have, on all ranks.

        ``durable``: wait until it is on shared storage; see ``wait``.

        Raises ArgumentTypeError or ArgumentError for a bad step, OSError when the chief itself has to write and cannot.
        """
        if isinstance(step, bool) or not isinstance(step, int):
            raise ArgumentTypeError(f"step={step!r}: it must be an int, not {type(step).__name__}")
        if step < 0:
            raise ArgumentError(f"step={step}: it must be 0 or more")
        target = self._directory / checkpoint_files.folder_name(step)
        if leads(latest_strategy()):
            content = json.dumps({"step": step, **notes, "id": uuid.uuid4().hex}).encode()
            here = checkpoint_files.Description(
                os.path.abspath(target), content, step, self._keep, self._is_in_run_dir(), checkpoint_files.umask()
            )
            self._last = self._save(here), here.target
        elif self._needs_every_rank():
            self._take_part(private_folder() / checkpoint_files.folder_name(step))
        if durable:
            self.wait()
        return target

    def wait(self, timeout_s: float | None = None) -> None:
        """Until what was saved last is on the run's shared storage; on ranks other than the chief at once.

        Raises OSError where this machine's disk does not take it, StorageTimeout after ``timeout_s`` seconds.
        """
        if self._handover is not None and self._last is not None:
            self._handover.wait_stored(*self._last, timeout_s)

    def _save(self, description: checkpoint_files.Description) -> HeldCheckpoint | None:
        """By the agent where that is possible, else by this process, behind what the agent still has to write."""
        write: Callable[[str], object] = functools.partial(self._checkpoint.write, options=self._options())
        arrays = self._read()
        if self._handover is not None and arrays is not None:
            if held := self._handover.give(pack(arrays, description, _WRITE), description.target):
                return held
            write = functools.partial(bundle.write, arrays=arrays)
        self._wait_written()
        checkpoint_files.write_complete(description, write)
        return None

    def _options(self) -> Any:
        """By whom TensorFlow has files written and read: a parameter server may be on another machine than they."""
        import tensorflow as tf

        device = "/job:chief/replica:0/task:0/device:CPU:0" if parameter_servers.is_chief(self._context) else None
        return tf.train.CheckpointOptions(experimental_io_device=device)

    def _read(self) -> dict[str, Any] | None:
        return bundle.read(self._checkpoint, self._served) if self._handover is not None else None

    def _take_part(self, unused: Path) -> None:
        """What the chief does, as far as it needs every rank: both do the same for the same objects."""
        if self._read() is None:
            self._checkpoint.write(str(unused / "variables"))
            shutil.rmtree(unused)

    def _wait_written(self) -> None:
        if self._handover is not None:
            self._handover.wait_written()

    def restore_latest(self) -> int:
        """Restore the directory's newest complete checkpoint, else the one that the run goes on from.

        Returns its step, 0 when there is none. Variables that do not exist yet get their values when they are made.

        Raises ArgumentError when the objects have variables that the checkpoint does not hold.
        """
        self._wait_written()
        source = self._agree_on_source()
        if source is None:
            return 0
        # Keras makes an optimizer's variables at the first step; they must be there to be restored.
        optimizers.build_compiled(self._trackables.values())
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
        """Whether some variable is synchronised on read, which is a reduction over all ranks."""
        from tensorflow.python.checkpoint import trackable_view
        from tensorflow.python.distribute.values import SyncOnReadVariable

        for node in trackable_view.TrackableView(self._checkpoint).descendants():
            # A Keras 3 variable holds TensorFlow's; looked up without running code, which might read the variable.
            inner = getattr(node, "__dict__", {}).get("_value")
            if isinstance(node, SyncOnReadVariable) or isinstance(inner, SyncOnReadVariable):
                return True
        return False

    def _is_in_run_dir(self) -> bool:
        """Whether it is on its store already, where no mirror adds what a run that goes on looks for."""
        if self._context is None:
            return False
        scheme, _, path = urls.split(self._context.run_url)
        return scheme in ("", "file") and self._directory.is_relative_to(path)

    def _agree_on_source(self) -> checkpoint_files.SavedStep | None:
        """The checkpoint that all ranks restore, in a folder that this rank can read."""
        strategy = latest_strategy()
        if not in_group(strategy):
            return self._newest()
        chosen = self._newest() if leads(strategy) else None
        answer = json.dumps(None if chosen is None else [str(chosen.folder), chosen.notes]).encode()
        agreed = json.loads(file_exchange.broadcast_bytes(strategy, answer))
        if agreed is None:
            return None
        there = checkpoint_files.read_saved_step(Path(agreed[0]))
        if file_exchange.all_agree(strategy, there is not None and there.notes == agreed[1]):
            return there
        folder = chosen.folder if chosen is not None else private_folder() / Path(agreed[0]).name
        file_exchange.share_folder(strategy, folder)
        return checkpoint_files.read_saved_step(folder)

    def _newest(self) -> checkpoint_files.SavedStep | None:
        if newest := checkpoint_files.newest_sound(self._directory):
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
        """The checkpoint that the run goes on from."""
        return self._context.resume_checkpoint if self._context is not None else None


def _directory(given: str | os.PathLike[str] | None, context: WorkerContext | None) -> Path:
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
    if isinstance(keep, bool) or not isinstance(keep, int):
        raise ArgumentTypeError(f"keep={keep!r}: it must be an int, not {type(keep).__name__}")
    if keep < 1:
        raise ArgumentError(f"keep={keep}: it must be 1 or more, or the checkpoint just saved would be removed")
    return keep
