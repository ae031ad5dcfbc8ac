"""The checkpoint that a trial continues from: a copy on this machine, or one from the shared run directory."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from hopsml.cluster.worker.context import WorkerContext
from hopsml.search.messages import RunTrial
from hopsml.storage import urls
from hopsml.storage.backoff import pause_s
from hopsml.storage.run_dir import step_name
from hopsml.training.trials import trial_files

LOOK_AGAIN_S, LONGEST_S = 0.2, 2.0


def obtain(context: WorkerContext, trial: RunTrial, timeout_s: float) -> Path | None:
    """A folder with the newest complete checkpoint of ``trial.resume_from``; None where it has none.

    One that is known to be complete is waited for: it may still be on its way from another machine.
    """
    if not trial.resume_from:
        return None
    folder = trial_files.folder_of(context, trial.resume_from) / trial_files.CHECKPOINTS
    here = trial_files.newest_checkpoint(folder)
    remote = urls.split(context.run_url)[0] not in ("", "file")
    there = _newest_there(context, trial, here, timeout_s) if remote else -1
    if max(here, there) < 0:
        return None
    target = context.work_dir / "resume" / f"{trial.trial_id}-{trial.attempt}" / step_name(max(here, there))
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if here >= there:
        # Hard links: its writer may delete it at any time, and nobody changes a complete one.
        shutil.copytree(folder / step_name(here), target, copy_function=_link)
    else:
        _fetch(context, trial, there, target)
    return target


def _shared(context: WorkerContext, trial: RunTrial) -> str:
    return urls.join(context.run_url.rstrip("/"), context.trials, trial.resume_from, trial_files.CHECKPOINTS)


def _newest_there(context: WorkerContext, trial: RunTrial, here: int, timeout_s: float) -> int:
    from hopsml.storage import checkpoints, filesystem

    url = _shared(context, trial)
    deadline, looks = time.monotonic() + timeout_s, 0
    try:
        while True:
            looks += 1
            step = checkpoints.latest_complete(url)
            newest = -1 if step is None else step
            if max(newest, here) >= trial.resume_step or time.monotonic() > deadline:
                return newest
            time.sleep(pause_s(looks, LOOK_AGAIN_S, LONGEST_S))
    finally:
        filesystem.close_all()


def _fetch(context: WorkerContext, trial: RunTrial, step: int, target: Path) -> None:
    from hopsml.storage import checkpoints, filesystem

    try:
        checkpoints.fetch(_shared(context, trial), step, target)
    finally:
        filesystem.close_all()  # helper processes of the storage are nothing that the trial has left


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
