"""Routes of all but jobs and runs, below ``/api/v1``, and ``/metrics`` for Prometheus.

They serve the cluster, data sets, tokens, secrets and the audit log; then schedules of jobs; then users' notes on runs,
saved views and requests for the profile of a run's worker. Tokens and the audit log are for administrators. Users reach
only their own secrets, and no response contains a value. The metrics need a viewer's token.
"""

from __future__ import annotations

import re
import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from hopsml.core.metrics import prometheus_text
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, JobNotFound, PermissionRefused
from hopsml.service import metrics
from hopsml.service import spec as specs
from hopsml.service.browse.project import Project
from hopsml.service.manager.requests import job_of, next_planned_s
from hopsml.service.rest import job_models as models
from hopsml.service.rest.job_routes import TheCaller, TheEntry, TheJobs, require_role
from hopsml.service.spec.fields import NAME_PATTERN
from hopsml.service.store.accounts import AuditLog, AuditRow, Caller, Role, Tokens
from hopsml.service.store.notes import LONGEST_NAME, LONGEST_NOTE, LONGEST_QUERY, MOST_TAGS, Notes, RunNote, SavedView
from hopsml.service.store.schedules import ScheduleRow, Schedules
from hopsml.storage import mailbox
from hopsml.tracking import catalog

router = APIRouter(prefix="/api/v1")
metrics_router = APIRouter()


@router.get("/nodes")
def nodes(jobs: TheJobs) -> models.NodesAnswer:
    """Return the nodes with their capacity, free resources and jobs."""
    return models.NodesAnswer(nodes=[models.NodeAnswer.of(node) for node in jobs.manager.nodes()])


@router.get("/queues")
def queues(jobs: TheJobs) -> models.QueuesAnswer:
    """Return the queues with their shares and what their jobs use."""
    return models.QueuesAnswer(queues=[models.QueueAnswer.of(queue) for queue in jobs.manager.queues()])


@metrics_router.get("/metrics", response_class=PlainTextResponse)
def show_metrics(request: Request, jobs: TheJobs) -> PlainTextResponse:
    """Return the metrics of jobs, cluster and server in Prometheus' text format."""
    manager = jobs.manager
    capacity, free = manager.capacity()
    counts = {
        **metrics.job_counts(jobs.store.counts(), jobs.queues, time.time()),
        **metrics.cluster_gauges(capacity, free, manager.leads, bool(manager.problem)),
        **jobs.meter.counts,
        **request.app.state.requests.counts,
    }
    return PlainTextResponse(prometheus_text(counts, metrics.FAMILIES), headers={"cache-control": "no-store"})


@router.post("/tokens", status_code=201)
def create_token(asked: models.TokenRequest, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.NewToken:
    """Create a token for a user, with the lowest role if none is named."""
    require_role(caller, Role.ADMIN)
    role = Role[asked.role.upper()]
    jobs.check_account(asked.user, role)
    with entry.stored(201) as also:
        made = Tokens(jobs.store).create(
            asked.user, role, time.time(), label=asked.label, lasts_s=asked.lasts_s, also=also
        )
    return models.NewToken(token=made)


@router.get("/tokens")
def list_tokens(jobs: TheJobs, caller: TheCaller) -> list[models.TokenAnswer]:
    """Return all tokens that were created, without the tokens themselves."""
    require_role(caller, Role.ADMIN)
    return [models.TokenAnswer.of(row) for row in Tokens(jobs.store).all()]


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(token_id: str, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> None:
    """Revoke a token by its id."""
    require_role(caller, Role.ADMIN)
    with entry.stored(204) as also:
        Tokens(jobs.store).revoke(token_id, time.time(), also)


SecretName = Annotated[str, Path(pattern=NAME_PATTERN, description="As a job file names it under secrets.")]


@router.put("/secrets/{name}", status_code=204)
def store_secret(name: SecretName, asked: models.SecretRequest, jobs: TheJobs, caller: TheCaller) -> None:
    """Store a secret for the caller's jobs; an earlier value is replaced."""
    require_role(caller, Role.USER)
    jobs.secrets.store_secret(caller.user, name, asked.value.get_secret_value(), time.time())


@router.get("/secrets")
def list_secrets(jobs: TheJobs, caller: TheCaller) -> list[models.SecretAnswer]:
    """Return the caller's secrets, without their values."""
    require_role(caller, Role.USER)
    return [models.SecretAnswer(name=row.name, stored_s=row.stored_s) for row in jobs.secrets.names(caller.user)]


@router.delete("/secrets/{name}", status_code=204)
def remove_secret(name: SecretName, jobs: TheJobs, caller: TheCaller) -> None:
    """Delete one of the caller's secrets."""
    require_role(caller, Role.USER)
    jobs.secrets.remove(caller.user, name)


class AuditAnswer(BaseModel):
    """A request that has changed something, or was refused."""

    id: int
    at_s: float
    user: str = Field(description="User of the token; empty if the token is unknown.")
    role: str
    action: str
    target: str = Field(
        description="Object of the action: a job, the id of a token, the digest of code, or the name in the address."
    )
    outcome: int = Field(description="The answer's HTTP status.")
    peer: str = Field(description="The address that it came from.")

    @classmethod
    def of(cls, row: AuditRow) -> AuditAnswer:
        """Convert a row of the audit log."""
        return cls.model_validate({name: getattr(row, name) for name in cls.model_fields})


class AuditPageAnswer(BaseModel):
    """A page of the audit log, the newest entries first."""

    entries: list[AuditAnswer]
    cursor: int | None = Field(description="For ``before``, to get the next ones; null at the end.")


@router.get("/audit")
def audit(
    jobs: TheJobs,
    caller: TheCaller,
    before: Annotated[int | None, Query(ge=1, lt=1 << 53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    user: Annotated[str, Query(max_length=200)] = "",
    action: Annotated[str, Query(max_length=60)] = "",
) -> AuditPageAnswer:
    """Return the requests that changed something or were refused, the newest first."""
    require_role(caller, Role.ADMIN)
    page = AuditLog(jobs.store).page(before=before, limit=limit, user=user, action=action)
    return AuditPageAnswer(entries=[AuditAnswer.of(row) for row in page.entries], cursor=page.cursor)


_SCHEDULE = re.compile(r"(?:[a-z0-9][-a-z0-9]{0,62}-)?([1-9][0-9]{0,17})")


def _row(jobs: TheJobs, schedule: Annotated[str, Path(description="name-number, or the number alone")]) -> ScheduleRow:
    """Return the row of the schedule that the path names. Raises JobNotFound."""
    found = _SCHEDULE.fullmatch(schedule)
    row = Schedules(jobs.store).one(int(found[1])) if found else None
    if row is None or schedule not in (f"{row.name}-{row.id}", str(row.id)):
        raise JobNotFound(f"there is no schedule {schedule[:80]!r}; `hopsml schedules ls` lists the existing ones")
    return row


TheSchedule = Annotated[ScheduleRow, Depends(_row)]


def _spec(row: ScheduleRow) -> specs.JobSpec:
    """Return the job specification of a schedule."""
    return specs.JobSpec.model_validate_json(row.spec)


def _may_change(caller: Caller, row: ScheduleRow) -> None:
    """Raise PermissionRefused if the caller may not change a schedule: users may change their own, operators all."""
    require_role(caller, Role.USER if caller.user == row.owner else Role.OPERATOR)


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
    require_role(caller, Role.USER)
    job, now = specs.loads(asked.spec), time.time()
    entry.target = job.name
    if job.schedule is None:
        raise ArgumentError(f"job {job.name} has no schedule: submit it to /api/v1/jobs, or give it one")
    jobs.check(job, asked.workspace, caller.user)
    text = job.model_dump_json(by_alias=True, exclude_unset=True)
    row = Schedules(jobs.store).store_schedule(
        caller.user, job.name, spec=text, workspace=asked.workspace, profile=jobs.profile,
        planned_s=next_planned_s(job, now), now=now,
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
    Schedules(jobs.store).pause(row.id, is_paused, next_planned_s(_spec(row), now), now)


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


RunId = Annotated[str, Path(max_length=300)]


class NoteRequest(BaseModel):
    """A note that replaces the earlier one of a run."""

    model_config = ConfigDict(extra="forbid")

    note: str = Field(default="", max_length=LONGEST_NOTE)
    tags: list[Annotated[str, Field(max_length=200)]] = Field(default=[], max_length=MOST_TAGS)


class NoteAnswer(BaseModel):
    """The note and tags of a run."""

    run: str
    note: str
    tags: list[str]
    who: str = Field(description="Last author; empty if there is no note.")
    at_s: float

    @classmethod
    def of(cls, note: RunNote) -> NoteAnswer:
        """Convert a stored note of a run."""
        return cls(run=note.run, note=note.note, tags=list(note.tags), who=note.who, at_s=note.at_s)


class ViewRequest(BaseModel):
    """A list of runs to be saved under a name."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    query: str = Field(max_length=LONGEST_QUERY, description="Query of the page's address: filter, sort, order.")
    shared: bool = Field(default=False, description="True if other users see the view.")


class ViewAnswer(ViewRequest):
    """A saved view of the list of runs."""

    id: int
    owner: str
    at_s: float

    @classmethod
    def of(cls, view: SavedView) -> ViewAnswer:
        """Convert a stored view of runs."""
        return cls.model_validate({name: getattr(view, name) for name in cls.model_fields})


@router.get("/run-notes/{run}")
def noted(run: RunId, jobs: TheJobs) -> NoteAnswer:
    """Return the note and tags of a run; empty if there are none."""
    return NoteAnswer.of(Notes(jobs.store).get(run) or RunNote(run, "", (), "", 0.0))


@router.put("/run-notes/{run}")
def note(run: RunId, asked: NoteRequest, request: Request, jobs: TheJobs, caller: TheCaller) -> NoteAnswer:
    """Replace the note and tags of an existing run."""
    require_role(caller, Role.USER)
    project: Project = request.app.state.project
    project.directory(run)
    return NoteAnswer.of(Notes(jobs.store).store_note(run, asked.note, asked.tags, caller.user, time.time()))


@router.get("/views")
def views(jobs: TheJobs, caller: TheCaller) -> list[ViewAnswer]:
    """Return the caller's views, and those that others share."""
    return [ViewAnswer.of(view) for view in Notes(jobs.store).views(caller.user)]


@router.post("/views", status_code=201)
def save(asked: ViewRequest, jobs: TheJobs, caller: TheCaller) -> ViewAnswer:
    """Save a view of runs; one of the same name is replaced."""
    require_role(caller, Role.USER)
    return ViewAnswer.of(Notes(jobs.store).save(caller.user, asked.name, asked.query, asked.shared, time.time()))


@router.delete("/views/{view}", status_code=204)
def delete(view: Annotated[int, Path(ge=1, lt=1 << 53)], jobs: TheJobs, caller: TheCaller) -> None:
    """Delete a view of the caller; operators may also delete views that others share."""
    require_role(caller, Role.USER)
    Notes(jobs.store).delete(view, caller.user, caller.role >= Role.OPERATOR)


class ProfileRequestBody(BaseModel):
    """The worker to profile, and for how many seconds."""

    rank: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[int, Field(ge=1, le=mailbox.MOST_PROFILE_S)] = 10
    format: str = "speedscope"
    idle: bool = False


class ProfileTicket(BaseModel):
    """The id of a requested profile; ``/api/runs/{run}/profiles`` returns its state."""

    id: str


@router.post("/runs/{run}/profiles", status_code=202)
def take_profile(run: str, asked: ProfileRequestBody, request: Request, caller: TheCaller) -> ProfileTicket:
    """Request the profile of a worker; the caller must be allowed to submit jobs."""
    require_role(caller, Role.USER)
    project: Project = request.app.state.project
    directory = project.directory(run)
    state = catalog.read(directory, brief=True).state
    if state != Lifecycle.RUNNING:
        raise ArgumentError(f"run {run} is {state}: only workers that run can be profiled")
    wish = mailbox.checked_profile_request(asked.rank, asked.seconds, asked.format, asked.idle)
    wish = msgspec.structs.replace(wish, by=f"{caller.user}, by the page")
    mailbox.request_profile(directory, wish, time.time())
    return ProfileTicket(id=wish.id)
