"""Routes of the cluster, data sets, tokens, secrets, the audit log, below ``/api/v1``, and ``/metrics`` for Prometheus.

Tokens and the audit log are for administrators. Users reach only their own secrets, and no response contains a value.
The metrics need a viewer's token.
"""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from hopsml.core.metrics import text
from hopsml.core.states import Lifecycle
from hopsml.service import metrics
from hopsml.service.rest import job_models as models
from hopsml.service.rest.job_routes import TheCaller, TheEntry, TheJobs, needs
from hopsml.service.spec.fields import NAME_PATTERN
from hopsml.service.store import notes
from hopsml.service.store.accounts import AuditLog, AuditRow, Role, Tokens

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
        **metrics.of_jobs(jobs.store.counts(), jobs.queues, time.time()),
        **metrics.of_cluster(capacity, free, manager.leads, bool(manager.problem)),
        **jobs.meter.counts,
        **request.app.state.requests.counts,
    }
    return PlainTextResponse(text(counts, metrics.FAMILIES), headers={"cache-control": "no-store"})


class DatasetJobAnswer(BaseModel):
    """A job that names a data set."""

    id: str
    owner: str
    state: Lifecycle
    submitted_s: float


class DatasetAnswer(BaseModel):
    """A data set, with the jobs that name it."""

    url: str
    count: int = Field(description="Number of jobs that use it.")
    living: int = Field(description="Number of these jobs that have not ended.")
    jobs: list[DatasetJobAnswer] = Field(description=f"The newest {notes.SHOWN} of them.")


class DatasetsAnswer(BaseModel):
    """Data sets, the most recently used first."""

    datasets: list[DatasetAnswer]


@router.get("/datasets")
def list_datasets(jobs: TheJobs) -> DatasetsAnswer:
    """Return the data sets that the job files of the newest jobs name."""
    return DatasetsAnswer.model_validate({"datasets": notes.uses(jobs.store)}, from_attributes=True)


@router.post("/tokens", status_code=201)
def create_token(asked: models.TokenRequest, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.NewToken:
    """Create a token for a user, with the lowest role if none is named."""
    needs(caller, Role.ADMIN)
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
    needs(caller, Role.ADMIN)
    return [models.TokenAnswer.of(row) for row in Tokens(jobs.store).all()]


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(token_id: str, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> None:
    """Revoke a token by its id."""
    needs(caller, Role.ADMIN)
    with entry.stored(204) as also:
        Tokens(jobs.store).revoke(token_id, time.time(), also)


SecretName = Annotated[str, Path(pattern=NAME_PATTERN, description="As a job file names it under secrets.")]


@router.put("/secrets/{name}", status_code=204)
def store_secret(name: SecretName, asked: models.SecretRequest, jobs: TheJobs, caller: TheCaller) -> None:
    """Store a secret for the caller's jobs; an earlier value is replaced."""
    needs(caller, Role.USER)
    jobs.secrets.store_secret(caller.user, name, asked.value.get_secret_value(), time.time())


@router.get("/secrets")
def list_secrets(jobs: TheJobs, caller: TheCaller) -> list[models.SecretAnswer]:
    """Return the caller's secrets, without their values."""
    needs(caller, Role.USER)
    return [models.SecretAnswer(name=row.name, stored_s=row.stored_s) for row in jobs.secrets.names(caller.user)]


@router.delete("/secrets/{name}", status_code=204)
def remove_secret(name: SecretName, jobs: TheJobs, caller: TheCaller) -> None:
    """Delete one of the caller's secrets."""
    needs(caller, Role.USER)
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
    needs(caller, Role.ADMIN)
    page = AuditLog(jobs.store).page(before=before, limit=limit, user=user, action=action)
    return AuditPageAnswer(entries=[AuditAnswer.of(row) for row in page.entries], cursor=page.cursor)
