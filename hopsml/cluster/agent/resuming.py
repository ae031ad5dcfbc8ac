"""Fetches the checkpoint that a worker begins from where no agent holds a commit."""

from __future__ import annotations

from pathlib import Path

from hopsml.cluster.shared.protocol import Formation


def sources(formation: Formation) -> list[tuple[str, int]]:
    """Run directories to look into, in this order, each with the highest step to take from it; -1: any.

    An earlier generation of this very run may have left checkpoints; else it begins where another run stood. The driver
    names the steps that it knows of: all members take the same, whoever may still be writing there.
    """
    if formation.commit.step >= 0:
        return []
    own = [(formation.run_url, formation.commit.stored)] if formation.follows else []
    return own + ([(formation.resume.url, formation.resume.step)] if formation.resume.url else [])


def fetch(formation: Formation, folder: Path) -> tuple[str, list[str]]:
    """Copy the checkpoint to begin from to ``folder``: its path, "" if there is none; and what was skipped, and why.

    One whose content is not what was committed is passed over for the one before it. Raises StorageError.
    """
    from hopsml.storage import urls
    from hopsml.storage.run_dir import RunDir

    passed_over: list[str] = []
    for url, most in sources(formation):
        if found := _newest(RunDir(url).checkpoints, most, folder / urls.name(url), passed_over):
            return str(found), passed_over
    return "", passed_over


def fetch_further_fits(formation: Formation, folder: Path) -> tuple[str, list[str]]:
    """As ``fetch``, for each call of ``fit`` after the function's first: ``folder`` with ``fit-2/step-000000120`` and so on.

    An earlier generation of this very run is asked first here as well.
    """
    from hopsml.storage.run_dir import RunDir, fit_name

    passed_over: list[str] = []
    if formation.commit.step >= 0:
        return "", passed_over
    wanted = {fit: (url, step) for url, fit, step in formation.resume.fits}
    if formation.follows:
        wanted |= {fit: (formation.run_url, -1) for fit in RunDir(formation.run_url).further_fits()}
    for fit, (url, most) in wanted.items():
        _newest(RunDir(url).checkpoints_of(fit), most, folder / fit_name(fit), passed_over)
    return str(folder) if folder.is_dir() else "", passed_over


def _newest(source: str, most: int, folder: Path, passed_over: list[str]) -> Path | None:
    """A copy, in ``folder``, of the newest sound checkpoint in ``source`` up to the step ``most``; -1: any."""
    from hopsml.storage import checkpoints, urls
    from hopsml.storage.run_dir import step_name

    for step in reversed(checkpoints.steps(source)):
        if 0 <= most < step or not checkpoints.is_complete(urls.join(source, step_name(step))):
            continue
        target = folder / step_name(step)
        try:
            if not target.exists():  # else an earlier generation has fetched it
                checkpoints.fetch(source, step, target)
            return target
        except checkpoints.CorruptCheckpoint as error:
            passed_over.append(str(error))
    return None
