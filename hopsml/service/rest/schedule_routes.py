"""Routes of the schedules of jobs, below ``/api/v1``."""

from __future__ import annotations

import re
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path

from hopsml.errors import ArgumentError, JobNotFound, PermissionRefused
from hopsml.service import spec as specs
from hopsml.service.manager.requests import job_of, next_after
from hopsml.service.rest import job_models as models
from hopsml.service.rest.job_routes import TheCaller, TheEntry, TheJobs, needs
from hopsml.service.store.accounts import Caller, Role
from hopsml.service.store.schedules import ScheduleRow, Schedules

router = APIRouter(prefix="/api/v1")
_SCHEDULE = re.compile(r"(?:[a-z0-9][-a-z0-9]{0,62}-)?([1-9][0-9]{0,17})")


def _row(jobs: TheJobs, schedule: Annotated[str, Path(description="name-number, or the number alone")]) -> ScheduleRow:
    """Return the row of the schedule that the path names. Raises JobNotFound."""
    found = _SCHEDULE.fullmatch(schedule)
    row = Schedules(jobs.store).one(int(found[1])) if found else None
    if row is None or schedule not in (f"{row.name}-{row.id}", str(row.id)):
        raise JobNotFound(f"there is no schedule {schedule[:80]!r}; `hopsml schedules ls` lists those that there are")
    return row


TheSchedule = Annotated[ScheduleRow, Depends(_row)]


def _spec(row: ScheduleRow) -> specs.JobSpec:
    """Return the job specification of a schedule."""
    return specs.JobSpec.model_validate_json(row.spec)


def _may_change(caller: Caller, row: ScheduleRow) -> None:
    """Raise PermissionRefused if the caller may not change a schedule: users may change their own, operators all."""
    needs(caller, Role.USER if caller.user == row.owner else Role.OPERATOR)


def _answer(row: ScheduleRow) -> models.ScheduleAnswer:
    """Convert a schedule's row to a response."""
    spec = _spec(row)
    return models.ScheduleAnswer(
        id=f"{row.name}-{row.id}",
        owner=row.owner,
        schedule=str(spec.schedule),
        zone=spec.schedule_zone,
        overlap=spec.overlap,
        is_paused=row.is_paused,
        planned_s=row.planned_s,
        last_job=f"{row.name}-{row.last_job}" if row.last_job is not None else "",
        note=row.note,
        spec=specs.dump(spec),
    )


@router.post("/schedules", status_code=201)
def put(asked: models.Submission, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.ScheduleAnswer:
    """Store a schedule for a job; the caller's schedule of the same name is replaced."""
    needs(caller, Role.USER)
    job, now = specs.loads(asked.spec), time.time()
    entry.target = job.name
    if job.schedule is None:
        raise ArgumentError(f"job {job.name} has no schedule: submit it to /api/v1/jobs, or give it one")
    jobs.check(job, asked.workspace, caller.user)
    text = job.model_dump_json(by_alias=True, exclude_unset=True)
    row = Schedules(jobs.store).store_schedule(
        caller.user, job.name, spec=text, workspace=asked.workspace, profile=jobs.profile,
        planned_s=next_after(job, now), now=now,
    )  # fmt: skip
    return _answer(row)


@router.get("/schedules")
def listed(jobs: TheJobs) -> list[models.ScheduleAnswer]:
    """Return all schedules, the oldest first."""
    return [_answer(row) for row in Schedules(jobs.store).all()]


@router.get("/schedules/{schedule}")
def shown(row: TheSchedule) -> models.ScheduleAnswer:
    """Return one schedule with its job file."""
    return _answer(row)


@router.post("/schedules/{schedule}/pause", status_code=204)
def pause(row: TheSchedule, jobs: TheJobs, caller: TheCaller) -> None:
    """Pause a schedule of jobs; times that pass until it is resumed are not made up for."""
    _paused(row, jobs, caller, True)


@router.post("/schedules/{schedule}/resume", status_code=204)
def resume(row: TheSchedule, jobs: TheJobs, caller: TheCaller) -> None:
    """Resume a schedule, with its next time after now."""
    _paused(row, jobs, caller, False)


def _paused(row: ScheduleRow, jobs: TheJobs, caller: Caller, is_paused: bool) -> None:
    """Pause or resume a schedule, and store its next time."""
    _may_change(caller, row)
    now = time.time()
    Schedules(jobs.store).pause(row.id, is_paused, next_after(_spec(row), now), now)


@router.post("/schedules/{schedule}/trigger", status_code=201)
def trigger(row: TheSchedule, jobs: TheJobs, caller: TheCaller) -> models.JobAnswer:
    """Submit the schedule's job now, in addition to its times. The job belongs to the schedule's owner."""
    _may_change(caller, row)
    schedules, now = Schedules(jobs.store), time.time()
    if not schedules.owner_may_submit(row, now):
        raise PermissionRefused(
            f"schedule {row.name}-{row.id}: its owner {row.owner} may not submit jobs any more; submit its job file as "
            "somebody who may, or remove the schedule"
        )
    job = jobs.store.submit(job_of(row, _spec(row)), now)
    schedules.started(row.id, job.serial)
    jobs.wake()
    return models.JobAnswer.of(job)


@router.delete("/schedules/{schedule}", status_code=204)
def remove(row: TheSchedule, jobs: TheJobs, caller: TheCaller) -> None:
    """Delete a schedule, but not the jobs that it has submitted."""
    _may_change(caller, row)
    Schedules(jobs.store).remove(row.id)
