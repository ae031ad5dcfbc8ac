"""Which checkpoint a worker begins with where no agent holds a commit, brought to the worker's machine."""

from __future__ import annotations

from pathlib import Path

from hopsml.cluster.protocol import Formation


def sources(formation: Formation) -> list[tuple[str, int]]:
    """Run directories to look into, in this order, each with the highest step to take from it; -1: any.

    An earlier generation of this very run may have left checkpoints; else it begins where another run stood. Of that one
    the driver has named the step: all members take the same, whoever may still be writing there.
    """
    if formation.commit_step >= 0:
        return []
    own = [(formation.run_url, -1)] if formation.generation and formation.elastic else []
    return own + ([(formation.resume_url, formation.resume_step)] if formation.resume_url else [])


def fetch(formation: Formation, folder: Path) -> tuple[str, list[str]]:
    """A copy of the checkpoint to begin with, below ``folder``, "" where there is none; and what was passed over, and why.

    One whose content is not what was committed is passed over for the one before it. Raises StorageError.
    """
    from hopsml.storage import checkpoints, urls
    from hopsml.storage.run_dir import RunDir, step_name

    passed_over: list[str] = []
    for url, most in sources(formation):
        source = RunDir(url).checkpoints
        for step in reversed(checkpoints.steps(source)):
            if 0 <= most < step or not checkpoints.is_complete(urls.join(source, step_name(step))):
                continue
            target = folder / urls.name(url) / step_name(step)
            try:
                if not target.exists():  # else an earlier generation has fetched it
                    checkpoints.fetch(source, step, target)
                return str(target), passed_over
            except checkpoints.CorruptCheckpoint as error:
                passed_over.append(str(error))
    return "", passed_over
