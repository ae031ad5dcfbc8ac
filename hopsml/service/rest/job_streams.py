"""Routes of the event streams of jobs and of drivers' logs, below ``/api/v1/jobs``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from hopsml.core import suggestions
from hopsml.errors import ArgumentError
from hopsml.service import spec as specs
from hopsml.service.rest.event_stream import EventAnswer, Streams, last_seen
from hopsml.service.rest.job_feed import JobFeed
from hopsml.service.rest.job_routes import TheJob, TheJobs
from hopsml.service.rest.log_feed import LogFeed
from hopsml.service.store import JobRow

router = APIRouter(prefix="/api/v1")
_STREAM = {"content": {"text/event-stream": {}}, "description": "Events, until the connection ends."}
_MOST = 1 << 53


@router.get("/jobs/events", response_class=Response, responses={200: _STREAM})
async def job_events(request: Request, jobs: TheJobs) -> Response:
    """Stream the state changes of all jobs as events ``job``, whose id is that of the change.

    After an event ``reset`` the client must read the jobs again. ``Last-Event-ID`` (or ``last``): id of the last event
    that the client has received.
    """
    streams: Streams = request.app.state.streams
    return EventAnswer(request, streams.stream("jobs", lambda: JobFeed(jobs.store), last_seen(request)))


@router.get("/jobs/{job}/log/events", response_class=Response, responses={200: _STREAM})
async def log_events(
    request: Request,
    row: TheJob,
    jobs: TheJobs,
    task: Annotated[str, Query(max_length=63)] = "",
    offset: Annotated[int, Query(gt=-_MOST, lt=_MOST, description="Below 0: from the end.")] = 0,
    application: Annotated[str, Query(max_length=200, description="Whose byte the offset is, where known.")] = "",
    try_number: Annotated[int | None, Query(alias="try", ge=1, lt=1 << 31, description="The newest one else.")] = None,
) -> Response:
    """Stream a driver's log as events ``log``, whose id is the byte after them, and ``end`` when the job ends.

    ``try``: the log of one try, up to its end. ``reset``: another log follows, of a new try, or the log was truncated.
    ``Last-Event-ID`` takes precedence over ``offset``.
    """
    _check_task(row, task)
    jobs.check_try(row, try_number)
    last = request.headers.get("last-event-id", "")
    begin = last if last.isdecimal() and len(last) < 17 else str(offset)
    streams: Streams = request.app.state.streams
    name = ("log", row.serial, task, try_number)
    stream = streams.stream(name, lambda: LogFeed(jobs, row.serial, task, try_number), f"{begin} {application}")
    return EventAnswer(request, stream)


def _check_task(row: JobRow, task: str) -> None:
    """Raise ArgumentError if the job has no such task."""
    try:
        tasks = list(specs.JobSpec.model_validate_json(row.spec).tasks)
    except ValueError:  # written by another version of hopsml
        return
    if task and task not in tasks:
        there = "there are: " + ", ".join(tasks)
        raise ArgumentError(f"job {row.id} has no task {task!r}; {suggestions.instead(task, tasks, there)}")
