"""Files of a trial in its folder, such as ``trials/<id>/``, under the predecessor's names.

.hparams.json   the configuration, written at the beginning
output.log      what the function printed; see ``log_name``
.outputs.json   what it returned, with the path of the log
.metric         the searched metric, as text
trial.json      configuration, end, metric and its history
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopsml.cluster.shared.plain import as_json
from hopsml.cluster.worker.context import WorkerContext
from hopsml.core import redact
from hopsml.search.messages import RunTrial
from hopsml.search.metric import name_of
from hopsml.storage import urls, waiting
from hopsml.storage.backoff import pause_s
from hopsml.storage.run_dir import parse_step_name, step_name

EVENTS, CHECKPOINTS, EXPORT, LOG = "events", "checkpoints", "export", "output.log"
ARTIFACTS = "artifacts"  # exists only if something was saved
LOOK_AGAIN_S, LONGEST_S = 0.2, 2.0  # seconds between polls for a checkpoint that is being copied


def trial_folder(context: WorkerContext, trial_id: str) -> Path:
    """Return the trial's folder on this machine, which is mirrored if the run directory is elsewhere."""
    return context.export_dir.parent / context.trials / trial_id


def log_name(context: WorkerContext, trial: RunTrial) -> str:
    """Return the name of the trial's log.

    On a store that files are copied to, a later part of a trial must not replace the log that an earlier part has
    stored there from another machine.
    """
    if urls.split(context.run_url)[0] in ("", "file"):
        return LOG  # all parts append to it
    attempt = f"-attempt-{trial.attempt}" if trial.attempt > 1 else ""
    part = f"-after-step-{trial.done_step}" if trial.done_step >= 0 else ""
    return f"output{attempt}{part}.log"


def create_folders(folder: Path) -> None:
    """Create the folders that every trial has: events, checkpoints, export."""
    for name in (EVENTS, CHECKPOINTS, EXPORT):
        (folder / name).mkdir(parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: write a temporary file next to it and rename it."""
    fresh = urls.temporary_sibling(str(path))
    with open(fresh, "wb", buffering=0) as file:  # unbuffered, because the time to write delays the next trial
        file.write(text.encode(errors="replace"))
    os.replace(fresh, path)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON, atomically and with secrets masked; NaN is retained."""
    write_text(path, json.dumps(redact.record(as_json(record)), ensure_ascii=False) + "\n")


def write_trial_record(
    folder: Path,
    trial: RunTrial,
    config: Mapping[str, Any],
    *,
    how: str,
    error: str = "",
    metric: float | None = None,
    history: list[tuple[int, float]] | None = None,
    began: float | None = None,
) -> None:
    """Write ``trial.json``, the record of a trial that has ended; ``began`` is in seconds since the epoch."""
    now = time.time()
    write_json(
        folder / "trial.json",
        {
            "trial_id": trial.trial_id,
            "number": trial.number,
            "attempt": trial.attempt,
            "params": dict(config),
            "status": "FINALIZED" if how == "finished" else how.upper(),
            "early_stop": how == "stopped",
            "final_metric": metric,
            "metric_history": [value for _, value in history or ()],
            "step_history": [step for step, _ in history or ()],
            "start": began,
            "duration": round(1000 * (now - began)) if began is not None else None,  # ms, as in Maggy
            "error": error,
        },
    )


def has_tensorboard() -> bool:
    """Return True if the function uses TensorFlow and tensorboard is installed.

    tensorboard's API imports TensorFlow, which is too slow for functions that do not use it.
    """
    return "tensorflow" in sys.modules and importlib.util.find_spec("tensorboard") is not None


def write_hparams(
    events: Path, trial_id: str, config: Mapping[str, Any], metric: str, value: float | None, step: int
) -> None:
    """Write the trial for TensorBoard's HParams view, in its own event file; values of other types become text."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.plugins.scalar import summary_v2 as scalars
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(events), filename_suffix=".hparams")
    try:
        shown = {str(name): one if isinstance(one, (int, float, str)) else str(one) for name, one in config.items()}
        writer.add_event(Event(wall_time=time.time(), summary=hparams.hparams_pb(shown, trial_id=trial_id)))
        if value is not None:
            summary = scalars.scalar_pb(name_of(metric), value)
            writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    finally:
        writer.close()


def write_death_record(folder: Path, trial: RunTrial, how: str) -> None:
    """Write the record of a trial whose process died; an OSError is printed, so that the lane continues."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_trial_record(folder, trial, pickle.loads(trial.config), how="died", error=how)
    except OSError as error:
        print(f"hopsml: the record of trial {trial.trial_id} cannot be written: {error}")


def newest_checkpoint_step(folder: Path) -> int:
    """Return the step of the newest complete checkpoint in a local folder; -1 without any.

    On a local disk a checkpoint is complete as soon as it has its name: it is written under another one and renamed.
    """
    try:
        steps = [parse_step_name(name) for name in os.listdir(folder)]
    except OSError:
        return -1
    return max((step for step in steps if step is not None), default=-1)


# -- the checkpoint that a trial continues from: a copy on this machine, or one from the shared run directory


def obtain_checkpoint(context: WorkerContext, trial: RunTrial, timeout_s: float) -> Path | None:
    """Return a folder with the newest complete checkpoint of ``trial.resume_from``; None if it has none.

    It waits up to ``timeout_s`` seconds for a checkpoint that is known to be complete but is still being copied from
    another machine.
    """
    if not trial.resume_from:
        return None
    folder = trial_folder(context, trial.resume_from) / CHECKPOINTS
    here = newest_checkpoint_step(folder)
    remote = urls.split(context.run_url)[0] not in ("", "file")
    there = _newest_there(context, trial, here, timeout_s) if remote else -1
    parent = context.work_dir / "resume" / f"{trial.trial_id}-{trial.attempt}"
    if there > here and (fetched := _fetch(context, trial, there, parent)) is not None:
        return fetched
    if here < 0:
        return None
    target = _empty(parent, here)
    # Hard links: the writer may delete a checkpoint at any time, and a complete one is never changed.
    shutil.copytree(folder / step_name(here), target, copy_function=_link)
    return target


def _empty(parent: Path, step: int) -> Path:
    """Return the path for a checkpoint's copy, without a file there."""
    target = parent / step_name(step)
    shutil.rmtree(target, ignore_errors=True)
    parent.mkdir(parents=True, exist_ok=True)
    return target


def _shared(context: WorkerContext, trial: RunTrial) -> str:
    """Return the URL of the checkpoints of the trial to continue from."""
    return urls.join(context.run_url.rstrip("/"), context.trials, trial.resume_from, CHECKPOINTS)


@waiting.counted_as_wait
def _newest_there(context: WorkerContext, trial: RunTrial, here: int, timeout_s: float) -> int:
    """Return the newest complete step on the shared storage, -1 for none; wait for the expected step."""
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


def _fetch(context: WorkerContext, trial: RunTrial, newest: int, parent: Path) -> Path | None:
    """Copy the checkpoint ``newest``, or the newest intact one if that is corrupt; return None without any."""
    from hopsml.storage import checkpoints, filesystem

    url, step = _shared(context, trial), newest
    try:
        try:
            return checkpoints.fetch(url, step, _empty(parent, step))
        except checkpoints.CorruptCheckpoint as error:
            print(f"hopsml: a checkpoint is passed over: {error}", flush=True)
        sound = checkpoints.latest_sound(url)
        return None if sound is None else checkpoints.fetch(url, sound, _empty(parent, sound))
    finally:
        filesystem.close_all()  # helper processes of the storage must not count as left by the trial


def _link(source: str, target: str) -> None:
    """Link a file, or copy it if that is not possible."""
    try:
        os.link(source, target)
    except OSError:  # the target is on another file system
        shutil.copy2(source, target)
