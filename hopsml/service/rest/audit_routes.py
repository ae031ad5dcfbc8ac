"""Route of the audit log, below ``/api/v1``, for administrators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hopsml.service.rest.job_routes import TheCaller, TheJobs, needs
from hopsml.service.store.audit import AuditLog, AuditRow
from hopsml.service.store.tokens import Role

router = APIRouter(prefix="/api/v1")


class AuditAnswer(BaseModel):
    """A request that has changed something, or was refused."""

    id: int
    at_s: float
    user: str = Field(description="Empty where the token was nobody's.")
    role: str
    action: str
    target: str = Field(description="A job, the id of a token, the digest of code; what the address named else.")
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
