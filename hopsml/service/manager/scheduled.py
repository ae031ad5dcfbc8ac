"""Start of the jobs that are due by a schedule, on the leading server."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

from hopsml.errors import ArgumentError
from hopsml.service.lifecycle.timetable import Due, Timetable, due
from hopsml.service.spec import JobSpec
from hopsml.service.spec.schedule import following_s
from hopsml.service.store import NewJob
from hopsml.service.store.rows import Leader
from hopsml.service.store.schedules import ScheduleRow, Schedules

log = logging.getLogger("hopsml.service")


def start_due(schedules: Schedules, lead: Leader, now: float) -> None:
    """Store the jobs whose planned time is reached.

    Args:
        schedules: Schedules of the database.
        lead: Lease of this server.
        now: Time in seconds since 1970.

    Raises:
        StaleRecord: ``lead`` is not the newest lease.
    """
    rows = schedules.to_look_at(now)
    running = schedules.running(rows)
    for row in rows:
        try:
            spec = JobSpec.model_validate_json(row.spec)
        except ValueError as error:  # written by another version of hopsml, which may lead again
            log.error("schedule %s-%s is left alone: its job file is not understood here: %s", row.name, row.id, error)
            continue
        table = Timetable(row.planned_s, row.looked_s, spec.overlap, row.note)
        decided = due(table, row.last_job in running, functools.partial(next_after, spec), now)
        if decided.starts and not schedules.owner_may_submit(row, now):
            log.warning("schedule %s-%s is paused: %s may not submit jobs any more", row.name, row.id, row.owner)
            schedules.stop(row, f"paused: {row.owner} may not submit jobs any more", lead, now)
        elif decided.after != table or decided.starts:
            try:
                schedules.carry_out(row, decided, job_of(row, spec), lead, now)
            except ArgumentError as error:  # the owner has reached the maximum number of jobs
                log.warning("schedule %s-%s leaves a time out: %s", row.name, row.id, error)
                left_out = replace(decided.after, note=f"left out: {error}")
                schedules.carry_out(row, Due(left_out), job_of(row, spec), lead, now)


def next_after(spec: JobSpec, moment_s: float) -> float:
    """Return the first time on a job's schedule after a moment, in seconds since 1970."""
    assert spec.schedule is not None
    return following_s(spec.schedule, spec.schedule_zone, moment_s)


def job_of(row: ScheduleRow, spec: JobSpec) -> NewJob:
    """Return the job that a schedule starts: its job file without the schedule's fields."""
    alone = spec.model_dump_json(by_alias=True, exclude_unset=True, exclude={"schedule", "schedule_zone", "overlap"})
    return NewJob(spec.name, row.owner, spec.queue, spec.priority, alone, row.profile, row.workspace, spec.retries)
