"""Folder of a job's code on this machine, which ``workspace`` names relative to the job file."""

from __future__ import annotations

import ast
from pathlib import Path

from hopsml.errors import ArgumentError
from hopsml.service.spec.job import JobSpec
from hopsml.service.spec.task import Task
from hopsml.submission import script as scripts


def folder(job: JobSpec, job_file: Path) -> Path:
    """Return the folder of a job's workspace.

    Raises:
        ArgumentError: The folder does not exist, or the workspace is a zip or git URL, which must be unpacked first.
    """
    found = job_file.parent / job.workspace
    if "://" in job.workspace or job.workspace.startswith("git@") or found.suffix == ".zip":
        raise ArgumentError(
            f"workspace {job.workspace}: its code is not on this machine as a folder; fetch or unpack it, and name the "
            "folder as workspace"
        )
    if not found.is_dir():
        raise ArgumentError(f"workspace {job.workspace}: there is no folder {found}; name one that is there")
    return found


def files(task: Task, workspace: Path) -> list[Path]:
    """Return the files that a task names; of a command, those that exist."""
    return [workspace / named for named in task.files() if task.command is None or (workspace / named).is_file()]


def check(name: str, task: Task, workspace: Path) -> None:
    """Raise ArgumentError if a task's file is missing, is not valid Python, or lacks the task's function."""
    if task.command is not None:
        return
    (path,) = files(task, workspace)
    tree = scripts.read(str(path))
    if task.function is None:
        return
    function = task.function.rpartition(":")[2]
    there = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    assigned = {each.id for one in tree.body for each in ast.walk(one) if isinstance(each, ast.Name)}
    imported = {alias.asname or alias.name for one in ast.walk(tree) for alias in getattr(one, "names", ())
                if isinstance(alias, ast.alias)}  # fmt: skip
    if function not in {*there, *assigned, *imported}:
        raise ArgumentError(
            f"task {name!r}: {path} has no function {function}; there are: {', '.join(there) or 'none'}"
        )
