"""Jobs of the manager: in memory, as scheduler requests and lifecycle rules, and those that are due by a schedule."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hopsml.errors import ArgumentError
from hopsml.service.engine.base import Engine
from hopsml.service.lifecycle import JobRecord, TaskLaunch, TaskRule
from hopsml.service.scheduler.resources import GangRequest, GangShape, Placement, Resources, SlotGroup
from hopsml.service.spec import JobSpec
from hopsml.service.spec.schedule import DueDecision, ScheduleState, decide_due, next_time_s
from hopsml.service.store import JobRow, NewJob
from hopsml.service.store.rows import Leader
from hopsml.service.store.schedules import ScheduleRow, Schedules
from hopsml.service.store.store import record_of

log = logging.getLogger("hopsml.service")


def store_due_jobs(schedules: Schedules, lead: Leader, now: float) -> None:
    """Store the jobs whose planned time is reached.

    Args:
        schedules: Schedules of the database.
        lead: Lease of this server.
        now: Time in seconds since 1970.

    Raises:
        StaleRecord: ``lead`` is not the newest lease.
    """
    rows = schedules.schedules_to_check(now)
    running = schedules.running(rows)
    for row in rows:
        try:
            spec = JobSpec.model_validate_json(row.spec)
        except ValueError as error:  # written by another version of hopsml, which may lead again
            log.error("schedule %s-%s is left alone: its job file is not understood here: %s", row.name, row.id, error)
            continue
        table = ScheduleState(row.planned_s, row.looked_s, spec.overlap, row.note)
        decided = decide_due(table, row.last_job in running, functools.partial(next_planned_s, spec), now)
        if decided.starts and not schedules.owner_may_submit(row, now):
            log.warning("schedule %s-%s is paused: %s may not submit jobs any more", row.name, row.id, row.owner)
            schedules.stop(row, f"paused: {row.owner} may not submit jobs any more", lead, now)
        elif decided.after != table or decided.starts:
            try:
                schedules.carry_out(row, decided, job_of(row, spec), lead, now)
            except ArgumentError as error:  # the owner has reached the maximum number of jobs
                log.warning("schedule %s-%s leaves a time out: %s", row.name, row.id, error)
                left_out = replace(decided.after, note=f"left out: {error}")
                schedules.carry_out(row, DueDecision(left_out), job_of(row, spec), lead, now)


def next_planned_s(spec: JobSpec, moment_s: float) -> float:
    """Return the first time on a job's schedule after a moment, in seconds since 1970."""
    assert spec.schedule is not None
    return next_time_s(spec.schedule, spec.schedule_zone, moment_s)


def job_of(row: ScheduleRow, spec: JobSpec) -> NewJob:
    """Return the job that a schedule starts: its job file without the schedule's fields."""
    alone = spec.model_dump_json(by_alias=True, exclude_unset=True, exclude={"schedule", "schedule_zone", "overlap"})
    return NewJob(spec.name, row.owner, spec.queue, spec.priority, alone, row.profile, row.workspace, spec.retries)


DRIVER = "driver of "  # prefix of the name of the gang's part for a task's driver


def gang_request(job_id: str, user: str, queue: str, priority: int, spec: JobSpec, engine: Engine) -> GangRequest:
    """Return a job's request to the scheduler: a gang of each task's driver and workers.

    Args:
        job_id: ID of the job.
        user: Owner of the job.
        queue: Current queue, which may differ from the job file's.
        priority: Current priority, which may differ from the job file's.
        spec: The job file.
        engine: Engine whose slot sizes apply.
    """
    expected_s = float(spec.time_limit_s) if spec.time_limit_s is not None else math.inf
    shape = gang_shape(spec, engine)
    return GangRequest(job_id, shape, queue, priority, user, expected_s=expected_s, resizable=engine.resizes)


def gang_shape(spec: JobSpec, engine: Engine) -> GangShape:
    """Return the gang of a job: in the order of the tasks, each task's driver and then its workers."""
    return GangShape(tuple(part for name in spec.tasks for part in _parts(name, spec, engine)))


def is_elastic(name: str, spec: JobSpec) -> bool:
    """Return True if a task may run with fewer workers than its maximum.

    For a script, the limits apply to all of its runs together.
    """
    task = spec.tasks[name]
    return task.min is not None and task.fewest < task.most


def _fewest(name: str, spec: JobSpec) -> int:
    """Return the number of workers below which a task does not start."""
    task = spec.tasks[name]
    return task.fewest if is_elastic(name, spec) else task.most


def _parts(name: str, spec: JobSpec, engine: Engine) -> tuple[SlotGroup, SlotGroup]:
    """Return the gang's parts for a task's driver and for its workers."""
    task = spec.tasks[name]
    one = task.resources
    each = engine.worker(Resources(one.gpus, one.cores, one.memory_mib))
    workers = SlotGroup(name, task.most, each, _fewest(name, spec), label=one.node_label or "")
    return SlotGroup(f"{DRIVER}{name}", 1, engine.driver(), is_driver=True), workers


def record_of_spec(spec: JobSpec) -> JobRecord:
    """Return a job record without history, with the tasks and limits of a job file."""
    tasks = tuple(
        TaskRule(name, task.restart == "relaunch", 1 + _fewest(name, spec), task.ends_with or "")
        for name, task in spec.tasks.items()
    )
    limit = float(spec.time_limit_s) if spec.time_limit_s is not None else None
    return JobRecord(serial=0, tasks=tasks, retries=spec.retries, time_limit_s=limit)


@dataclass(frozen=True, slots=True)
class TaskSize:
    """Numbers of slots of a task: current, target, minimum and maximum."""

    task: str
    slots: int
    target: int
    fewest: int
    most: int


def task_sizes(spec: JobSpec, used: Placement, target: Placement = ()) -> list[TaskSize]:
    """Return the numbers of slots of each task, in order; 0 slots for a task that is not placed.

    Args:
        spec: The job file.
        used: Placement that the job uses.
        target: Placement to which the job shrinks, as in its row; empty if it does not shrink.
    """
    had, wanted = _counts(used), _counts(target or used)
    return [
        TaskSize(name, had.get(index, 0), wanted.get(index, 0), _fewest(name, spec), task.most)
        for index, (name, task) in enumerate(spec.tasks.items())
    ]


def granted_slots(spec: JobSpec, placement: Placement) -> tuple[int, ...]:
    """Return the slots that each task's driver is granted, as in the job's record.

    Returns:
        0 for a task that is not elastic; empty if no task is elastic.
    """
    if not any(is_elastic(name, spec) for name in spec.tasks):
        return ()
    counts = _counts(placement)
    return tuple(counts.get(index, 0) if is_elastic(name, spec) else 0 for index, name in enumerate(spec.tasks))


def _counts(placement: Placement) -> dict[int, int]:
    """Return task index -> number of its workers' slots; the driver's part precedes each workers' part."""
    return {index: sum(nodes.values()) for index, nodes in enumerate(placement[1::2])}


def change_text(spec: JobSpec, before: tuple[int, ...], after: tuple[int, ...], in_favour_of: str) -> str:
    """Return the text that explains why a job gets more or fewer slots.

    Args:
        spec: The job file.
        before: Slots of each task before the change.
        after: Slots of each task after the change.
        in_favour_of: ID of the job that gets the slots; "" if the job grows.
    """
    changed = [(name, old, new) for name, old, new in zip(spec.tasks, before, after, strict=True) if old != new]
    if in_favour_of:
        said = ", ".join(f"{name} must release {old - new} of {old} slots" for name, old, new in changed)
        return f"{said} for {in_favour_of}, which has precedence"
    said = ", ".join(f"{name} grows from {old} to {new} slots" for name, old, new in changed)
    return f"{said}, which no waiting job needs"


def placement_of(stored: Sequence[dict[str, int]] | None) -> Placement:
    """Return a stored placement as the scheduler's type; empty if none is stored."""
    return tuple(dict(nodes) for nodes in stored or ())


@dataclass(slots=True)
class ManagedJob:
    """Job that has not ended, as the manager holds it in memory.

    Attributes:
        row: The database row as it was read; only its queue, priority, account and number of tries are updated. The
            state of the job is in ``record``.
        spec: The validated job file.
        record: The current record of the job's state and launches.
    """

    row: JobRow
    spec: JobSpec
    record: JobRecord

    @property
    def id(self) -> str:
        """Job ID as displayed to users."""
        return self.row.id

    @classmethod
    def of(cls, row: JobRow, launches: tuple[TaskLaunch, ...]) -> ManagedJob:
        """Create a managed job from its database row and its launches.

        The job file in the row was validated when the job was submitted.

        Raises:
            ValueError: This version of hopsml does not accept the job file.
        """
        spec = JobSpec.model_validate_json(row.spec)
        record = record_of(row, launches, record_of_spec(spec))
        placement = placement_of(row.target or row.placement)
        return cls(row, spec, replace(record, slots=granted_slots(spec, placement) if record.holds_slots else ()))
