"""Writes what a worker finds when it begins: its assignment, function, variables, and a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hopsml.cluster.agent import resuming
from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.agent.local_tree import LocalTree
from hopsml.cluster.shared.layout import GROUP_NAMES, OURS, group_variables
from hopsml.cluster.shared.protocol import Formation, Launch
from hopsml.cluster.worker.worker import Assignment

_USERS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_CONFIG", *GROUP_NAMES)


def write(
    formation: Formation,
    launch: Launch,
    folder: Path,
    tree: LocalTree,
    environment: Mapping[str, str],
    sys_path: tuple[str, ...],
    commits: HeldCommits | None,
    note: Callable[[str], None],
) -> Path:
    """Write assignment, function and checkpoint into ``folder``; returns the assignment's path. ``environment``: the slot's.

    ``note`` is told what people should know, on the calling thread.
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
        environment=_environment(formation, launch, environment),
        sys_path=sys_path,
        commit_slot=commits.slot if commits is not None else -1,
        commit_folder=str(commits.folder / "commits") if commits is not None else "",
    )
    path = folder / "assignment"
    path.write_bytes(msgspec.msgpack.encode(assignment))
    return path


def _environment(formation: Formation, launch: Launch, of_slot: Mapping[str, str]) -> dict[str, str]:
    given = formation.spec.environment
    group = formation.cluster_json, formation.leader, formation.world_size
    ours = {**of_slot, **launch.environment, **group_variables(*group, launch.role, launch.task_index)}
    if formation.spec.honour_environment:
        users = {name for name in _USERS if name in given or name in os.environ}
        ours = {name: value for name, value in ours.items() if name not in users}
    return {**given, **ours, OURS: ",".join(name for name in GROUP_NAMES if name in ours)}


def _checkpoint(formation: Formation, folder: Path, note: Callable[[str], None]) -> str:
    """Folder with a copy of the checkpoint to begin from; "" if there is none."""
    if not resuming.sources(formation):
        return ""
    found, passed_over = resuming.fetch(formation, folder / "resume")
    for problem in passed_over:
        note(f"a checkpoint is passed over: {problem}")
    return found


def _further_fits(formation: Formation, folder: Path, note: Callable[[str], None]) -> str:
    """Folder with copies for further calls of ``fit``; "" if there are none."""
    found, passed_over = resuming.fetch_further_fits(formation, folder / "resume" / "fits")
    for problem in passed_over:
        note(f"a checkpoint is passed over: {problem}")
    return found
