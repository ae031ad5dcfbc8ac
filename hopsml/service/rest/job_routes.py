"""Routes of jobs and of the cluster's totals, below ``/api/v1``."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request

from hopsml.core.states import ENDS, Lifecycle
from hopsml.errors import ArgumentError, JobNotFound, PermissionRefused
from hopsml.service import spec as specs
from hopsml.service import workspaces
from hopsml.service.browse.project import Project
from hopsml.service.browse.run_list import RunProgress, RunRow, final_progress
from hopsml.service.jobs import JobService
from hopsml.service.rest import job_models as models
from hopsml.service.rest.audited import CallEntry
from hopsml.service.rest.feeds import decode_complete
from hopsml.service.rest.run_routes import STALE_S
from hopsml.service.store import JobRow, NewJob, RequestKind
from hopsml.service.store.accounts import Caller, Role
from hopsml.service.store.rows import JobFilter

router = APIRouter(prefix="/api/v1")
_JOB = re.compile(r"(?:[a-z0-9][-a-z0-9]{0,62}-)?([1-9][0-9]{0,17})")
LOG_BYTES = 1 << 20  # most bytes of one response
_HAS_RUNS = (Lifecycle.STARTING, Lifecycle.RUNNING, Lifecycle.CLOSING)
WHYS = 100  # most reasons of one response: for each the scheduler checks all nodes, which delays its next pass


def _jobs(request: Request) -> JobService:
    """Return the job service of the application."""
    jobs: JobService = request.app.state.jobs
    return jobs


def _caller(request: Request) -> Caller:
    """Return the authenticated caller of a request."""
    caller: Caller = request.state.caller
    return caller


def _entry(request: Request) -> CallEntry:
    """Return the audit log entry of a request, with its caller."""
    entry: CallEntry = request.state.entry
    entry.caller = request.state.caller
    return entry


def _row(jobs: TheJobs, job: Annotated[str, Path(description="name-number, or the number alone")]) -> JobRow:
    """Return the row of the job that the path names. Raises JobNotFound."""
    found, row = _JOB.fullmatch(job), None
    if found:
        with contextlib.suppress(JobNotFound):  # its text has the number alone
            row = jobs.store.job(int(found[1]))
    if row is None or job not in (row.id, str(row.serial)):
        raise JobNotFound(f"there is no job {job[:80]!r}; `hopsml jobs ls --all` lists the existing ones")
    return row


TheJobs = Annotated[JobService, Depends(_jobs)]
TheCaller = Annotated[Caller, Depends(_caller)]
TheEntry = Annotated[CallEntry, Depends(_entry)]  # of the audit log
TheJob = Annotated[JobRow, Depends(_row)]


def require_role(caller: Caller, role: Role) -> None:
    """Raise PermissionRefused if the caller's role is lower than the required one."""
    if caller.role < role:
        raise PermissionRefused(
            f"{caller.user} is {caller.role.name.lower()}, and this needs {role.name.lower()}; ask an administrator for "
            "another token"
        )


def _may_change(caller: Caller, row: JobRow) -> None:
    """Raise PermissionRefused if the caller may not change a job: users may change their own, operators all."""
    require_role(caller, Role.USER if caller.user == row.owner else Role.OPERATOR)


# ------------------------------------------------------------------------------------- submitting


@router.post("/workspaces", status_code=201, openapi_extra={"requestBody": {"content": {"application/zip": {}}}})
async def upload(request: Request, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.Uploaded:
    """Store the code of a job: a zip of its folder. The same zip is stored once."""
    from starlette.concurrency import run_in_threadpool

    from hopsml.service.workspaces import MOST_BYTES

    require_role(caller, Role.USER)
    pieces, length = [], 0
    async for piece in request.stream():
        length += len(piece)
        if length > MOST_BYTES:
            raise ArgumentError(
                f"the zip is larger than {MOST_BYTES >> 20} MiB; keep data on the store, and upload code"
            )
        pieces.append(piece)
    entry.target = await run_in_threadpool(jobs.workspaces.store_zip, b"".join(pieces), caller.user)
    return models.Uploaded(workspace=entry.target)


@router.post("/jobs", status_code=201)
def submit(
    asked: models.Submission,
    jobs: TheJobs,
    caller: TheCaller,
    entry: TheEntry,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> models.JobAnswer:
    """Queue a job for execution.

    With the ``Idempotency-Key`` of an earlier submission of the same job, that job is returned, and no second one queued.
    """
    require_role(caller, Role.USER)
    if idempotency_key is not None and not idempotency_key.strip():
        raise ArgumentError(
            "the header Idempotency-Key is empty: send one that names this submission, or leave the header out"
        )
    job = specs.loads(asked.spec)
    entry.target = job.name
    if job.schedule is not None:
        raise ArgumentError(f"job {job.name} has a schedule: submit it to /api/v1/schedules, or leave the schedule out")
    jobs.check(job, asked.workspace, caller.user)
    new = NewJob(
        name=job.name,
        owner=caller.user,
        queue=job.queue,
        priority=job.priority,
        spec=job.model_dump_json(by_alias=True, exclude_unset=True),
        profile=jobs.profile,
        workspace=asked.workspace,
        retries=job.retries,
        idempotency_key=idempotency_key,
    )
    return _submitted(new, job, jobs, entry)


def _submitted(new: NewJob, job: specs.JobSpec, jobs: JobService, entry: CallEntry) -> models.JobAnswer:
    """Store a new job with its audit log entry, and start the scheduler's next pass."""
    began_s = time.time()
    with entry.stored(201) as also:
        row = jobs.store.submit(new, began_s, also)
    entry.target = row.id
    workspaces.record_submission(row, began_s)
    jobs.wake()
    return models.JobAnswer.of(row, jobs.manager.growth(job))


@router.post("/jobs/{job}/clone", status_code=201)
def clone(row: TheJob, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.JobAnswer:
    """Queue the same job again, with the same code."""
    require_role(caller, Role.USER)
    job = specs.JobSpec.model_validate_json(row.spec)
    jobs.secrets.check(caller.user, job.secrets)
    jobs.workspaces.check_archives(job)
    jobs.workspaces.folder(row.workspace)  # raises an error if the code was removed
    new = NewJob(row.name, caller.user, row.queue, row.priority, row.spec, jobs.profile, row.workspace, job.retries)
    return _submitted(new, job, jobs, entry)


# ------------------------------------------------------------------------------------- reading


@router.get("/jobs")
def listed(
    jobs: TheJobs,
    request: Request,
    state: Annotated[list[Lifecycle], Query()] = [],  # noqa: B006 FastAPI reads it
    owner: str = "",
    queue: str = "",
    text: Annotated[str, Query(description="A part of the name.", max_length=200)] = "",
    before: Annotated[int | None, Query(ge=1, lt=1 << 53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    why: Annotated[
        bool, Query(description=f"Return the reasons for waiting, of the first {WHYS} waiting jobs.")
    ] = False,
    order: Annotated[
        Literal["newest", "turn", "ended"],
        Query(
            description="turn: by priority, then the oldest; ended: those that have ended, the last one first. Neither "
            "has further pages."
        ),
    ] = "newest",
    progress: Annotated[
        bool, Query(description=f"Return the progress of running jobs, of the first {WHYS} of them.")
    ] = False,
) -> models.JobPage:
    """Return jobs: the newest first, as the scheduler considers them, or those that have ended, the last one first."""
    wanted = JobFilter(tuple(state), owner, queue, text)
    if order != "newest" and before is not None:
        raise ArgumentError(f"before={before} with order={order}: only the first page is to be had in that order")
    if order == "turn":
        page = jobs.store.jobs_by_priority(wanted, limit)
    elif order == "ended":
        page = jobs.store.last_ended(wanted, limit)
    else:
        page = jobs.store.jobs(wanted, before=before, limit=limit)
    waiting = [row for row in page.jobs if row.state == Lifecycle.WAITING] if why else []
    reasons = {row.serial: jobs.why(row) for row in waiting[:WHYS]}
    running = [row for row in page.jobs if row.state in _HAS_RUNS] if progress else []
    known = _progress(request, jobs, running[:WHYS])
    told = [models.JobAnswer.of(row, reasons.get(row.serial, ""), known.get(row.serial)) for row in page.jobs]
    return models.JobPage(jobs=told, cursor=page.cursor)


def runs_of(request: Request, jobs: JobService, row: JobRow) -> list[RunRow]:
    """Return the runs that a job has created, the oldest first; of an ended job all of them."""
    index = request.app.state.project.runs
    since_end_s = max(0.0, time.time() - row.ended_s) if row.state.is_final else STALE_S
    index.refresh(min(STALE_S, since_end_s))  # a list from before the end may lack the newest run
    made: list[RunRow] = list(index.rows(f"{jobs.own_name(row)}-").values())
    return sorted(made, key=lambda run: (run.started or 0.0, run.id))


def _progress(request: Request, jobs: JobService, rows: list[JobRow]) -> dict[int, models.JobProgressAnswer]:
    """Return the progress of each job's newest run, by the job's serial; jobs without a run are left out."""
    project = request.app.state.project
    newest = [(row, made[-1]) for row in rows if (made := runs_of(request, jobs, row))]
    return {row.serial: models.JobProgressAnswer.of(run, _progress_of(project, row, run)) for row, run in newest}


def _progress_of(project: Project, job: JobRow, run: RunRow) -> RunProgress | None:
    """Return the progress of a job's run; a run that has ended keeps it until the job ends, or starts again."""
    is_of_this_try = (run.started or 0.0) >= job.placed_s
    if run.progress is None and not run.is_search and run.state in ENDS and is_of_this_try:
        return final_progress(project.directory(run.id))
    return run.progress or _trials_done(project, run)


def _trials_done(project: Project, run: RunRow) -> RunProgress | None:
    """Return the number of a search's trials that have ended; None for another run."""
    if not run.is_search:
        return None
    search = project.search(run.id)
    running = ("running", "waiting", "paused", "placed")
    done = sum(count for state, count in search.counts.items() if state not in running)
    return RunProgress(done, search.planned, "trial")


@router.get("/jobs/{job}")
def shown(row: TheJob, jobs: TheJobs, request: Request) -> models.JobDetail:
    """Return a job with its job file, applications and sizes."""
    applications = [
        models.ApplicationAnswer(
            task=launch.task,
            number=launch.number,
            state=launch.state,
            application_id=launch.application_id,
            tag=launch.tag,
            cause=launch.cause,
        )
        for launch in jobs.store.launches([row.serial])[row.serial]
    ]
    try:
        understood = specs.JobSpec.model_validate_json(row.spec)
        spec, sizes = specs.dump(understood), jobs.sizes(row, understood)
    except ValueError:  # written by another version of hopsml
        spec, sizes = row.spec, []
    progress = _progress(request, jobs, [row]).get(row.serial) if row.state in _HAS_RUNS else None
    answer = models.JobAnswer.of(row, jobs.why(row), progress).model_dump()
    told = [models.SizeAnswer(**asdict(size)) for size in sizes]
    return models.JobDetail(**answer, spec=spec, profile=row.profile, applications=applications, sizes=told)


@router.get("/jobs/{job}/why")
def why(row: TheJob, jobs: TheJobs) -> models.Reasons:
    """Return why a job waits: what it needs, what is free, which jobs use the rest until when, and what would help."""
    return models.Reasons(why=jobs.why(row))


@router.get("/jobs/{job}/changes")
def changes(
    row: TheJob, jobs: TheJobs, after: Annotated[int, Query(ge=0, lt=1 << 53)] = 0
) -> list[models.StateChangeAnswer]:
    """Return the state changes of a job, the oldest first; ``after`` selects those newer than this id."""
    return [models.StateChangeAnswer.of(change) for change in jobs.store.changes(row.serial, after)]


@router.get("/jobs/{job}/log")
def log(
    row: TheJob,
    jobs: TheJobs,
    task: str = "",
    offset: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    try_number: Annotated[int | None, Query(alias="try", ge=1, lt=1 << 31, description="The newest one else.")] = None,
) -> models.LogAnswer:
    """Return a part of a driver's log, from a byte on; of the first task if none is named."""
    found = jobs.log(row, task, offset, LOG_BYTES, try_number)
    if found is None or not found.data:
        return models.LogAnswer(text="", end=offset)
    text, taken = decode_complete(found.data)
    if not taken:
        text, taken = found.data.decode(errors="replace"), len(found.data)
    return models.LogAnswer(text=text, end=found.offset + taken)


@router.get("/cluster")
def cluster(jobs: TheJobs) -> models.ClusterAnswer:
    """Return the cluster's capacity and free resources, and the server that runs the jobs."""
    capacity, free = jobs.manager.capacity()
    leader = jobs.manager.leader
    return models.ClusterAnswer(
        capacity=models.Amount.of(capacity),
        free=models.Amount.of(free),
        leads=jobs.manager.leads,
        leader=leader.address if leader is not None else "",
        problem=jobs.manager.problem,
    )


# ------------------------------------------------------------------------------------- changing


def _wished(
    kind: RequestKind, row: JobRow, jobs: JobService, caller: Caller, entry: CallEntry, value: str = ""
) -> models.JobAnswer:
    """Store a user's request for a job that has not ended, with its audit log entry, and start the next pass."""
    _may_change(caller, row)
    if not row.state.is_final:
        with entry.stored(202) as also:
            jobs.store.add_request(row.serial, kind, value, caller.user, time.time(), also)
        jobs.wake()
    return models.JobAnswer.of(row)


@router.post("/jobs/{job}/cancel", status_code=202)
def cancel(row: TheJob, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.JobAnswer:
    """Cancel a job permanently. A job that has ended remains as it is."""
    return _wished(RequestKind.CANCEL, row, jobs, caller, entry)


@router.post("/jobs/{job}/pause", status_code=202)
def pause(row: TheJob, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.JobAnswer:
    """Pause a job: it releases its slots, and does not wait for others until it is resumed."""
    return _wished(RequestKind.PAUSE, row, jobs, caller, entry)


@router.post("/jobs/{job}/resume", status_code=202)
def resume(row: TheJob, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.JobAnswer:
    """Resume a paused job: it waits for slots again."""
    return _wished(RequestKind.RESUME, row, jobs, caller, entry)


@router.post("/jobs/{job}/move", status_code=202)
def move(row: TheJob, place: models.QueuePlace, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.JobAnswer:
    """Move a job to another queue, or change its priority."""
    queue, priority = place.queue or row.queue, place.priority or row.priority
    jobs.check_queue(queue)
    return _wished(RequestKind.MOVE, row, jobs, caller, entry, f"{queue} {priority}")


@router.post("/jobs/{job}/remove")
def remove(row: TheJob, jobs: TheJobs, caller: TheCaller) -> models.JobAnswer:
    """Delete the files of an ended job: its drivers' logs, and its code unless another job needs it."""
    _may_change(caller, row)
    jobs.remove(row)
    return models.JobAnswer.of(row)
