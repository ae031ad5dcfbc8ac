"""A job file as the scheduler's request, and as the rules by which the job lives."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hopsml.service.engine.base import Engine
from hopsml.service.lifecycle import JobRecord, TaskRule
from hopsml.service.scheduler.policy import GangRequest
from hopsml.service.scheduler.resources import GangShape, Placement, Resources, SlotGroup
from hopsml.service.spec import JobSpec
from hopsml.service.spec.task import Task

DRIVER = "driver of "  # the part of a gang for the driver of a task


def request(job_id: str, user: str, queue: str, priority: int, spec: JobSpec, engine: Engine) -> GangRequest:
    """What the job asks the scheduler for: of each task its driver and its workers, whole or not at all.

    Queue and priority are those of now, which may not be the job file's any more.
    """
    expected_s = float(spec.time_limit_s) if spec.time_limit_s is not None else math.inf
    return GangRequest(job_id, gang(spec, engine), queue, priority, user, expected_s=expected_s)


def gang(spec: JobSpec, engine: Engine) -> GangShape:
    """Parts in the order of the tasks: a driver, then its workers."""
    return GangShape(tuple(part for name, task in spec.tasks.items() for part in _parts(name, task, engine)))


def _parts(name: str, task: Task, engine: Engine) -> tuple[SlotGroup, SlotGroup]:
    one = task.resources
    each = engine.worker(Resources(one.gpus, one.cores, one.memory_mib))
    workers = SlotGroup(name, task.most, each, label=one.node_label or "")
    return SlotGroup(f"{DRIVER}{name}", 1, engine.driver(), is_driver=True), workers


def rules(spec: JobSpec) -> JobRecord:
    """A record without a history: which tasks there are and what limits hold."""
    tasks = tuple(
        TaskRule(name, task.restart == "relaunch", containers=1 + task.most) for name, task in spec.tasks.items()
    )
    limit = float(spec.time_limit_s) if spec.time_limit_s is not None else None
    return JobRecord(serial=0, tasks=tasks, retries=spec.retries, time_limit_s=limit)


def placement_of(stored: Sequence[dict[str, int]] | None) -> Placement:
    """A placement as it was stored; empty for none."""
    return tuple(dict(nodes) for nodes in stored or ())
