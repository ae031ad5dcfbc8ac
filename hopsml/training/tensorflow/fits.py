"""Checkpoint folders of each ``fit`` of a function, by the order of calls, the same on all ranks and after a restart.

Those of the first are in the run's checkpoint directory, those of the n-th in ``fit-<n>/checkpoints`` next to it.
Once a ``fit`` has trained, checkpoints of later ones from an earlier run result from different weights, and are not
used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.storage.run_dir import fit_name, fit_of
from hopsml.training.checkpoint_files import complete_checkpoints
from hopsml.training.tensorflow import file_exchange
from hopsml.training.tensorflow.checkpoints import Checkpointer
from hopsml.training.tensorflow.groups import in_group, latest_strategy

_function: tuple[str, Any] = ("", None)  # the function whose calls are counted: its run, and its trial
_begun = 0
_one_has_trained = False


def next_number() -> int:
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
        return bool(file_exchange.broadcast_bytes(strategy, b"1" if begun else b"")) if in_group(strategy) else begun

    def _later(self) -> Iterator[Path]:
        """Yield the folders of checkpoints of later fits, in this run and in the resumed one."""
        for root, below in ((self._root(), "checkpoints"), (self._resume_fits(), "")):
            for folder in root.glob("fit-*") if root is not None else ():
                if (fit_of(folder.name) or 0) > self._number:
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
