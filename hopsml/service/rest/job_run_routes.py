"""Routes of the runs of a job, with their metrics and logs, and of the event streams of jobs, below ``/api/v1/jobs``."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from hopsml.core import suggestions
from hopsml.core.states import ENDS
from hopsml.errors import ArgumentError
from hopsml.service import spec as specs
from hopsml.service.browse.logs import MOST_LINES, LogQuery
from hopsml.service.browse.metrics import CHIEF, Metrics
from hopsml.service.browse.project import Project
from hopsml.service.browse.run_list import RunRow
from hopsml.service.rest import job_models as models
from hopsml.service.rest.event_stream import EventAnswer, Streams, last_event_id
from hopsml.service.rest.feeds import JobFeed, LogFeed
from hopsml.service.rest.job_routes import TheJob, TheJobs, runs_of
from hopsml.service.store import JobRow

router = APIRouter(prefix="/api/v1")


@router.get("/jobs/{job}/runs")
def runs(row: TheJob, jobs: TheJobs, request: Request) -> list[models.JobRunAnswer]:
    """Return the runs that the tasks of a job have created, the oldest first."""
    return [models.JobRunAnswer.model_validate(_told(run)) for run in runs_of(request, jobs, row)]


@router.get("/jobs/{job}/metrics")
def metrics(row: TheJob, jobs: TheJobs, request: Request) -> list[models.JobMetricsAnswer]:
    """Return the metrics that each run of a job has reported, the oldest run first, without its workers' use of resources.

    Of a search these are the metrics of one trial: the best one, else the one with the most steps.
    """
    project = _project(request)
    return [
        models.JobMetricsAnswer.model_validate({**_told(run), **_reported(project, run)})
        for run in runs_of(request, jobs, row)
    ]


@router.get("/jobs/{job}/ranks/{rank}/log")
def rank_log(
    row: TheJob,
    jobs: TheJobs,
    request: Request,
    rank: Annotated[int, Path(ge=0, lt=1 << 31)],
    task: str = "",
    run: str = "",
    offset: Annotated[int, Query(ge=0, lt=1 << 53, description="In lines.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = MOST_LINES,
) -> models.RankLogAnswer:
    """Return log lines of one worker of a run; of the job's newest run if none is named."""
    project = _project(request)
    made = [
        one for one in runs_of(request, jobs, row) if not task or one.id.startswith(f"{jobs.own_name(row)}-{task}_")
    ]
    if run and run not in [one.id for one in made]:
        raise ArgumentError(
            f"job {row.id} has made no run {run[:80]!r}; `hopsml jobs show {row.serial}` lists its runs"
        )
    if not made:
        return models.RankLogAnswer(run="", newest="", lines=[], end=0, is_whole=True, is_over=row.state.is_final)
    asked = next((one for one in made if one.id == run), made[-1])
    page = project.logs(asked.id, LogQuery(rank)).page(offset, limit)
    is_over = row.state.is_final or asked.state in ENDS
    if rank not in page.ranks and (is_over or page.ranks):
        there = ", ".join(map(str, page.ranks)) or "none"
        raise ArgumentError(f"run {asked.id} has no log of rank {rank}; those that there are: {there}")
    end = offset + len(page.lines)
    return models.RankLogAnswer(
        run=asked.id,
        newest=made[-1].id,
        lines=[line.text for line in page.lines],
        end=end,
        is_whole=page.read >= page.bytes and end >= page.total,
        is_over=row.state.is_final or (is_over and made[-1].id != asked.id),
    )


def _project(request: Request) -> Project:
    """Return the project of the application."""
    project: Project = request.app.state.project
    return project


def _told(run: RunRow) -> dict[str, str | float | None]:
    """Return the fields of an answer that describe a run."""
    metric = run.metric if run.metric is not None and math.isfinite(run.metric) else None
    return {"id": run.id, "state": run.state, "metric_name": run.metric_name, "metric": metric}


def _reported(project: Project, run: RunRow) -> dict[str, Any]:
    """Return the fields ``metrics`` and ``trial`` of an answer about a run."""
    if not run.is_search:
        return {"metrics": _summaries(project.metrics(run.id))}
    search = project.search(run.id)
    told = [trial for trial in search.trials if trial.reports]
    best = max(told, key=lambda trial: (trial.number == search.best, trial.step or 0), default=None)
    if best is None:
        return {"metrics": []}
    steps, values = best.curve
    finite = [value for value in values if math.isfinite(value)]
    answer = models.MetricAnswer(
        name=search.metric or "value",
        reports=best.reports,
        step=steps[-1],
        last=values[-1] if math.isfinite(values[-1]) else None,
        lowest=min(finite, default=None),
        highest=max(finite, default=None),
    )
    return {"metrics": [answer], "trial": best.id}


def _summaries(reader: Metrics) -> list[models.MetricAnswer]:
    """Return the metrics that the chief of a run has reported."""
    reported = [tag for tag, source, _ in reader.tags() if source == CHIEF]
    found = []
    for one in reader.series(reported, 2):
        if one.source == CHIEF:
            last, lowest, highest = reader.summary(one.tag) or (None, None, None)
            answer = models.MetricAnswer(
                name=one.tag, reports=one.count, step=one.steps[-1], last=last, lowest=lowest, highest=highest
            )
            found.append(answer)
    return found


_STREAM = {"content": {"text/event-stream": {}}, "description": "Events, until the connection ends."}
_MOST = 1 << 53


@router.get("/jobs/events", response_class=Response, responses={200: _STREAM})
async def job_events(request: Request, jobs: TheJobs) -> Response:
    """Stream the state changes of all jobs as events ``job``, whose id is that of the change.

    After an event ``reset`` the client must read the jobs again. ``Last-Event-ID`` (or ``last``): id of the last event
    that the client has received.
    """
    streams: Streams = request.app.state.streams
    return EventAnswer(request, streams.stream("jobs", lambda: JobFeed(jobs.store), last_event_id(request)))


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
        raise ArgumentError(f"job {row.id} has no task {task!r}; {suggestions.suggestion_text(task, tasks, there)}")
