"""Route that requests the profile of a run's worker, below ``/api/v1``."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError
from hopsml.service.browse.project import Project
from hopsml.service.rest.job_routes import TheCaller, needs
from hopsml.service.store.tokens import Role
from hopsml.storage import mailbox
from hopsml.tracking import catalog

router = APIRouter(prefix="/api/v1")


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
def take(run: str, asked: ProfileRequestBody, request: Request, caller: TheCaller) -> ProfileTicket:
    """Request the profile of a worker; the caller must be allowed to submit jobs."""
    needs(caller, Role.USER)
    project: Project = request.app.state.project
    directory = project.directory(run)
    state = catalog.read(directory, brief=True).state
    if state != Lifecycle.RUNNING:
        raise ArgumentError(f"run {run} is {state}: only workers that run can be profiled")
    wish = mailbox.checked_profile_request(asked.rank, asked.seconds, asked.format, asked.idle)
    wish = msgspec.structs.replace(wish, by=f"{caller.user}, by the page")
    mailbox.request_profile(directory, wish, time.time())
    return ProfileTicket(id=wish.id)
