"""Access to the trial that the calling code belongs to (``hopsml.trial()``)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.storage import durable, urls
from hopsml.storage.run_dir import step_name


@dataclass(frozen=True)
class Trial:
    """Trial of a search, as seen by the user's function: one point of the search space.

    ``checkpoint_dir`` is mirrored to shared storage; a checkpoint that ``checkpoint()`` has written there is complete
    or absent. A trial that continues from another one, or from an earlier part of itself, finds a copy of that one's
    newest complete checkpoint in ``resume_checkpoint``; ``done_step`` is the last step that had been reported by
    then, -1 for none.
    """

    number: int
    trial_id: str
    config: dict[str, Any]
    checkpoint_dir: Path
    resume_checkpoint: Path | None = None
    done_step: int = -1
    attempt: int = 0
    folder: Path = field(default=Path(), repr=False)

    @property
    def id(self) -> str:
        """The trial's id: the name of its folder in ``trials/``."""
        return self.trial_id

    @property
    def resume_step(self) -> int | None:
        """The step of ``resume_checkpoint``; None if there is none."""
        return None if self.resume_checkpoint is None else int(self.resume_checkpoint.name.removeprefix("step-"))

    @contextlib.contextmanager
    def checkpoint(self, step: int, keep: int = 2) -> Iterator[Path]:
        """Return a context manager for a folder that becomes the checkpoint of ``step`` at the end of the block.

            with hopsml.trial().checkpoint(epoch) as folder:
                np.save(folder / "weights.npy", weights)

        The folder gets its final name atomically. After an error in the block there is no checkpoint. TensorFlow's
        checkpoints are written by ``hopsml.tensorflow.Checkpointer``.

        Args:
            step: step to which the checkpoint belongs.
            keep: number of newest checkpoints to retain.
        """
        from hopsml.storage.checkpoints import write_keep
        from hopsml.storage.run_dir import step_of

        if isinstance(keep, bool) or keep < 1:
            raise ArgumentError(f"keep={keep!r}: at least 1 checkpoint must be kept")
        target = self.checkpoint_dir / step_name(step)
        fresh = Path(urls.temporary_sibling(str(target)))
        fresh.mkdir(parents=True)
        try:
            yield fresh
            write_keep(self.checkpoint_dir, keep)
            durable.sync_tree(fresh)
            shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
            durable.sync_name(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        others = sorted(path for path in self.checkpoint_dir.iterdir() if step_of(path.name) not in (None, step))
        for old in others[: len(others) - (keep - 1)]:
            shutil.rmtree(old, ignore_errors=True)


def trial() -> Trial | None:
    """Return the search trial that the calling code runs in; None outside of a search."""
    context = current()
    return None if context is None else cast("Trial | None", context.trial)
