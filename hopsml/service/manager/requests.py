"""A job file as the scheduler's request, and as the rules by which the job lives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hopsml.service.engine.base import Engine
from hopsml.service.lifecycle import JobRecord, TaskRule
from hopsml.service.scheduler.policy import GangRequest
from hopsml.service.scheduler.resources import GangShape, Placement, Resources, SlotGroup
from hopsml.service.spec import JobSpec

DRIVER = "driver of "  # the part of a gang for the driver of a task


def request(job_id: str, user: str, queue: str, priority: int, spec: JobSpec, engine: Engine) -> GangRequest:
    """What the job asks the scheduler for: of each task its driver and its workers, whole or not at all.

    Queue and priority are those of now, which may not be the job file's any more.
    """
    expected_s = float(spec.time_limit_s) if spec.time_limit_s is not None else math.inf
    shape = gang(spec, engine)
    return GangRequest(job_id, shape, queue, priority, user, expected_s=expected_s, resizable=engine.resizes)


def gang(spec: JobSpec, engine: Engine) -> GangShape:
    """Parts in the order of the tasks: a driver, then its workers."""
    return GangShape(tuple(part for name in spec.tasks for part in _parts(name, spec, engine)))


def is_elastic(name: str, spec: JobSpec) -> bool:
    """Whether a task may run with fewer workers than its most; all runs of a script together have to do with them."""
    task = spec.tasks[name]
    return task.min is not None and task.fewest < task.most


def _fewest(name: str, spec: JobSpec) -> int:
    task = spec.tasks[name]
    return task.fewest if is_elastic(name, spec) else task.most


def _parts(name: str, spec: JobSpec, engine: Engine) -> tuple[SlotGroup, SlotGroup]:
    task = spec.tasks[name]
    one = task.resources
    each = engine.worker(Resources(one.gpus, one.cores, one.memory_mib))
    workers = SlotGroup(name, task.most, each, _fewest(name, spec), label=one.node_label or "")
    return SlotGroup(f"{DRIVER}{name}", 1, engine.driver(), is_driver=True), workers


def rules(spec: JobSpec) -> JobRecord:
    """A record without a history: which tasks there are and what limits hold."""
    tasks = tuple(
        TaskRule(name, task.restart == "relaunch", containers=1 + _fewest(name, spec))
        for name, task in spec.tasks.items()
    )
    limit = float(spec.time_limit_s) if spec.time_limit_s is not None else None
    return JobRecord(serial=0, tasks=tasks, retries=spec.retries, time_limit_s=limit)


@dataclass(frozen=True, slots=True)
class TaskSize:
    """Slots of a task: those that it has, those that it is to have, the fewest and the most."""

    task: str
    slots: int
    target: int
    fewest: int
    most: int


def sizes(spec: JobSpec, used: Placement, target: Placement = ()) -> list[TaskSize]:
    """Of each task, in order; 0 slots where it has no place. ``target``: as in the job's row."""
    had, wanted = _counts(used), _counts(target or used)
    return [
        TaskSize(name, had.get(index, 0), wanted.get(index, 0), _fewest(name, spec), task.most)
        for index, (name, task) in enumerate(spec.tasks.items())
    ]


def slots(spec: JobSpec, placement: Placement) -> tuple[int, ...]:
    """Of each task how many its driver is told that it may have, as in the job's record: 0 for one that does not change."""
    if not any(is_elastic(name, spec) for name in spec.tasks):
        return ()
    counts = _counts(placement)
    return tuple(counts.get(index, 0) if is_elastic(name, spec) else 0 for index, name in enumerate(spec.tasks))


def _counts(placement: Placement) -> dict[int, int]:
    """Index of a task -> its workers' slots; its driver's part goes before."""
    return {index: sum(nodes.values()) for index, nodes in enumerate(placement[1::2])}


def change_text(spec: JobSpec, before: tuple[int, ...], after: tuple[int, ...], in_favour_of: str) -> str:
    """Why a job gets more or fewer slots, in words."""
    changed = [(name, old, new) for name, old, new in zip(spec.tasks, before, after, strict=True) if old != new]
    if in_favour_of:
        said = ", ".join(f"{name} is to give {old - new} of {old} slots back" for name, old, new in changed)
        return f"{said}, for {in_favour_of}, which goes first"
    said = ", ".join(f"{name} grows from {old} to {new} slots" for name, old, new in changed)
    return f"{said}, which nobody waits for"


def placement_of(stored: Sequence[dict[str, int]] | None) -> Placement:
    """A placement as it was stored; empty for none."""
    return tuple(dict(nodes) for nodes in stored or ())
