"""What becomes of jobs, and what their drivers print, as server-sent events below ``/api/v1/jobs``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from hopsml import suggestions
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
    """Follow all jobs: an event ``job`` for each change of state, whose id is the change's; ``reset``: read anew.

    ``Last-Event-ID`` (or ``last``): the newest one that was seen.
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
    """Follow what the driver of a task prints: events ``log``, whose id is the byte after them, and ``end`` with the job.

    ``try``: what one of its tries has printed, up to its end. ``reset``: another log is followed now, that of a new try; or
    it was cut. ``Last-Event-ID`` goes before ``offset``.
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
    """Raise ArgumentError for a task that the job does not have."""
    try:
        tasks = list(specs.JobSpec.model_validate_json(row.spec).tasks)
    except ValueError:  # of another version of hopsml
        return
    if task and task not in tasks:
        there = "there are: " + ", ".join(tasks)
        raise ArgumentError(f"job {row.id} has no task {task!r}; {suggestions.instead(task, tasks, there)}")
