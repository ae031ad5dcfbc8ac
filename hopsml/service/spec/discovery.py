"""How tasks of a job find one another: a variable for each task, with the addresses of its workers in rank order.

HOPSML_TASK_<NAME>_ADDRESSES=node2:41001,node5:41007

hopsml.service.spec.discovery.addresses("train")      # ["node2:41001", "node5:41007"], inside any task of the job
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from hopsml import suggestions
from hopsml.errors import ArgumentError
from hopsml.service.spec.job import JobSpec
from hopsml.service.spec.task import OURS

_PREFIX, _END = OURS, "_ADDRESSES"
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def variable(task: str) -> str:
    """The variable of a task. No two tasks of a job have the same: their names have no underscore."""
    return f"{_PREFIX}{task.upper().replace('-', '_')}{_END}"


def is_variable(name: str) -> bool:
    """Whether a variable says where a task's workers are."""
    return name.startswith(_PREFIX) and name.endswith(_END)


def environment(job: JobSpec, placements: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The variables that every worker of the job gets.

    Args:
        job: whose tasks are to find one another.
        placements: of each task the addresses of its workers, "host:port", in rank order.

    Raises ArgumentError for a task that the job has not, or that has no placement, too few or too many workers, or an
    address that is none.
    """
    for name in placements:
        if name not in job.tasks:
            raise ArgumentError(
                f"job {job.name} has no task {name!r}; {suggestions.instead(name, job.tasks, 'look at job.tasks')}"
            )
    return {variable(name): _addresses(job, name, placements.get(name, ())) for name in job.tasks}


def _addresses(job: JobSpec, name: str, placed: Sequence[str]) -> str:
    fewest, most = job.tasks[name].fewest, job.tasks[name].most
    if not fewest <= len(placed) <= most:
        rule = str(fewest) if fewest == most else f"{fewest} to {most}"
        raise ArgumentError(
            f"task {name!r} of job {job.name} is placed on {len(placed)} addresses; it has {rule} workers: "
            "place them all first"
        )
    for address in placed:
        found = _ADDRESS.fullmatch(address)
        if found is None or not 0 < int(found[1]) < 65_536:
            raise ArgumentError(f"task {name!r}: {address!r} is no address: it must be host:port, as in node2:41001")
    return ",".join(placed)


def addresses(task: str, variables: Mapping[str, str] | None = None) -> list[str]:
    """Addresses of a task's workers, "host:port", in rank order; called inside any task of the same job.

    ``variables``: instead of this process's environment. Raises ArgumentError where there is no such task, with those that
    there are, and outside of a job.
    """
    given = os.environ if variables is None else variables
    if text := given.get(variable(task)):
        return text.split(",")
    there = sorted(name[len(_PREFIX) : -len(_END)].lower().replace("_", "-") for name in given if is_variable(name))
    if not there:
        raise ArgumentError(
            f"the addresses of task {task!r} are not known: this process is no task of a job (no variable {_PREFIX}*{_END} "
            "is set); call it in what a job file starts"
        )
    raise ArgumentError(
        f"this job has no task {task!r}; {suggestions.instead(task, there, 'there are: ' + ', '.join(there))}"
    )
