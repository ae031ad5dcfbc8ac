"""Routes of users' notes on runs, saved views, and requests for the profile of a run's worker, below ``/api/v1``."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError
from hopsml.service.browse.project import Project
from hopsml.service.rest.job_routes import TheCaller, TheJobs, needs
from hopsml.service.store.accounts import Role
from hopsml.service.store.notes import LONGEST_NAME, LONGEST_NOTE, LONGEST_QUERY, MOST_TAGS, Notes, RunNote, SavedView
from hopsml.storage import mailbox
from hopsml.tracking import catalog

router = APIRouter(prefix="/api/v1")
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
    needs(caller, Role.USER)
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
    needs(caller, Role.USER)
    return ViewAnswer.of(Notes(jobs.store).save(caller.user, asked.name, asked.query, asked.shared, time.time()))


@router.delete("/views/{view}", status_code=204)
def delete(view: Annotated[int, Path(ge=1, lt=1 << 53)], jobs: TheJobs, caller: TheCaller) -> None:
    """Delete a view of the caller; operators may also delete views that others share."""
    needs(caller, Role.USER)
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
