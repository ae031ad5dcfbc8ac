"""Routes of secrets, below ``/api/v1``: users reach only their own, and no response contains a value."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path

from hopsml.service.rest import job_models as models
from hopsml.service.rest.job_routes import TheCaller, TheJobs, needs
from hopsml.service.spec.names import NAME_PATTERN
from hopsml.service.store.tokens import Role

router = APIRouter(prefix="/api/v1")
SecretName = Annotated[str, Path(pattern=NAME_PATTERN, description="As a job file names it under secrets.")]


@router.put("/secrets/{name}", status_code=204)
def put(name: SecretName, asked: models.SecretRequest, jobs: TheJobs, caller: TheCaller) -> None:
    """Store a secret for the caller's jobs; an earlier value is replaced."""
    needs(caller, Role.USER)
    jobs.secrets.store_secret(caller.user, name, asked.value.get_secret_value(), time.time())


@router.get("/secrets")
def listed(jobs: TheJobs, caller: TheCaller) -> list[models.SecretAnswer]:
    """Return the caller's secrets, without their values."""
    needs(caller, Role.USER)
    return [models.SecretAnswer(name=row.name, stored_s=row.stored_s) for row in jobs.secrets.names(caller.user)]


@router.delete("/secrets/{name}", status_code=204)
def remove(name: SecretName, jobs: TheJobs, caller: TheCaller) -> None:
    """Delete one of the caller's secrets."""
    needs(caller, Role.USER)
    jobs.secrets.remove(caller.user, name)
