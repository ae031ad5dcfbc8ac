"""Checkpoints of TensorFlow objects: complete or absent, the same on every rank.

A checkpoint is a folder ``step-000000120`` in the run's checkpoint directory. It is written aside as
``.step-000000120.tmp`` and renamed when all of it is on disk, so a folder of the first name is complete; what
a worker left half-written is never read and is swept up by the next save.

All ranks call ``save`` and ``restore_latest`` at the same place of the program. Only the chief's files are
kept: the others write, where reading a variable needs every rank (those synchronised on read), to a folder
that goes away. The chief picks what is restored, and sends it to the ranks that do not see the very same
files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.storage import urls
from hopsml.storage.checkpoints import write_keep, write_manifest
from hopsml.training.tensorflow import file_exchange, optimizers
from hopsml.training.tensorflow.groups import in_group, latest_strategy, leads
from hopsml.training.tensorflow.keras_callbacks import private_folder

_NAME = re.compile(r"step-(\d{9,})")
_DESCRIPTION = "checkpoint.json"
_VARIABLES = "variables"


@dataclass(frozen=True)
class SavedStep:
    """A complete checkpoint: its step, its folder, and what was noted beside the variables."""

    step: int
    folder: Path
    notes: dict[str, Any]


def folder_name(step: int) -> str:
    """``step-000000120`` for 120: names sort as their steps do."""
    return f"step-{step:09d}"


def read_saved_step(folder: Path) -> SavedStep | None:
    """The checkpoint in ``folder``; None if that is not the folder of a complete one."""
    match = _NAME.fullmatch(folder.name)
    try:
        notes = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return SavedStep(int(match.group(1)), folder, notes) if match and isinstance(notes, dict) else None


def complete_checkpoints(directory: Path) -> list[SavedStep]:
    """The complete checkpoints of a directory, oldest step first."""
    folders = directory.iterdir() if directory.is_dir() else ()
    found = [saved for folder in folders if (saved := read_saved_step(folder)) is not None]
    return sorted(found, key=lambda saved: saved.step)


class Checkpointer:
    """Saves and restores TensorFlow objects: models, optimizers, variables, datasets' iterators.

        checkpointer = hopsml.tensorflow.Checkpointer(model=model, optimizer=optimizer)
        step = checkpointer.restore_latest()          # 0 when there is nothing to go on from
        ...
        checkpointer.save(step)                       # on every rank

    ``notes`` holds, after a restore, what was given to ``save`` beside the step.
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

    def save(self, step: int, **notes: Any) -> Path:
        """Save as checkpoint ``step`` (0 or more) with JSON ``notes``; its folder, on all ranks.

        Raises ArgumentTypeError or ArgumentError for a bad step, OSError when the chief cannot write.
        """
        if isinstance(step, bool) or not isinstance(step, int):
            raise ArgumentTypeError(f"step={step!r}: it must be an int, not {type(step).__name__}")
        if step < 0:
            raise ArgumentError(f"step={step}: it must be 0 or more")
        target = self._directory / folder_name(step)
        if leads(latest_strategy()):
            self._directory.mkdir(parents=True, exist_ok=True)
            write_keep(self._directory, self._keep)  # the mirror prunes the shared storage alike
            self._write_complete(target, {"step": step, **notes, "id": uuid.uuid4().hex})
            for old in complete_checkpoints(self._directory)[: -self._keep]:
                shutil.rmtree(old.folder)
        elif self._needs_every_rank():
            unused = private_folder() / folder_name(step)
            self._checkpoint.write(str(unused / _VARIABLES))
            shutil.rmtree(unused)
        return target

    def restore_latest(self) -> int:
        """Restore the directory's newest complete checkpoint, else the one that the run goes on from.

        Returns its step, 0 when there is none. Variables that do not exist yet get their values when they are
        made.

        Raises ArgumentError when the objects have variables that the checkpoint does not hold.
        """
        source = self._agree_on_source()
        if source is None:
            return 0
        # Keras makes an optimizer's variables at the first step; they must be there to be restored.
        optimizers.build_compiled(self._trackables.values())
        status = self._checkpoint.read(str(source.folder / _VARIABLES))
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
            # A Keras 3 variable holds TensorFlow's; looked up without running code, which might read the
            # variable.
            inner = getattr(node, "__dict__", {}).get("_value")
            if isinstance(node, SyncOnReadVariable) or isinstance(inner, SyncOnReadVariable):
                return True
        return False

    def _write_complete(self, target: Path, description: dict[str, Any]) -> None:
        for left in self._directory.glob(".step-*.tmp"):
            shutil.rmtree(left)
        aside = target.with_name(f".{target.name}.tmp")
        aside.mkdir(parents=True)
        self._checkpoint.write(str(aside / _VARIABLES))
        (aside / _DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
        if self._is_in_run_dir():
            write_manifest(aside, description["step"])
        for file in aside.iterdir():
            _flush(file)
        replaced = target.with_name(f".{target.name}-replaced.tmp")
        if target.exists():  # the same step once more: a folder cannot be replaced in one go
            target.rename(replaced)
        aside.rename(target)
        _flush(self._directory)
        shutil.rmtree(replaced, ignore_errors=True)

    def _is_in_run_dir(self) -> bool:
        """Whether it is on its store already, where no mirror adds what a run that goes on looks for."""
        if self._context is None:
            return False
        scheme, _, path = urls.split(self._context.run_url)
        return scheme in ("", "file") and self._directory.is_relative_to(path)

    def _agree_on_source(self) -> SavedStep | None:
        """The checkpoint that all ranks restore, in a folder that this rank can read."""
        strategy = latest_strategy()
        if not in_group(strategy):
            return self._newest()
        chosen = self._newest() if leads(strategy) else None
        answer = json.dumps(None if chosen is None else [str(chosen.folder), chosen.notes]).encode()
        agreed = json.loads(file_exchange.broadcast_bytes(strategy, answer))
        if agreed is None:
            return None
        there = read_saved_step(Path(agreed[0]))
        if file_exchange.all_agree(strategy, there is not None and there.notes == agreed[1]):
            return there
        folder = chosen.folder if chosen is not None else private_folder() / Path(agreed[0]).name
        file_exchange.share_folder(strategy, folder)
        return read_saved_step(folder)

    def _newest(self) -> SavedStep | None:
        complete = complete_checkpoints(self._directory)
        if complete:
            return complete[-1]
        resume = self._resume()
        if resume is None:
            return None
        saved = read_saved_step(resume)
        if saved is None:
            raise ArgumentError(f"{resume} is not a complete checkpoint: it has no readable {_DESCRIPTION}")
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


def _flush(path: Path) -> None:
    """Have the operating system write a file or folder to disk before it is announced."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
