"""The addresses of secrets, below ``/api/v1``: each has own ones alone, and no value is ever answered."""

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
    """Keep a value for the caller's jobs, in the place of the one before."""
    needs(caller, Role.USER)
    jobs.secrets.put(caller.user, name, asked.value.get_secret_value(), time.time())


@router.get("/secrets")
def listed(jobs: TheJobs, caller: TheCaller) -> list[models.SecretAnswer]:
    """The caller's, without their values."""
    needs(caller, Role.USER)
    return [models.SecretAnswer(name=row.name, stored_s=row.stored_s) for row in jobs.secrets.names(caller.user)]


@router.delete("/secrets/{name}", status_code=204)
def remove(name: SecretName, jobs: TheJobs, caller: TheCaller) -> None:
    """Forget one of the caller's."""
    needs(caller, Role.USER)
    jobs.secrets.remove(caller.user, name)
