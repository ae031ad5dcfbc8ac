"""Files of a worker: its assignment, function and checkpoint before it starts, and what it has saved, at its end."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hopsml.cluster.agent.core_lock import WorkerCores
from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.agent.local_tree import LocalTree
from hopsml.cluster.shared.layout import GROUP_NAMES, OURS, check_environment, group_variables
from hopsml.cluster.shared.protocol import Formation, Launch
from hopsml.cluster.worker import returned
from hopsml.cluster.worker.sidecar import ADDRESS
from hopsml.cluster.worker.worker import Assignment
from hopsml.core import proxies
from hopsml.errors import EnvironmentConflict
from hopsml.storage import left_files

_USERS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_CONFIG", *GROUP_NAMES)


def write_assignment(
    formation: Formation,
    launch: Launch,
    folder: Path,
    tree: LocalTree,
    environment: Mapping[str, str],
    sys_path: tuple[str, ...],
    commits: HeldCommits | None,
    cores: WorkerCores,
    sidecar: Path | None,
    note: Callable[[str], None],
) -> Path:
    """Write assignment, function and checkpoint into ``folder``; return the path of the assignment.

    Args:
        formation: what all workers of the generation share.
        launch: what is specific to this worker.
        folder: scratch folder of the worker.
        tree: local tree of the run directory.
        environment: variables of the slot.
        sys_path: the driver's ``sys.path``, if it shares the disk.
        commits: commits of a run whose group may change.
        cores: processors and threads of the worker.
        sidecar: folder of the run's sidecar, if it has one.
        note: called with each note for the user, on the calling thread.
    """
    (folder / "cwd").mkdir(parents=True, exist_ok=True)
    payload = folder / "function.pickle"
    payload.write_bytes(formation.payload)
    assignment = Assignment(
        formation=msgspec.structs.replace(formation, payload=b""),
        launch=launch,
        work_dir=str(folder / "cwd"),
        events_dir=f"{tree.base_text.rstrip('/')}/events",
        checkpoint_dir=str(tree.base / "checkpoints"),
        export_dir=str(tree.base / "export"),
        payload=str(payload),
        resume_checkpoint=_checkpoint(formation, folder, note),
        resume_fits=_further_fits(formation, folder, note),
        environment=cores.variables(formation.spec.environment) | _environment(formation, launch, environment),
        sys_path=sys_path,
        cores=cores.numbers,
        commit_slot=commits.slot if commits is not None else -1,
        commit_folder=str(commits.folder / "commits") if commits is not None else "",
        sidecar=str(sidecar / ADDRESS) if sidecar is not None else "",
        agent_pid=os.getpid(),
    )
    path = folder / "assignment"
    path.write_bytes(msgspec.msgpack.encode(assignment))
    return path


def _environment(formation: Formation, launch: Launch, of_slot: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's variables: the user's, overridden by the slot's and the group's.

    With ``honour_environment`` the user's take precedence.
    """
    given = formation.spec.environment
    group = formation.cluster_json, formation.leader, formation.world_size
    members = proxies.hosts_of(formation.cluster_json, [formation.leader, *formation.collective])
    ours = {
        **of_slot,
        **proxies.bypass_variables(members, given, os.environ),
        **group_variables(*group, launch.role, launch.task_index),
        **launch.environment,
    }
    if formation.spec.honour_environment:
        users = {name for name in _USERS if name in given or name in os.environ}
        ours = {name: value for name, value in ours.items() if name not in users}
    return {**given, **ours, OURS: ",".join(name for name in GROUP_NAMES if name in ours)}


def _checkpoint(formation: Formation, folder: Path, note: Callable[[str], None]) -> str:
    """Return the folder with a copy of the checkpoint to start from; "" if there is none."""
    if not checkpoint_sources(formation):
        return ""
    found, passed_over = fetch_checkpoint(formation, folder / "resume")
    for problem in passed_over:
        note(f"a checkpoint is skipped: {problem}")
    return found


def _further_fits(formation: Formation, folder: Path, note: Callable[[str], None]) -> str:
    """Return the folder with copies for further calls of ``fit``; "" if there are none."""
    found, passed_over = fetch_later_fit_checkpoints(formation, folder / "resume" / "fits")
    for problem in passed_over:
        note(f"a checkpoint is skipped: {problem}")
    return found


def environment_conflict(formation: Formation) -> str:
    """Return the error text if this executor's environment sets variables that must not be overwritten, else ""."""
    if formation.spec.honour_environment:
        return ""
    try:
        check_environment(os.environ)
    except EnvironmentConflict as error:
        return f"{type(error).__name__}: {error}"
    return ""


def checkpoint_sources(formation: Formation) -> list[tuple[str, int]]:
    """Return the run directories to search for a checkpoint, in order, each with the highest step to use; -1: any.

    An earlier generation of this run may have written checkpoints; otherwise the run starts from another run's. The
    driver names the steps that it has recorded, so that all members start from the same one, even if a process still
    writes there.
    """
    if formation.commit.step >= 0:
        return []
    own = [(formation.run_url, formation.commit.stored)] if formation.may_have_checkpoints else []
    return own + ([(formation.resume.url, formation.resume.step)] if formation.resume.url else [])


def newer_stored_step(formation: Formation) -> int | None:
    """Return the step of a stored commit of this run that is newer than the one the driver knows; None if none is.

    When the driver is stopped or cannot be reached, agents continue storing commits for a while and then exit, so that
    their reports are lost. The older checkpoint may have been deleted by then. Raises StorageError.
    """
    from hopsml.storage import checkpoints, filesystem, urls
    from hopsml.storage.run_dir import RunDir, step_name

    commit = formation.commit
    if not formation.may_have_checkpoints or commit.step >= 0 or commit.stored < 0:
        return None
    source = RunDir(formation.run_url).checkpoints
    for step in reversed(checkpoints.steps(source)):
        url = urls.join(source, step_name(step))
        if step <= commit.stored:
            return None
        # excludes the user's own checkpoints
        if filesystem.exists(urls.join(url, checkpoints.STATE_FILE)) and checkpoints.is_sound(url):
            return step
    return None


def fetch_checkpoint(formation: Formation, folder: Path) -> tuple[str, list[str]]:
    """Copy the checkpoint to start from into ``folder``; return its path ("" if none) and the skipped ones.

    A checkpoint whose content differs from what was committed is skipped, with a reason, in favour of the previous one.
    Raises StorageError.
    """
    from hopsml.storage import urls
    from hopsml.storage.run_dir import RunDir

    passed_over: list[str] = []
    for url, most in checkpoint_sources(formation):
        if found := _newest(RunDir(url).checkpoints, most, folder / urls.name(url), passed_over):
            return str(found), passed_over
    return "", passed_over


def fetch_later_fit_checkpoints(formation: Formation, folder: Path) -> tuple[str, list[str]]:
    """Copy the checkpoints for calls of ``fit`` after the function's first; return ``folder`` and the skipped ones.

    Results are as of ``fetch_checkpoint``; ``folder`` gets ``fit-2/step-000000120`` and so on. Checkpoints of an earlier
    generation of this run take precedence.
    """
    from hopsml.storage.run_dir import RunDir, fit_name

    passed_over: list[str] = []
    if formation.commit.step >= 0:
        return "", passed_over
    wanted = {fit: (url, step) for url, fit, step in formation.resume.fits}
    if formation.may_have_checkpoints:
        wanted |= {fit: (formation.run_url, -1) for fit in RunDir(formation.run_url).list_further_fits()}
    for fit, (url, most) in wanted.items():
        _newest(RunDir(url).checkpoints_of_fit(fit), most, folder / fit_name(fit), passed_over)
    return str(folder) if folder.is_dir() else "", passed_over


def _newest(source: str, most: int, folder: Path, passed_over: list[str]) -> Path | None:
    """Copy the newest sound checkpoint in ``source`` up to step ``most`` (-1: any) into ``folder``; return its path."""
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


async def store_saved_files(formation: Formation, launch: Launch, tree: LocalTree, folder: Path) -> tuple[str, str]:
    """Store the files of a worker's working folder in the run directory.

    A search has stored those of its trials already. Files that cannot be stored are left where they outlive the agent.

    Args:
        formation: what all workers of the generation share.
        launch: what is specific to this worker.
        tree: local tree of the run directory.
        folder: scratch folder of the worker.

    Returns:
        A note, and what was not stored, with the reason; both empty if all was stored.
    """
    saved, name = folder / "cwd", "artifacts" if launch.rank == 0 else f"artifacts/rank-{launch.rank}"
    if not saved.is_dir():
        return "", ""
    try:
        return await asyncio.to_thread(returned.store_files, saved, tree.base / name), ""
    except OSError as error:
        reason = error.strerror or str(error)
    note = f"files that were saved in the worker's folder could not be copied to {tree.url(name)}: {reason}"
    missing = f"{name}: {reason}"
    try:
        left = left_files.rescue_worker_files(saved, formation.run_id, launch.rank)
    except OSError as error:
        return f"{note}; they are lost, since they could not be stored on {platform.node()} either: {error}", missing
    host, _, path = left.partition(":")
    return f"{note}; they are in {path} on {host}: copy them from there, and remove that folder", missing
