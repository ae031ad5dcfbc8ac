"""Routes of tokens, below ``/api/v1``, for administrators."""

from __future__ import annotations

import time

from fastapi import APIRouter

from hopsml.service.rest import job_models as models
from hopsml.service.rest.job_routes import TheCaller, TheEntry, TheJobs, needs
from hopsml.service.store.tokens import Role, Tokens

router = APIRouter(prefix="/api/v1")


@router.post("/tokens", status_code=201)
def create(asked: models.TokenRequest, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> models.NewToken:
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
def listed(jobs: TheJobs, caller: TheCaller) -> list[models.TokenAnswer]:
    """Return all tokens that were created, without the tokens themselves."""
    needs(caller, Role.ADMIN)
    return [models.TokenAnswer.of(row) for row in Tokens(jobs.store).all()]


@router.delete("/tokens/{token_id}", status_code=204)
def revoke(token_id: str, jobs: TheJobs, caller: TheCaller, entry: TheEntry) -> None:
    """Revoke a token by its id."""
    needs(caller, Role.ADMIN)
    with entry.stored(204) as also:
        Tokens(jobs.store).revoke(token_id, time.time(), also)
